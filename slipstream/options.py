"""Options as fields of dataclasses, in groups: their help, their defaults, and the values of texts.

Configuration files, environment variables, flags and the tables of the documentation derive from
them. A field whose type is a dataclass is a group: its options stand beside the others.
"""

import math
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import reduce
from operator import ge, gt, le
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from slipstream.core.errors import InvalidRequest, refused_as
from slipstream.files import path_of

T = TypeVar("T")
_TRUE, _FALSE = frozenset({"1", "true", "yes"}), frozenset({"0", "false", "no"})


def option(
    default: T,
    help: str,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    secret: bool = False,
    **shown: Any,
) -> T:
    """Return a field with its line of help, and its bounds for `check_bounds`.

    A secret has no flag, because any user can read a process's arguments, and is never logged.
    `shown` are arguments of typer, for options of commands.
    """
    bounds = {"above": above, "least": least, "most": most}
    about = {"help": help, **bounds, "secret": secret, "shown": shown}
    made: T = field(default=default, repr=not secret, metadata=about)
    return made


def required(help: str, **shown: Any) -> Any:
    """Return a field like that of `option`, without a default."""
    return field(metadata={"help": help, "shown": shown})


def group(cls: Callable[..., T], prefix: str = "", **changes: Any) -> T:
    """Return a field with a group of options, whose names get the `prefix`.

    `changes` are options in place of those of the group, by their names without the prefix.
    """
    defaults = {name: change.default for name, change in changes.items()}
    metadata = {"prefix": prefix, "changes": changes}
    made: T = field(default_factory=lambda: cls(**defaults), metadata=metadata)
    return made


@dataclass(frozen=True, slots=True)
class Option:
    """An option, by the name that files and variables have for it."""

    name: str
    kind: Any
    default: Any
    """`MISSING` where a value is needed."""
    help: str
    is_secret: bool
    shown: Mapping[str, Any]
    """Arguments of typer."""
    path: tuple[str, ...]
    """Fields that lead to it."""
    owner: Any

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def value_in(self, options: Any) -> Any:
        """Return its value in an instance of the outermost dataclass."""
        return reduce(getattr, self.path, options)


def options_of(cls: Any) -> Iterator[Option]:
    """Return the options of a dataclass and of its groups, in order; other fields are none."""
    kinds = get_type_hints(cls)
    for member in fields(cls):
        kind, about = kinds[member.name], member.metadata
        if not is_dataclass(kind) and "help" not in about:
            continue  # a field that is no option
        if not is_dataclass(kind):
            facts = about.get("help", ""), about.get("secret", False), about.get("shown", {})
            yield Option(member.name, kind, member.default, *facts, (member.name,), cls)
            continue
        changes = about.get("changes", {})
        for inner in options_of(kind):
            change = changes.get(inner.name)
            name, path = about.get("prefix", "") + inner.name, (member.name, *inner.path)
            if change is None:
                yield replace(inner, name=name, path=path)
            else:
                text = change.metadata["help"]
                yield replace(inner, name=name, path=path, default=change.default, help=text)


def build(cls: Callable[..., T], **values: Any) -> T:
    """Return `cls` with these values of its options, groups included; the rest have defaults."""
    given: dict[str, Any] = {}
    for option in options_of(cls):
        value = values.pop(option.name, option.default)
        if value is not MISSING:
            *groups, name = option.path
            reduce(lambda outer, group: outer.setdefault(group, {}), groups, given)[name] = value
    if values:
        raise TypeError(f"{cls} has no option {min(values)}")
    built: T = _built(cls, given)
    return built


def _built(cls: Any, given: Mapping[str, Any]) -> Any:
    kinds = get_type_hints(cls)
    groups = {name: _built(kinds[name], given[name]) for name in given if is_dataclass(kinds[name])}
    return cls(**{**given, **groups})


def check_bounds(options: Any) -> None:
    """Raise `InvalidRequest` for a value of a dataclass that is not within its option's bounds."""
    for member in fields(options):
        value = getattr(options, member.name)
        above, least, most = map(member.metadata.get, ("above", "least", "most"))
        limits = [(above, gt), (least, ge), (most, le)]
        if value is not None and not all(has(value, end) for end, has in limits if end is not None):
            raise InvalidRequest(
                f"{member.name} is {value}, but must be {_range(above, least, most)}"
            )
        if value == math.inf and (above, least) != (None, None):
            raise InvalidRequest(f"{member.name} is {value}, but must be a finite number")


class Bounded:
    """Base of dataclasses whose options are always within their bounds."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Raise what `check_bounds` does."""
        check_bounds(self)


def _range(above: float | None, least: float | None, most: float | None) -> str:
    if above is not None:
        return f"above {above}" if most is None else f"above {above} and at most {most}"
    if most is None:
        return f"{least} or more"
    return f"at most {most}" if least is None else f"from {least} to {most}"


@dataclass(frozen=True, slots=True)
class Given:
    """A value and where it stands."""

    value: Any
    place: str
    is_text: bool = True
    """True where only text can stand, which may mean a value of another type."""


def convert(given: Given, kind: Any, *, is_secret: bool = False) -> Any:
    """Return the value as `kind`: str, bool, int, float, Path, these or None, tuple[str, ...].

    Where there is only text, an empty one stands for None. Raises `InvalidRequest`, which quotes
    no secret.
    """
    kind, is_optional = without_none(kind)
    if is_optional and (given.value is None or (given.is_text and given.value == "")):
        return None
    what, converted = _KINDS[get_origin(kind) or kind]
    try:
        return converted(given)
    except (TypeError, ValueError, OverflowError):
        shown = "not" if is_secret else f"{given.value!r}, but must be"
        raise InvalidRequest(f"{given.place} is {shown} {what}") from None


def overlaid(usual: T, values: object, place: str) -> T:
    """Return the dataclass `usual` with these values of its fields, those of dataclasses within it
    too.

    Raises `InvalidRequest`, which names `place`, for an unknown field, a value of another type
    and one out of range.
    """
    if not isinstance(values, Mapping):
        raise InvalidRequest(f"{place} must be a table of fields")
    kinds = get_type_hints(type(usual))
    for name in values:
        if name not in kinds:
            raise InvalidRequest(f"{place} has {name!r}, but known are {', '.join(kinds)}")
    given = {
        name: _overlaid(getattr(usual, name), value, kinds[name], f"{name} of {place}")
        for name, value in values.items()
    }
    with refused_as(f"{place} can't be used:"):
        made: T = replace(usual, **given)  # type: ignore[type-var]  # a dataclass
        return made


def _overlaid(usual: Any, value: Any, kind: Any, place: str) -> Any:
    kind, is_optional = without_none(kind)
    if is_optional and value is None:
        return None
    if is_dataclass(kind):
        return overlaid(usual, value, place)
    if get_origin(kind) is Mapping:
        if not isinstance(value, Mapping):
            raise InvalidRequest(f"{place} is {value!r}, but must be a table")
        return value
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise InvalidRequest(f"{place} is {value!r}, but must be a list")
        inner = get_args(kind)[0]
        return tuple(_overlaid(None, item, inner, f"an item in {place}") for item in value)
    if issubclass(kind, Enum):
        return _member(kind, value, place)
    return convert(Given(value, place, is_text=False), kind)


def _member(kind: type[Enum], value: Any, place: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise InvalidRequest(f"{place} is {value!r}, but must be one of {known}") from None


def without_none(kind: Any) -> tuple[Any, bool]:
    """Return the type, and whether None is among its values."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind, False
    (some,) = [part for part in get_args(kind) if part is not type(None)]
    return some, True


def items(text: str) -> list[str]:
    """Return the parts between commas."""
    return [item.strip() for item in text.split(",") if item.strip()]


def parse_numbers(name: str, text: str) -> tuple[int, ...]:
    """Return the numbers of a list with commas. Raises `InvalidRequest`, which names the option."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest(f"{name} is {text!r}, but must be numbers as 1,4,16") from None


def _bool(given: Given) -> Any:
    if given.is_text:
        word = given.value.strip().lower()
        if word not in _TRUE | _FALSE:
            raise ValueError(word)
        return word in _TRUE
    return _of(given.value, bool)


def _float(given: Given) -> Any:
    value = float(given.value if given.is_text else _of(given.value, int, float))
    if not math.isfinite(value):
        raise ValueError(value)
    return value


def _path(given: Given) -> Any:
    if given.value == "":
        raise ValueError(given.value)
    return path_of(str(_of(given.value, str, type(Path()))))


def _list(given: Given) -> Any:
    if given.is_text:
        return tuple(items(given.value))
    return tuple(_of(item, str) for item in _of(given.value, list, tuple))


def _of(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:  # a bool is an int, but none was meant
        raise TypeError(value)
    return value


_KINDS: Mapping[Any, tuple[str, Callable[[Given], Any]]] = {
    str: ("text", lambda given: _of(given.value, str)),
    bool: ("true or false", _bool),
    int: ("a whole number", lambda it: int(it.value) if it.is_text else _of(it.value, int)),
    float: ("a finite number", _float),
    Path: ("a path", _path),
    tuple: ("a list of texts", _list),
}

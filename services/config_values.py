"""From what was written or typed to the value of an option. Knows no files, variables or flags."""

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from slipstream.core.errors import InvalidRequest

_TRUE, _FALSE = frozenset({"1", "true", "yes"}), frozenset({"0", "false", "no"})


@dataclass(frozen=True, slots=True)
class Given:
    """A value and where it stands."""

    value: Any
    place: str
    is_text: bool = True
    """All that can be said there is text, which may mean a value of another type."""


def convert(given: Given, kind: Any) -> Any:
    """The value as `kind`: str, bool, int, float, Path, one of them or None, tuple[str, ...].

    Where there is only text, an empty one stands for None. Raises `InvalidRequest`.
    """
    kind, is_optional = without_none(kind)
    if is_optional and (given.value is None or (given.is_text and given.value == "")):
        return None
    what, converted = _KINDS[get_origin(kind) or kind]
    try:
        return converted(given)
    except (TypeError, ValueError):
        raise InvalidRequest(f"{given.place} is {given.value!r}, but must be {what}") from None


def without_none(kind: Any) -> tuple[Any, bool]:
    """The type, and whether None is among its values."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind, False
    (some,) = [part for part in get_args(kind) if part is not type(None)]
    return some, True


def items(text: str) -> list[str]:
    """What stands between commas."""
    return [item.strip() for item in text.split(",") if item.strip()]


def _text(given: Given) -> Any:
    return _of(given.value, str)


def _bool(given: Given) -> Any:
    if given.is_text:
        word = given.value.strip().lower()
        if word not in _TRUE | _FALSE:
            raise ValueError(word)
        return word in _TRUE
    return _of(given.value, bool)


def _int(given: Given) -> Any:
    return int(given.value) if given.is_text else _of(given.value, int)


def _float(given: Given) -> Any:
    value = float(given.value if given.is_text else _of(given.value, int, float))
    if not math.isfinite(value):
        raise ValueError(value)
    return value


def _path(given: Given) -> Any:
    if given.value == "":
        raise ValueError(given.value)
    return Path(_of(given.value, str, type(Path()))).expanduser()


def _list(given: Given) -> Any:
    if given.is_text:
        return tuple(items(given.value))
    return tuple(_of(item, str) for item in _of(given.value, list, tuple))


def _of(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:  # a bool is an int, but none was meant
        raise TypeError(value)
    return value


_KINDS: Mapping[Any, tuple[str, Callable[[Given], Any]]] = {
    str: ("text", _text),
    bool: ("true or false", _bool),
    int: ("a whole number", _int),
    float: ("a finite number", _float),
    Path: ("a path", _path),
    tuple: ("a list of texts", _list),
}

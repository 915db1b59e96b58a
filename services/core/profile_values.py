"""A profile as plain values and back, strictly. Pure; knows nothing of files or models.

Generic over the fields of `Profile`: whatever is added there is written and read here.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from slipstream.core.errors import InvalidRequest
from slipstream.core.profile import Profile


def profile_values(profile: Profile) -> dict[str, Any]:
    """Every field as JSON takes it."""
    values = _plain(profile)
    assert isinstance(values, dict)
    return values


def profile_from_values(values: object, *, place: str) -> Profile:
    """The profile of these values; what is not among them keeps its default.

    Raises `InvalidRequest`, which names `place`, for an unknown field, a value of another type
    and one out of range.
    """
    profile = _built(values, Profile, place)
    assert isinstance(profile, Profile)
    return profile


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {at.name: _plain(getattr(value, at.name)) for at in fields(value)}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _built(values: object, kind: Any, place: str) -> Any:
    if not isinstance(values, Mapping):
        raise InvalidRequest(f"{place} is no object of fields")
    kinds = get_type_hints(kind)
    known = [at.name for at in fields(kind)]
    for name in values:
        if name not in known:
            raise InvalidRequest(f"{place} has {name!r}, but known are {', '.join(known)}")
    given = {
        name: _read(value, kinds[name], f"{name} of {place}") for name, value in values.items()
    }
    try:
        return kind(**given)
    except InvalidRequest as error:
        raise InvalidRequest(f"{place} can't be used: {error}") from None


def _read(value: Any, kind: Any, place: str) -> Any:
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (part for part in get_args(kind) if part is not type(None))
        if value is None:
            return None
    if is_dataclass(kind):
        return _built(value, kind, place)
    if get_origin(kind) is tuple:
        return _items(value, get_args(kind)[0], place)
    if issubclass(kind, Enum):
        return _member(value, kind, place)
    return _scalar(value, kind, place)


def _items(value: Any, kind: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{place} is {value!r}, but must be a list")
    return tuple(_scalar(item, kind, f"an item in {place}") for item in value)


def _member(value: Any, kind: type[Enum], place: str) -> Enum:
    known = {member.value: member for member in kind}
    if not isinstance(value, str) or value not in known:
        raise InvalidRequest(f"{place} is {value!r}, but must be one of {', '.join(known)}")
    return known[value]


def _scalar(value: Any, kind: type, place: str) -> Any:
    wanted = (int, float) if kind is float else (kind,)
    # A bool is an int, but none was meant; and no field takes what is no number.
    if type(value) not in wanted or (kind is float and not math.isfinite(value)):
        raise InvalidRequest(f"{place} is {value!r}, but must be of the kind {kind.__name__}")
    return float(value) if kind is float else value

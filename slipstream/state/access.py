"""Authentication for the public API: a bearer token whose digest is in the file of keys."""

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.core.errors import InvalidRequest, Unauthenticated, check, refused_as
from slipstream.files import ReloadedFiles, parse_toml, read_text, warn_of_readers
from slipstream.state.quotas import QuotaLimits

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LIMITS = tuple(field.name for field in fields(QuotaLimits))
_KNOWN = ("sha256", *_LIMITS, "expires")


@dataclass(frozen=True, slots=True)
class Entry:
    """An API key as the file has it. Without a name it stands for no key, where none is needed."""

    name: str = ""
    sha256: str = ""
    """SHA-256 of the bearer token: 64 lower-case hexadecimal digits."""
    limits: QuotaLimits = field(default_factory=QuotaLimits)
    expires: date | None = None
    """First day, in UTC, on which the key is refused."""


def read_keys(path: Path) -> tuple[Entry, ...]:
    """Return the keys of a file. Raises `InvalidRequest` for a file that is broken."""
    return parse_keys(read_text(path), str(path))


def parse_keys(text: str, path: str) -> tuple[Entry, ...]:
    """Return the keys of a text; errors name it `path`. Raises `InvalidRequest`."""
    tables = parse_toml(text, path)
    for name in tables:
        if name != "keys":
            raise InvalidRequest(f"{path} has {name!r}, but all there may be is tables [keys.NAME]")
    keys = tables.get("keys")
    if not isinstance(keys, dict):
        raise InvalidRequest(f"{path} has no key in it: it needs a table [keys.NAME]")
    entries = tuple(_entry(name, values, path) for name, values in keys.items())
    _check_apart(entries, path)
    return entries


def check_name(name: str) -> str:
    """Return the name of a key. Raises `InvalidRequest` unless it is one."""
    is_right = _NAME.fullmatch(name) is not None
    check(is_right, "the key's name", name[:80], "1 to 64 letters, digits, - and _")
    return name


def render(entry: Entry) -> str:
    lines = [f"[keys.{entry.name}]", f'sha256 = "{entry.sha256}"']
    lines += [f"{name} = {limit}" for name, limit in entry.limits.given().items()]
    lines += [] if entry.expires is None else [f"expires = {entry.expires.isoformat()}"]
    return "\n".join([*lines, ""])


def _entry(name: str, values: Any, path: str) -> Entry:
    place = f"[keys.{name}] of {path}"
    with refused_as(f"in {path}"):
        check_name(name)
    if not isinstance(values, dict):
        raise InvalidRequest(f"{path} has the key {name!r} as a value, but it must be a table")
    for found in values:
        if found not in _KNOWN:
            raise InvalidRequest(f"{place} has {found!r}, but known are {', '.join(_KNOWN)}")
    with refused_as(f"in {place}"):
        limits = QuotaLimits(**{limit: values[limit] for limit in _LIMITS if limit in values})
    return Entry(name, _digest(values.get("sha256"), place), limits, _day(values, place))


def _digest(value: Any, place: str) -> str:
    # What stands there instead may be the token itself, so it is counted and not shown.
    if not isinstance(value, str) or not _DIGEST.fullmatch(value.lower()):
        what = f"a text of {len(value)} characters" if isinstance(value, str) else "no text"
        raise InvalidRequest(
            f"sha256 in {place} is {what}, but must be the 64 hexadecimal digits of a token's"
            " SHA-256"
        )
    return value.lower()


def _day(values: dict[str, Any], place: str) -> date | None:
    value = values.get("expires")
    if value is not None and type(value) is not date:  # a moment is a day, too, but more than that
        raise InvalidRequest(f"expires in {place} is {str(value)!r}, but must be a day, 2027-01-31")
    return value


def _check_apart(entries: tuple[Entry, ...], path: str) -> None:
    seen: dict[str, str] = {}
    for entry in entries:
        other = seen.setdefault(entry.sha256, entry.name)
        if other != entry.name:
            raise InvalidRequest(
                f"{path} has one sha256 for the keys {other!r} and {entry.name!r}, but each token"
                " belongs to one key"
            )


CHECK_S = 1.0
"""Shortest interval of checks whether the file has changed."""
_PREFIX = "Bearer "

Metadata = Sequence[tuple[str, str | bytes]]


class Access:
    """Authentication by the keys of a file, read again on changes; without one all may call."""

    def __init__(
        self,
        path: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], date] = lambda: datetime.now(UTC).date(),
    ) -> None:
        """Raises `InvalidRequest` for a file that is broken or has no key."""
        self._clock, self._today = clock, today
        self._checked_s = clock()
        self._keys = (
            None if path is None else ReloadedFiles((path,), partial(_watched, path), "keys")
        )
        if self._keys is not None and not self._keys.value:
            raise InvalidRequest(f"{path} has no key in it, so every request would be refused")

    def check(self, metadata: Metadata | None) -> Entry:
        """Return the key of the bearer token. Raises `Unauthenticated` for a token of no key.

        Takes as long for every wrong token, so that none can be guessed bit by bit.
        """
        if self._keys is None:
            return Entry()
        if (now_s := self._clock()) - self._checked_s >= CHECK_S:
            self._checked_s = now_s
            self._keys.refresh()
        shown = hashlib.sha256(_token(metadata)).hexdigest()
        found = [entry for entry in self._keys.value if hmac.compare_digest(shown, entry.sha256)]
        if not found:
            raise Unauthenticated("the bearer token is not known here")
        entry = found[0]
        if entry.expires is not None and entry.expires <= self._today():
            raise Unauthenticated(f"the token of the key {entry.name!r} has expired")
        return entry


def _watched(path: Path) -> tuple[Entry, ...]:
    entries = read_keys(path)
    warn_of_readers(path)
    return entries


def _token(metadata: Metadata | None) -> bytes:
    shown = [value for key, value in metadata or () if key.lower() == "authorization"]
    if len(shown) != 1 or not str(shown[0]).startswith(_PREFIX):
        raise Unauthenticated("the call has no bearer token")
    return str(shown[0]).removeprefix(_PREFIX).encode()

"""Who may use the public API: whoever shows a token whose digest is in the file of keys."""

import hashlib
import hmac
import logging
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path

from slipstream.core.errors import InvalidRequest, Unauthenticated
from slipstream.router.key_file import Entry, read_keys
from slipstream.state.quotas import QuotaLimits

CHECK_S = 1.0
"""How often, at most, the file is looked at."""
_PREFIX = "Bearer "
_LOG = logging.getLogger("slipstream.router")

Metadata = Sequence[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class Key:
    """Who calls, and what that one may ask for. The name is empty where nobody needs a token."""

    name: str = ""
    limits: QuotaLimits = field(default_factory=QuotaLimits)


class Access:
    """The keys of a file, read again when it changes. Without a file, everybody may."""

    def __init__(
        self,
        path: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], date] = lambda: datetime.now(UTC).date(),
    ) -> None:
        """Raises `InvalidRequest` for a file that is broken or has no key."""
        self._path, self._clock, self._today = path, clock, today
        self._checked_s = clock()
        self._state = None if path is None else _state(path)
        self._entries: tuple[Entry, ...] = () if path is None else read_keys(path)
        if path is not None:
            if not self._entries:
                raise InvalidRequest(f"{path} has no key in it, so nobody could be let in")
            _warn_of_readers(path, self._state)

    def check(self, metadata: Metadata | None) -> Key:
        """Whose token is shown. Raises `Unauthenticated` unless it is that of a key.

        Takes as long for every wrong token, so that none can be guessed bit by bit.
        """
        if self._path is None:
            return Key()
        self._follow(self._path)
        shown = hashlib.sha256(_token(metadata)).hexdigest()
        found = [entry for entry in self._entries if hmac.compare_digest(shown, entry.sha256)]
        if not found:
            raise Unauthenticated("the bearer token is not known here")
        entry = found[0]
        if entry.expires is not None and entry.expires <= self._today():
            raise Unauthenticated(f"the token of the key {entry.name!r} has expired")
        return Key(entry.name, entry.limits)

    def _follow(self, path: Path) -> None:
        """Have the file's keys if it has changed; those of before while it is broken."""
        now_s = self._clock()
        if now_s - self._checked_s < CHECK_S:
            return
        self._checked_s = now_s
        state = _state(path)
        if state == self._state:
            return
        self._state = state
        try:
            self._entries = read_keys(path)
        except InvalidRequest as error:
            _LOG.error("the keys stay as they were: %s", error)
            return
        _LOG.info("%s has changed: %d keys open this router", path, len(self._entries))
        _warn_of_readers(path, state)


@dataclass(frozen=True, slots=True)
class _State:
    """What tells one version of a file from another."""

    modified_ns: int
    num_bytes: int
    inode: int
    mode: int


def _state(path: Path) -> _State | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return _State(found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)


def _warn_of_readers(path: Path, state: _State | None) -> None:
    if state is not None and state.mode & stat.S_IROTH:
        _LOG.warning("everybody on this machine can read %s; chmod o-r would change that", path)


def _token(metadata: Metadata | None) -> bytes:
    shown = [value for key, value in metadata or () if key.lower() == "authorization"]
    if len(shown) != 1 or not str(shown[0]).startswith(_PREFIX):
        raise Unauthenticated("the call shows no bearer token")
    return str(shown[0]).removeprefix(_PREFIX).encode()

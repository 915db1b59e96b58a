"""Certificates and keys in files: read, checked, and read again once the files have changed."""

import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from slipstream.core.errors import InvalidRequest
from slipstream.files import read_bytes, warn_of_readers

_LOG = logging.getLogger("slipstream.rpc")

Stamp = tuple[tuple[int, int, int] | None, ...]
"""State of files, which changes once any of them has been written or replaced."""

T = TypeVar("T")


def stamp_of(files: Sequence[Path]) -> Stamp:
    """Return the files' states by a `stat` of each. None for one that can't be looked at."""
    return tuple(map(_stamp, files))


def read_pair(cert: Path, key: Path) -> tuple[bytes, bytes]:
    """A certificate and its private key. `InvalidRequest` unless they are, and belong together."""
    pair = read_bytes(cert), read_bytes(key)
    try:
        # With a password, OpenSSL never asks for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except OSError as error:  # ssl.SSLError is one
        raise InvalidRequest(
            f"{cert} and {key} are not a certificate and its private key ({_reason(error)})"
        ) from None
    warn_of_readers(key)
    return pair


def read_authority(path: Path) -> bytes:
    """Certificates to trust. `InvalidRequest` for a file that holds none, or half of one."""
    data = read_bytes(path)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_verify_locations(cadata=data.decode("ascii", "replace"))
    except (OSError, TypeError) as error:
        raise InvalidRequest(f"{path} holds no certificates to trust ({_reason(error)})") from None
    return data


class ReloadedFiles(Generic[T]):
    """Value that is read from files, and read again once they have changed and are whole."""

    def __init__(self, files: Sequence[Path], load: Callable[[], T]) -> None:
        """Raises `InvalidRequest` if `load` does; nothing raises from then on."""
        self._files = tuple(files)
        self._load = load
        self._refused: Stamp | None = None
        self.stamp = stamp_of(self._files)
        """State of the files from which `value` was loaded."""
        self.value = load()

    def refresh(self) -> bool:
        """Look at the files; whether there is another value now.

        Files that are broken, or only half written, change nothing, and are logged once.
        """
        stamp = stamp_of(self._files)
        if stamp in (self.stamp, self._refused):
            return False
        try:
            value = self._load()
        except InvalidRequest as error:
            self._refused = stamp
            _LOG.warning("certificates stay as they were: %s", error)
            return False
        if stamp_of(self._files) != stamp:
            return False  # being written right now: the next look finds them whole
        self.stamp, self.value, self._refused = stamp, value, None
        _LOG.info("certificates are read anew: %s", ", ".join(map(str, self._files)))
        return True


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _reason(error: Exception) -> str:
    reason: str | None = getattr(error, "reason", None)
    return (reason or getattr(error, "strerror", None) or str(error)).lower().replace("_", " ")

"""Files that people and commands write: read whole and within bounds, written whole or not."""

import json
import logging
import os
import stat
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from slipstream.core.errors import InvalidRequest, SlipstreamError

MAX_BYTES = 64 << 20
"""Largest file that is read whole, weights and training data excepted."""
_BLOCK = 1 << 20
_LOG = logging.getLogger("slipstream.files")

Refusal = type[SlipstreamError]
T = TypeVar("T")


def path_of(name: str) -> Path:
    """Return the path that a text names, ~ expanded where there is such a user."""
    return Path(os.path.expanduser(name))


def read_bytes(
    path: Path, *, refusal: Refusal = InvalidRequest, max_bytes: int = MAX_BYTES, pipe: bool = False
) -> bytes:
    """Return the bytes of a file, or with `pipe` of a pipe, too.

    Raises `refusal` for one that can't be read, is larger, or has no end, as a device.
    """
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or (pipe and stat.S_ISFIFO(mode))):
            raise OSError("it is no regular file")
        # Without a process that writes, a pipe ends at once.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            os.set_blocking(handle, True)
            data = read_within(file, max_bytes)
    except (OSError, ValueError) as error:  # a name may have characters that no file's has
        reason = getattr(error, "strerror", None) or error
        raise refusal(f"{path} can't be read ({reason})") from None
    if len(data) > max_bytes:
        raise refusal(f"{path} can't be read (it has more than {max_bytes} bytes)")
    return data


def read_within(file: IO[bytes] | BufferedIOBase, max_bytes: int) -> bytes:
    """Return what a file has, or somewhat more than `max_bytes` of it, in memory of that size."""
    parts, left = [], max_bytes + 1
    while left > 0 and (part := file.read(_BLOCK)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def read_text(path: Path, *, refusal: Refusal = InvalidRequest, pipe: bool = False) -> str:
    """Return the text of a file. Raises `refusal` as `read_bytes` does, and without UTF-8."""
    return as_text(read_bytes(path, refusal=refusal, pipe=pipe), str(path), refusal)


def read_secret(path: Path) -> str:
    """Return the text of a file or pipe, and log a warning where all users can read it."""
    text = read_text(path, pipe=True)
    warn_of_readers(path)
    return text


def read_token(path: Path) -> str:
    """Return the bearer token in a file. Raises `InvalidRequest` for a file without one."""
    token = read_secret(path).strip()
    if not token:
        raise InvalidRequest(f"{path} holds no token")
    return token


def warn_of_readers(path: Path) -> None:
    """Log a warning where all users of this machine can read a file."""
    with suppress(OSError):  # removed meanwhile
        if path.stat().st_mode & stat.S_IROTH:
            _LOG.warning("all users of this machine can read %s; chmod o-r would change that", path)


def as_text(data: bytes, place: str, refusal: Refusal = InvalidRequest) -> str:
    """Return bytes as text. Raises `refusal`, with the place, for what is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise refusal(f"{place} can't be read (it is not UTF-8 text)") from None


def parse_json(text: str | bytes, place: str, refusal: Refusal = InvalidRequest) -> Any:
    """Return the value of JSON. Raises `refusal`, with the place, for anything else."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refusal(f"{place} is not JSON ({error})") from None


def json_lines(
    lines: Iterable[str], place: str, refusal: Refusal = InvalidRequest
) -> Iterator[tuple[str, Any]]:
    """Yield the value of each line that is not blank, with its place. Raises `refusal`."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{place}, line {number}"
            yield where, parse_json(line, where, refusal)


def parse_toml(text: str, place: str) -> dict[str, Any]:
    """Return the tables of TOML. Raises `InvalidRequest`, with the place, for anything else."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{place} is not TOML ({error})") from None


def write_whole(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Replace a file, which its owner alone can read until it is complete.

    Without `mode`, the owner and the mode of a file that exists stay, and a new one has 0600.
    Raises `InvalidRequest` where that fails.
    """
    try:
        _replace(path.resolve(), data, mode)  # a link stays one
    except OSError as error:
        raise InvalidRequest(f"{path} can't be written ({error.strerror})") from None


def make_folder(path: Path) -> None:
    """Make a directory, where there is none. Raises `InvalidRequest` where that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"{path} can't be written ({error.strerror})") from None


def write_json(path: Path, values: Any) -> None:
    """Write JSON that all users can read, whole or not at all. Raises as `write_whole` does."""
    text = json.dumps(values, indent=2, allow_nan=False) + "\n"
    write_whole(path, text.encode(), mode=0o644)


def _replace(path: Path, data: bytes, mode: int | None) -> None:
    before = path.stat() if mode is None and path.exists() else None
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if before is not None:
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
                mode = before.st_mode & 0o777
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


Stamp = tuple[tuple[int, ...] | None, ...]
"""State of files, which changes once any of them has been written or replaced."""


def stamp_of(files: Sequence[Path]) -> Stamp:
    """Return the files' states by a `stat` of each. None for one that can't be looked at."""
    return tuple(map(_stamp, files))


class ReloadedFiles(Generic[T]):
    """Value that is read from files, and read again once they have changed and are whole."""

    def __init__(
        self, files: Sequence[Path], load: Callable[[], T], what: str = "certificates"
    ) -> None:
        """Raises `InvalidRequest` if `load` does; nothing raises from then on. The log calls the
        value `what`."""
        self._files, self._what = tuple(files), what
        self._load = load
        self._refused: Stamp | None = None
        self.stamp = stamp_of(self._files)
        """State of the files from which `value` was loaded."""
        self.value = load()

    def refresh(self) -> bool:
        """Look at the files; whether there is another value now. Broken files are logged once."""
        stamp = stamp_of(self._files)
        if stamp in (self.stamp, self._refused):
            return False
        try:
            value = self._load()
        except InvalidRequest as error:
            self._refused = stamp
            _LOG.warning("the %s stay as they were: %s", self._what, error)
            return False
        if stamp_of(self._files) != stamp:
            return False  # being written right now: the next look finds them whole
        self.stamp, self.value, self._refused = stamp, value, None
        _LOG.info("the %s are read anew: %s", self._what, ", ".join(map(str, self._files)))
        return True


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode

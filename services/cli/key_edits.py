"""Changes to a file of keys: the rest of it stays as it was written, and nobody sees half of it."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.core.errors import InvalidRequest
from slipstream.router.key_file import Entry, parse_keys, render

_NO_KEYS = "[keys]\n"
"""What a router takes as none, while a file that is merely empty changes nothing for it."""


def add_key(path: Path, entry: Entry) -> None:
    """Add a key, also to a file that is not there. Raises `InvalidRequest`."""
    with _alone(path):
        text, entries = _content(path)
        if any(known.name == entry.name for known in entries):
            raise InvalidRequest(f"{path} has a key {entry.name!r} already; revoke it first")
        before = f"{text.rstrip()}\n\n" if text.strip() else ""
        _put(path, before + render(entry), (*entries, entry))


def remove_key(path: Path, name: str) -> None:
    """Take a key out. Raises `InvalidRequest` where there is none of the name."""
    with _alone(path):
        text, entries = _content(path, must_exist=True)
        left = tuple(entry for entry in entries if entry.name != name)
        if len(left) == len(entries):
            known = ", ".join(entry.name for entry in entries) or "none"
            raise InvalidRequest(f"{path} has no key {name!r}; there are {known}")
        shorter = _without(text, name)
        if shorter == text:
            raise InvalidRequest(f"{path} has no line [keys.{name}]: take the key out by hand")
        _put(path, shorter if left else _NO_KEYS + shorter.replace(_NO_KEYS, ""), left)


def _content(path: Path, *, must_exist: bool = False) -> tuple[str, tuple[Entry, ...]]:
    """A file's text and keys."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if must_exist:
            raise InvalidRequest(f"{path} is not there") from None
        return "", ()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path} is not UTF-8 text") from None
    return text, parse_keys(text, str(path)) if text.strip() else ()


def _without(text: str, name: str) -> str:
    """The text without a key's table; what is said above the next table stays with that."""
    lines = text.splitlines(keepends=True)
    heads = [number for number, line in enumerate(lines) if line.lstrip().startswith("[")]
    mine = [at for at in heads if lines[at].split("#")[0].strip() == f"[keys.{name}]"]
    if not mine:
        return text
    end = next((at for at in heads if at > mine[0]), len(lines))
    while not lines[end - 1].split("#")[0].strip() and end < len(lines):
        end -= 1
    while end < len(lines) and not lines[end].strip():
        end += 1
    return "".join([*lines[: mine[0]], *lines[end:]]).strip("\n") + "\n"


def _put(path: Path, text: str, entries: tuple[Entry, ...]) -> None:
    """Write what must mean these keys."""
    if parse_keys(text, str(path)) != entries:
        raise InvalidRequest(f"{path} is not laid out in tables [keys.NAME]: change it by hand")
    path = path.resolve()  # a link stays one
    before = path.stat() if path.exists() else None
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            if before is not None:  # whoever could read it still can
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), before.st_mode & 0o777)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Be the only one who changes files of this folder; what can't be done becomes a sentence."""
    try:
        folder = os.open(path.resolve().parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
    except OSError as error:
        raise InvalidRequest(f"{path} can't be changed ({error.strerror})") from None

"""Changes to a file of API keys: the rest of it stays as it was written."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.core.errors import InvalidRequest
from slipstream.files import read_text, write_whole
from slipstream.state.access import Entry, parse_keys, render

_NO_KEYS = "[keys]\n"
"""A file without keys; routers ignore one that is empty, which may be half written."""


def add_key(path: Path, entry: Entry) -> None:
    """Add a key; the file need not exist. Raises `InvalidRequest` for a name that it has."""
    with _alone(path):
        text, entries = _content(path)
        if any(known.name == entry.name for known in entries):
            raise InvalidRequest(f"{path} has a key {entry.name!r} already; revoke it first")
        before = f"{text.rstrip()}\n\n" if text.strip() else ""
        _put(path, before + render(entry), (*entries, entry))


def remove_key(path: Path, name: str) -> None:
    """Remove a key. Raises `InvalidRequest` for a name that the file does not have."""
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
    """Return the text and the keys of a file."""
    if not path.exists():
        if must_exist:
            raise InvalidRequest(f"{path} is not there")
        return "", ()
    text = read_text(path)
    return text, parse_keys(text, str(path)) if text.strip() else ()


def _without(text: str, name: str) -> str:
    """Return the text without a key's table; comments above the next table stay with that."""
    lines = text.splitlines(keepends=True)
    heads = [number for number, line in enumerate(lines) if line.lstrip().startswith("[")]
    mine = [index for index in heads if lines[index].split("#")[0].strip() == f"[keys.{name}]"]
    if not mine:
        return text
    end = next((index for index in heads if index > mine[0]), len(lines))
    while not lines[end - 1].split("#")[0].strip() and end < len(lines):
        end -= 1
    while end < len(lines) and not lines[end].strip():
        end += 1
    return "".join([*lines[: mine[0]], *lines[end:]]).strip("\n") + "\n"


def _put(path: Path, text: str, entries: tuple[Entry, ...]) -> None:
    """Write the text, which must mean these keys."""
    if parse_keys(text, str(path)) != entries:
        raise InvalidRequest(f"{path} is not laid out in tables [keys.NAME]: change it by hand")
    write_whole(path, text.encode())


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Lock the folder against other changes. Raises `InvalidRequest` where that fails."""
    try:
        folder = os.open(path.resolve().parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
    except OSError as error:
        raise InvalidRequest(f"{path} can't be changed ({error.strerror})") from None

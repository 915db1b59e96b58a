"""`slipstream keys`: the API keys of routers, and their limits."""

import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from slipstream.core.errors import InvalidRequest
from slipstream.files import read_text, write_whole
from slipstream.state.access import Entry, check_name, parse_keys, read_keys, render
from slipstream.state.quotas import QuotaLimits

app = typer.Typer(help="Make, list and revoke keys of routers.", no_args_is_help=True)

TOKEN_PREFIX = "slip_"
"""Beginning of every token, by which scanners for leaked secrets find one."""
_TOKEN_BYTES = 32
_NO_KEYS = "[keys]\n"
"""A file without keys; routers ignore one that is empty, which may be half written."""
_TABLE = re.compile(r"^(?=[ \t]*\[)", re.MULTILINE)
_COMMENTS = re.compile(r"^(?:[ \t]*(?:#.*)?\n)*\Z", re.MULTILINE)
"""Lines behind a table that hold no value."""

Name = Annotated[str, typer.Argument(help="Letters, digits, - and _.")]
File = Annotated[Path, typer.Option("--file", help="The key file of routers (key_file).")]
PerMinute = Annotated[int | None, typer.Option(help="Maximum in a minute.")]
AtOnce = Annotated[int | None, typer.Option(help="Maximum number of requests at once.")]
Day = Annotated[
    datetime | None,
    typer.Option(formats=["%Y-%m-%d"], help="First day on which it is refused, as 2027-01-31."),
]


@app.command()
def new(
    name: Name,
    file: File,
    requests_per_minute: PerMinute = None,
    tokens_per_minute: PerMinute = None,
    max_concurrent: AtOnce = None,
    expires: Day = None,
) -> None:
    """Add a key and print its token, which is stored nowhere else.

    The file has the token's SHA-256. Routers read it within a second.
    """
    token = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    digest = hashlib.sha256(token.encode()).hexdigest()
    limits = QuotaLimits(requests_per_minute, tokens_per_minute, max_concurrent)
    add_key(file, Entry(check_name(name), digest, limits, expires and expires.date()))
    typer.echo(token)


@app.command("list")
def list_(file: File) -> None:
    """Show the keys and their limits."""
    today = datetime.now(UTC).date()
    for entry in read_keys(file):
        about = [f"{name} {limit}" for name, limit in entry.limits.given().items()]
        if entry.expires is not None:
            about.append(f"{'expired' if entry.expires <= today else 'expires'} {entry.expires}")
        typer.echo(f"{entry.name}  {', '.join(about) or 'no limits'}")


@app.command()
def revoke(name: Name, file: File) -> None:
    """Remove a key from the file: routers refuse its token within a second."""
    remove_key(file, name)


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
    if not path.exists():
        if must_exist:
            raise InvalidRequest(f"{path} is not there")
        return "", ()
    text = read_text(path)
    return text, parse_keys(text, str(path)) if text.strip() else ()


def _without(text: str, name: str) -> str:
    """Return the text without a key's table; comments above the next table stay with that."""
    tables = _TABLE.split(f"{text.rstrip()}\n")
    for index, table in enumerate(tables):
        if table.partition("\n")[0].split("#")[0].strip() == f"[keys.{name}]":
            tables[index] = _COMMENTS.findall(table)[0].lstrip("\n")
            return "".join(tables).strip("\n") + "\n"
    return text


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

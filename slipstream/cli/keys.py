"""`slipstream keys`: API keys of routers, with their limits."""

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.flags import with_flags
from slipstream.core.errors import InvalidRequest
from slipstream.files import read_text, write_whole
from slipstream.state.access import Entry, check_name, parse_keys, render
from slipstream.state.quotas import QuotaLimits

app = typer.Typer(help="Make keys of routers.", no_args_is_help=True)

TOKEN_PREFIX = "slip_"
"""Beginning of every token, by which scanners for leaked secrets find one."""
_TOKEN_BYTES = 32

Name = Annotated[str, typer.Argument(help="Letters, digits, - and _.")]
File = Annotated[Path, typer.Option("--file", help="The key file of routers (key_file).")]
Day = Annotated[
    datetime | None,
    typer.Option(formats=["%Y-%m-%d"], help="First day on which it is refused, as 2027-01-31."),
]


@app.command()
@with_flags
def new(*, name: Name, file: File, limits: QuotaLimits, expires: Day = None) -> None:
    """Add a key and print its token, which is stored nowhere else.

    The file has the token's SHA-256. Routers read it within a second.
    """
    token = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    digest = hashlib.sha256(token.encode()).hexdigest()
    add_key(file, Entry(check_name(name), digest, limits, expires and expires.date()))
    typer.echo(token)


def add_key(path: Path, entry: Entry) -> None:
    """Add a key; the file need not exist. Raises `InvalidRequest` for a name that it has."""
    with _alone(path):
        text = read_text(path) if path.exists() else ""
        entries = parse_keys(text, str(path)) if text.strip() else ()
        if any(known.name == entry.name for known in entries):
            raise InvalidRequest(f"{path} has a key {entry.name!r} already; take it out first")
        longer = (f"{text.rstrip()}\n\n" if text.strip() else "") + render(entry)
        parse_keys(longer, str(path))  # not where the others stand in one value
        write_whole(path, longer.encode())


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

"""`slipstream keys`: the API keys of routers, and their limits."""

import hashlib
import secrets
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import typer

from slipstream.core.errors import InvalidRequest

app = typer.Typer(help="Make, list and revoke keys of routers.", no_args_is_help=True)

TOKEN_PREFIX = "slip_"
"""Beginning of every token, by which scanners for leaked secrets find one."""
_TOKEN_BYTES = 32

Name = Annotated[str, typer.Argument(help="Letters, digits, - and _.")]
File = Annotated[Path, typer.Option("--file", help="The key file of routers (key_file).")]
PerMinute = Annotated[int | None, typer.Option(help="Maximum in a minute.")]
AtOnce = Annotated[int | None, typer.Option(help="Maximum number of requests at once.")]
Day = Annotated[str | None, typer.Option(help="First day on which it is refused, as 2027-01-31.")]


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
    from slipstream.cli.key_edits import add_key
    from slipstream.state.access import Entry, check_name
    from slipstream.state.quotas import QuotaLimits

    token = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    digest = hashlib.sha256(token.encode()).hexdigest()
    limits = QuotaLimits(requests_per_minute, tokens_per_minute, max_concurrent)
    add_key(file, Entry(check_name(name), digest, limits, _day(expires)))
    typer.echo(token)


@app.command("list")
def list_(file: File) -> None:
    """Show the keys and their limits."""
    from slipstream.state.access import read_keys

    today = datetime.now(UTC).date()
    for entry in read_keys(file):
        about = [f"{name} {limit}" for name, limit in entry.limits.given().items()]
        if entry.expires is not None:
            about.append(f"{'expired' if entry.expires <= today else 'expires'} {entry.expires}")
        typer.echo(f"{entry.name}  {', '.join(about) or 'no limits'}")


@app.command()
def revoke(name: Name, file: File) -> None:
    """Remove a key from the file: routers refuse its token within a second."""
    from slipstream.cli.key_edits import remove_key

    remove_key(file, name)


def _day(text: str | None) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"expires is {text!r}, but must be a day, 2027-01-31") from None

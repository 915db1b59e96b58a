"""`slipstream certs`: certificates to try TLS with, from an authority of their own."""

from pathlib import Path
from typing import Annotated

import typer

from slipstream.core.errors import InvalidRequest

app = typer.Typer(help="Make certificates for TLS between services.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="Where the files go; made if it is not there.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(help="Name or IP address that services are dialled by; repeatable."),
]
Days = Annotated[int, typer.Option(help="How long the certificates are valid.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite, with a new authority.")]


@app.callback()
def _group() -> None:
    """Make certificates for TLS between services."""


@app.command()
def dev(folder: Folder, host: Hosts = None, days: Days = 30, force: Force = False) -> None:
    """Make an authority, and a certificate and key for router, target, draft, redis and client.

    They are for localhost, 127.0.0.1, ::1 and the hosts named, and carry their role's name. Keep
    ca.key to yourself: its holder can impersonate any of them.
    """
    try:
        from slipstream.cli.authority import CertificateOptions, make_certificates
    except ImportError:
        raise InvalidRequest(
            "certificates need the cryptography package: pip install 'slipstream[serve]'"
        ) from None
    make_certificates(folder, CertificateOptions(tuple(host or ()), days), overwrite=force)
    typer.echo(f"Certificates for {days} days are in {folder}.")

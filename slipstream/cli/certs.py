"""`slipstream certs`: certificates to try TLS with, from an authority of their own."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.cert_files import AUTHORITY, ROLES, cert_path, key_path
from slipstream.core.errors import InvalidRequest

app = typer.Typer(help="Make certificates for TLS between services.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="Where the files go; made if it is not there.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(help="Name or IP address that services are dialled by; repeatable."),
]
Days = Annotated[int, typer.Option(help="How long the certificates are valid.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite, with a new authority.")]

# Allowed clients: routers call targets and drafts, and drafts read keys and values at targets.
_CALLERS = {
    "target": "--tls-client-names router --tls-draft-names draft",
    "draft": "--tls-client-names router",
}
_CALLING = ("router", "draft")


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
    typer.echo(f"Certificates for {days} days are in {folder}. With these options all is mutual:")
    for role in ROLES:
        typer.echo(f"\n{role}: {' '.join(options(folder, role))}")


def options(folder: Path, role: str) -> list[str]:
    """Return the options of a role, as they are typed."""
    files = cert_path(folder, AUTHORITY), cert_path(folder, role), key_path(folder, role)
    ca, cert, key = (shlex.quote(str(path)) for path in files)
    if role == "client":
        return [f"--tls-ca {ca}", f"--tls-cert {cert}", f"--tls-key {key}"]
    if role == "redis":
        pair = [f"--tls-cert-file {cert}", f"--tls-key-file {key}"]
        return ["--port 0 --tls-port 6379", f"--tls-ca-cert-file {ca}", *pair]
    serving = [f"--tls-cert {cert}", f"--tls-key {key}", f"--tls-client-ca {ca}"]
    named = [_CALLERS[role]] if role in _CALLERS else []
    peers = [f"--peer-ca {ca}", f"--peer-cert {cert}", f"--peer-key {key}"]
    return [*serving, *named, *(peers if role in _CALLING else [])]

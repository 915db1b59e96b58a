"""`slipstream certs`: certificates to try TLS with, from an authority of their own.

They are for development: there is no revocation and no renewal.
"""

import datetime
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from slipstream.cli.flags import with_flags
from slipstream.core.errors import InvalidRequest
from slipstream.files import write_whole
from slipstream.options import check_bounds, option

app = typer.Typer(help="Make certificates for TLS between services.", no_args_is_help=True)

ROLES = ("router", "target", "draft", "redis", "client")
AUTHORITY = "ca"
_LOCAL = ("localhost", "127.0.0.1", "::1")
_CLOCK_SKEW = datetime.timedelta(minutes=5)
_HOST = re.compile(r"(?!-)[A-Za-z0-9*_-]+(\.[A-Za-z0-9_-]+)*")
_PURPOSES = x509.ExtendedKeyUsage(
    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
)
"""Every service both serves and calls."""


@dataclass(frozen=True, slots=True)
class CertificateOptions:
    """Hosts of the certificates besides this one, the days that they are valid for, and whether
    they take the place of others."""

    hosts: tuple[str, ...] = option(
        (), "Name or IP address that services are dialled by; repeatable.", names=("--host",)
    )
    days: int = option(30, "How long the certificates are valid.", least=1, most=3650)
    force: bool = option(False, "Overwrite, with a new authority.")

    def __post_init__(self) -> None:
        check_bounds(self)
        for host in self.hosts:
            if host in ROLES:
                raise InvalidRequest(f"{host!r} names a role, and stands in its certificate alone")
            if not (_is_address(host) or (_HOST.fullmatch(host) and len(host) <= 253)):
                raise InvalidRequest(f"{host!r} is neither a host's name nor an IP address")


@app.callback()
def _group() -> None:
    """Make certificates for TLS between services."""


@app.command()
@with_flags
def dev(
    folder: Annotated[Path, typer.Argument(help="Where the files go; made if it is not there.")],
    options: CertificateOptions,
) -> None:
    """Make an authority, and a certificate and key for router, target, draft, redis and client.

    They are for localhost, 127.0.0.1, ::1 and the hosts named, and carry their role's name. Keep
    ca.key to yourself: its holder can impersonate any of them.
    """
    make_certificates(folder, options)
    typer.echo(f"Certificates for {options.days} days are in {folder}.")


def cert_path(folder: Path, name: str) -> Path:
    """Return the path of the certificate of a role, or of the authority."""
    return folder / f"{name}.pem"


def key_path(folder: Path, name: str) -> Path:
    """Return the path of its private key."""
    return folder / f"{name}.key"


def make_certificates(folder: Path, options: CertificateOptions) -> None:
    """Write an authority, and a certificate and key for each role; the folder may exist.

    Every file is complete or absent at any time, and only their owner can read keys. Raises
    `InvalidRequest` where there are such files and they are not to be overwritten.
    """
    _check_folder(folder, options.force)
    now = datetime.datetime.now(datetime.UTC)
    dates = now - _CLOCK_SKEW, now + datetime.timedelta(days=options.days)
    key, subject = ec.generate_private_key(ec.SECP256R1()), "slipstream development authority"
    # A service that reads meanwhile finds a pair that does not match, and waits for the rest.
    for role in ROLES:
        own = ec.generate_private_key(ec.SECP256R1())
        names = [_name(host) for host in dict.fromkeys((role, *_LOCAL, *options.hosts))]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
        builder = _builder(subject, role, own, dates).add_extension(_PURPOSES, False)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        cert = builder.add_extension(issuer, False).sign(key, hashes.SHA256())
        _write_pair(folder, role, cert, own)
    authority = _builder(subject, subject, key, dates, is_authority=True).sign(key, hashes.SHA256())
    _write_pair(folder, AUTHORITY, authority, key)


def _builder(
    issuer: str,
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    dates: tuple[datetime.datetime, datetime.datetime],
    *,
    is_authority: bool = False,
) -> x509.CertificateBuilder:
    issued_by, named = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (issuer, subject)
    )
    # An authority signs certificates and revocations; a role signs what it sends.
    usage = x509.KeyUsage(not is_authority, *[False] * 4, *[is_authority] * 2, *[False] * 2)
    basic = x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None)
    return (
        x509.CertificateBuilder(issued_by, named, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dates[0])
        .not_valid_after(dates[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(basic, True)
        .add_extension(usage, True)
    )


def _name(host: str) -> x509.GeneralName:
    address = ipaddress.ip_address(host) if _is_address(host) else None
    return x509.DNSName(host) if address is None else x509.IPAddress(address)


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _check_folder(folder: Path, overwrite: bool) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"{folder} can't be a directory ({error.strerror})") from None
    named = [path(folder, name) for name in (AUTHORITY, *ROLES) for path in (cert_path, key_path)]
    there = [path.name for path in named if path.exists()]
    if there and not overwrite:
        raise InvalidRequest(f"{folder} has {there[0]} already; --force makes all of them anew")


def _write_pair(
    folder: Path, name: str, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    pem = form.Encoding.PEM
    secret = key.private_bytes(pem, form.PrivateFormat.PKCS8, form.NoEncryption())
    write_whole(key_path(folder, name), secret, mode=0o600)
    write_whole(cert_path(folder, name), cert.public_bytes(pem), mode=0o644)

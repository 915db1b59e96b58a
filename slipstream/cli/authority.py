"""Certificates for development, from an authority of their own: no revocation, no renewal."""

import datetime
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from slipstream.core.errors import InvalidRequest, check
from slipstream.files import write_whole

ROLES = ("router", "target", "draft", "redis", "client")
AUTHORITY = "ca"
_LOCAL = ("localhost", "127.0.0.1", "::1")
_CLOCK_SKEW = datetime.timedelta(minutes=5)
_HOST = re.compile(r"(?!-)[A-Za-z0-9*_-]+(\.[A-Za-z0-9_-]+)*")
_OTHER_USAGES = (
    *("content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True, slots=True)
class CertificateOptions:
    """Hosts of the certificates besides this one, and the days that they are valid for."""

    hosts: tuple[str, ...] = ()
    days: int = 30

    def __post_init__(self) -> None:
        check(1 <= self.days <= 3650, "days", self.days, "from 1 to 3650")
        for host in self.hosts:
            if host in ROLES:
                raise InvalidRequest(f"{host!r} names a role, and stands in its certificate alone")
            if _address(host) is None and not (_HOST.fullmatch(host) and len(host) <= 253):
                raise InvalidRequest(f"{host!r} is neither a host's name nor an IP address")


def cert_path(folder: Path, name: str) -> Path:
    """Return the path of the certificate of a role, or of the authority."""
    return folder / f"{name}.pem"


def key_path(folder: Path, name: str) -> Path:
    """Return the path of its private key."""
    return folder / f"{name}.key"


def make_certificates(
    folder: Path, options: CertificateOptions, *, overwrite: bool = False
) -> None:
    """Write an authority, and a certificate and key for each role; the folder may exist.

    Every file is complete or absent at any time, and only their owner can read keys. Raises
    `InvalidRequest` where there are such files and they are not to be overwritten.
    """
    _check_folder(folder, overwrite)
    authority = _Authority(options)
    # A service that reads meanwhile finds a pair that does not match, and waits for the rest.
    for role in ROLES:
        _write_pair(folder, role, *authority.sign(role))
    _write_pair(folder, AUTHORITY, authority.cert, authority.key)


class _Authority:
    """An authority that is valid for as long as what it signs."""

    def __init__(self, options: CertificateOptions) -> None:
        self._hosts = (*_LOCAL, *options.hosts)
        self._from = datetime.datetime.now(datetime.UTC)
        self._until = self._from + datetime.timedelta(days=options.days)
        self._subject = _subject("slipstream development authority")
        self.key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(self._subject, self.key, is_authority=True)
        self.cert = builder.sign(self.key, hashes.SHA256())

    def sign(self, role: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """Return a role's certificate and private key. Every service both serves and calls."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(
            [_name(host) for host in dict.fromkeys((role, *self._hosts))]
        )
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = self._builder(_subject(role), key, is_authority=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), False)
        builder = builder.add_extension(names, False).add_extension(issuer, False)
        return builder.sign(self.key, hashes.SHA256()), key

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool
    ) -> x509.CertificateBuilder:
        basic = x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None)
        usage = x509.KeyUsage(
            digital_signature=not is_authority,
            key_cert_sign=is_authority,
            crl_sign=is_authority,
            **dict.fromkeys(_OTHER_USAGES, False),
        )
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        return (
            x509.CertificateBuilder(self._subject, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._from - _CLOCK_SKEW)
            .not_valid_after(self._until)
            .add_extension(identifier, False)
            .add_extension(basic, True)
            .add_extension(usage, True)
        )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _name(host: str) -> x509.GeneralName:
    address = _address(host)
    return x509.DNSName(host) if address is None else x509.IPAddress(address)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


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

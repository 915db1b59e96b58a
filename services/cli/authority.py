"""A certificate authority of one's own, for a machine or a laboratory: no revocation, no renewal.

Knows nothing of terminals, nor of what services do with certificates.
"""

import datetime
import ipaddress
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.core.errors import InvalidRequest

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

ROLES = ("router", "target", "draft", "redis", "client")
AUTHORITY = "ca"
HERE = ("localhost", "127.0.0.1", "::1")
_CLOCK_SKEW = datetime.timedelta(minutes=5)
_HOST = re.compile(r"(?!-)[A-Za-z0-9*_-]+(\.[A-Za-z0-9_-]+)*")


def cert_path(folder: Path, name: str) -> Path:
    """Where the certificate of a role is, or that of the authority."""
    return folder / f"{name}.pem"


def key_path(folder: Path, name: str) -> Path:
    """Where its private key is."""
    return folder / f"{name}.key"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What certificates are to say: the hosts besides this one, and for how many days."""

    hosts: tuple[str, ...] = ()
    days: int = 30

    def __post_init__(self) -> None:
        if not 1 <= self.days <= 3650:
            raise InvalidRequest(f"days is {self.days}, but must be from 1 to 3650")
        for host in self.hosts:
            if host in ROLES:
                raise InvalidRequest(f"{host!r} names a role, and stands in its certificate alone")
            if _address(host) is None and not (_HOST.fullmatch(host) and len(host) <= 253):
                raise InvalidRequest(f"{host!r} is neither a host's name nor an IP address")


def make(folder: Path, wanted: Wanted, *, overwrite: bool = False) -> None:
    """An authority, and a certificate and key for each role, in a folder that may be there.

    Every file is complete or absent at any time, and keys are for their owner's eyes only. Raises
    `InvalidRequest` where there are such files and they are not to be overwritten.
    """
    _check_library()
    _check_folder(folder, overwrite)
    authority = _Signer(wanted)
    # A service that reads along sees a pair that does not match, and waits for the other half.
    for role in ROLES:
        cert, key = authority.sign(role)
        _write(key_path(folder, role), key, 0o600)
        _write(cert_path(folder, role), cert, 0o644)
    _write(key_path(folder, AUTHORITY), _key_pem(authority.key), 0o600)
    _write(cert_path(folder, AUTHORITY), _cert_pem(authority.cert), 0o644)


class _Signer:
    """An authority that lives as long as what it signs."""

    def __init__(self, wanted: Wanted) -> None:
        from cryptography import x509

        self._hosts = (*HERE, *wanted.hosts)
        self._from = datetime.datetime.now(datetime.UTC)
        self._until = self._from + datetime.timedelta(days=wanted.days)
        self.key = _new_key()
        subject = _subject("slipstream development authority")
        builder = self._builder(subject, subject, self.key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        builder = builder.add_extension(_usage(signs_certificates=True), True)
        self.cert = self._signed(builder)

    def sign(self, role: str) -> tuple[bytes, bytes]:
        """A role's certificate and private key. Every service both serves and calls."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID as Purpose

        key = _new_key()
        names = x509.SubjectAlternativeName(_names(dict.fromkeys((role, *self._hosts))))
        purposes = x509.ExtendedKeyUsage([Purpose.SERVER_AUTH, Purpose.CLIENT_AUTH])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = self._builder(_subject(role), self.cert.subject, key)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(_usage(signs_certificates=False), True)
        builder = builder.add_extension(purposes, False).add_extension(names, False)
        return _cert_pem(self._signed(builder.add_extension(issuer, False))), _key_pem(key)

    def _builder(
        self, subject: "x509.Name", issuer: "x509.Name", key: "ec.EllipticCurvePrivateKey"
    ) -> "x509.CertificateBuilder":
        from cryptography import x509

        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._from - _CLOCK_SKEW)
            .not_valid_after(self._until)
            .add_extension(identifier, False)
        )

    def _signed(self, builder: "x509.CertificateBuilder") -> "x509.Certificate":
        from cryptography.hazmat.primitives import hashes

        return builder.sign(self.key, hashes.SHA256())


def _check_library() -> None:
    try:
        import cryptography.x509  # noqa: F401
    except ImportError:
        raise InvalidRequest(
            "certificates need the cryptography package: pip install 'slipstream[serve]'"
        ) from None


def _check_folder(folder: Path, overwrite: bool) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"{folder} can't be a directory ({error.strerror})") from None
    named = [path(folder, name) for name in (AUTHORITY, *ROLES) for path in (cert_path, key_path)]
    there = [path.name for path in named if path.exists()]
    if there and not overwrite:
        raise InvalidRequest(f"{folder} has {there[0]} already; --force makes all of them anew")


def _new_key() -> "ec.EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _subject(name: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs_certificates: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _names(hosts: Iterable[str]) -> Sequence["x509.GeneralName"]:
    from cryptography import x509

    found = ((host, _address(host)) for host in hosts)
    return [x509.DNSName(host) if at is None else x509.IPAddress(at) for host, at in found]


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _cert_pem(cert: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return cert.public_bytes(Encoding.PEM)


def _key_pem(key: "ec.EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


def _write(path: Path, data: bytes, mode: int) -> None:
    """Beside it first, readable for its owner alone until it is complete."""
    try:
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), mode)
            os.replace(beside, path)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as error:
        raise InvalidRequest(f"{path} can't be written ({error.strerror})") from None

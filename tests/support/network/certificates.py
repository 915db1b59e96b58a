"""Certificates for tests of TLS, of their own authority: what `slipstream certs dev` makes."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from slipstream.cli.certs import (
    AUTHORITY,
    CertificateOptions,
    cert_path,
    key_path,
    make_certificates,
)
from slipstream.rpc.security import ClientTls, ServerTls


@dataclass(frozen=True)
class Certificates:
    """A folder of them, and what to do with its files."""

    folder: Path

    @property
    def ca(self) -> Path:
        return cert_path(self.folder, AUTHORITY)

    def cert(self, role: str) -> Path:
        return cert_path(self.folder, role)

    def key(self, role: str) -> Path:
        return key_path(self.folder, role)

    def server(self, role: str, *, is_mutual: bool = True) -> ServerTls:
        return ServerTls(self.cert(role), self.key(role), self.ca if is_mutual else None)

    def client(self, role: str) -> ClientTls:
        return ClientTls(self.ca, self.cert(role), self.key(role))

    def stranger(self) -> ClientTls:
        return ClientTls(self.ca)

    def replace(self, other: "Certificates", *names: str) -> None:
        """Put files of another authority in the place of these, each at once, in this order."""
        for name in names:
            beside = self.folder / f"{name}.new"
            shutil.copy(other.folder / name, beside)
            beside.replace(self.folder / name)


def certificates(folder: Path, *hosts: str) -> Certificates:
    make_certificates(folder, CertificateOptions(hosts))
    return Certificates(folder)

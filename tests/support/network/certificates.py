"""Certificates for tests of TLS, of their own authority: what the guide's commands make."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from slipstream.rpc.security import ClientTls, ServerTls
from support.deployment import pages

GUIDE = pages.ROOT / "docs/how-to/secure.md"
LAST_NAME = "IP:::1"
"""The last of the names that the guide gives every certificate."""


@dataclass(frozen=True)
class Certificates:
    """A folder of them, and what to do with its files."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.cert("ca")

    def cert(self, role: str) -> Path:
        return self.folder / f"{role}.pem"

    def key(self, role: str) -> Path:
        return self.folder / f"{role}.key"

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


def certificates(folder: Path, *names: str) -> Certificates:
    """Run the guide's first block in a folder, with further names such as `DNS:gpu-1.example`.

    Raises `OSError` with what the shell reported, such as that there is no openssl.
    """
    folder.mkdir(parents=True, exist_ok=True)
    code = pages.blocks(GUIDE.read_text())[0].code.replace(LAST_NAME, ",".join((LAST_NAME, *names)))
    words = ["bash", "-euc", code]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"the commands of {GUIDE.name} failed: {done.stderr}")
    return Certificates(folder / "certs")

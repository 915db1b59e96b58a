"""Names and paths of the certificates that `slipstream certs` makes."""

from pathlib import Path

ROLES = ("router", "target", "draft", "redis", "client")
AUTHORITY = "ca"


def cert_path(folder: Path, name: str) -> Path:
    """Return the path of the certificate of a role, or of the authority."""
    return folder / f"{name}.pem"


def key_path(folder: Path, name: str) -> Path:
    """Return the path of its private key."""
    return folder / f"{name}.key"

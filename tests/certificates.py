"""A certificate of this machine for tests of TLS, and its key: short-lived, its own authority."""

import shutil
import subprocess
from pathlib import Path

import pytest


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Paths of a certificate for localhost and of its key. Skips where there is no openssl."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes certificates, is not installed")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", str(key), "-out", str(cert), "-days", "1"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key

"""Which bytes a file holds, as SHA-256. Knows nothing of what they mean."""

import hashlib
from pathlib import Path

_WEIGHTS = ("*.safetensors", "*.gguf")


def weights_digests(path: Path) -> dict[str, str]:
    """SHA-256 of every weights file of a model directory, or of a GGUF file, by name."""
    return {file.name: file_digest(file) for file in weights_files(path)}


def weights_files(path: Path) -> list[Path]:
    """The weights files of a model directory, or the GGUF file itself."""
    return [path] if path.is_file() else sorted(f for kind in _WEIGHTS for f in path.glob(kind))


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bytes_digest(data: bytes) -> str:
    """SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()

"""Which bytes a file holds, as SHA-256. Knows nothing of what they mean."""

import hashlib
from pathlib import Path

_WEIGHTS = ("*.safetensors", "*.gguf")


def weights_digests(path: Path) -> dict[str, str]:
    """SHA-256 of every weights file of a model directory, or of a GGUF file, by name."""
    files = [path] if path.is_file() else sorted(f for kind in _WEIGHTS for f in path.glob(kind))
    return {file.name: file_digest(file) for file in files}


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

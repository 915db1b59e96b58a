"""SHA-256 of weights files, computed once per file and kept."""

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slipstream.config import measurements_dir
from slipstream.models.format.gguf_file import gguf_parts
from slipstream.models.machine import Measurements

_WEIGHTS = ("*.safetensors", "*.gguf")
_LEAST_KEPT = 16 << 20
"""Bytes of a file whose digest is worth keeping: smaller ones take milliseconds."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def weights_digests(path: Path) -> dict[str, str]:
    """SHA-256 of every weights file of a model directory, or of a GGUF file, by name."""
    return {file.name: file_digest(file) for file in weights_files(path)}


def weights_files(path: Path) -> list[Path]:
    """Return the weights files of a model directory, or a file with all its parts."""
    if not path.is_dir():
        return gguf_parts(path)
    return sorted(file for kind in _WEIGHTS for file in path.glob(kind))


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bytes_digest(data: bytes) -> str:
    """SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def weights_digest(path: Path, kept: Measurements | None = None) -> str:
    """Return the digest of a model directory's weights, or of a file's; a large file is read once
    for as long as it stays as it is.

    It is the SHA-256 of the only file, or of the lines that `sha256sum` prints of several. It is
    of the files as they are: the element type and the split over ranks make no difference.
    """
    kept = kept or Measurements(measurements_dir() / "weights.json")
    files = weights_files(path)
    with ThreadPoolExecutor() as pool:  # hashing holds no lock
        digests = list(pool.map(lambda file: _digest(file, kept), files))
    for file, digest in zip(files, digests, strict=True):
        if kept.get(_name(file)) != digest and file.stat().st_size >= _LEAST_KEPT:
            kept.keep(_name(file), digest)
    if len(digests) == 1:
        return digests[0]
    lines = [f"{digest}  {file.name}\n" for file, digest in zip(files, digests, strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def hub_commit(path: Path) -> str:
    """Return the commit that a directory of the hub's cache holds; empty for any other."""
    is_snapshot = path.parent.name == "snapshots" and _COMMIT.fullmatch(path.name)
    return path.name if is_snapshot else ""


def _digest(file: Path, kept: Measurements) -> str:
    if digest := _hub_digest(file.resolve()):
        return digest
    known = kept.get(_name(file))
    if isinstance(known, str) and _SHA256.fullmatch(known):
        return known
    return file_digest(file)


def _hub_digest(blob: Path) -> str:
    """Return the SHA-256 of a large file of the hub's cache, which names it so: a file elsewhere
    may have any name. Empty for others."""
    if blob.parent.name != "blobs" or not _SHA256.fullmatch(blob.name):
        return ""
    from huggingface_hub import constants

    is_cached = blob.parent.parent.parent == Path(constants.HF_HUB_CACHE).resolve()
    return blob.name if is_cached else ""


def _name(file: Path) -> str:
    state = file.stat()
    return f"sha256 of {file.resolve()} {state.st_size} {state.st_mtime_ns}"

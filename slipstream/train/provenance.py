"""Provenance of weights: the command, the versions and the data that they come from, as JSON."""

import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from slipstream.files import write_json
from slipstream.train.data import DataFile

PROVENANCE_NAME = "provenance.json"
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


def write_provenance(
    path: Path,
    files: Sequence[DataFile],
    *,
    command: Sequence[str],
    revision: str | None,
    facts: Mapping[str, Any],
) -> None:
    """Write a provenance file, with the versions of what computed the weights from these files and
    the revision of the code, whole or not."""
    packages = {name: version(name) for name in _PACKAGES}
    machine = {"python": platform.python_version(), "machine": platform.machine(), **packages}
    about = {"command": " ".join(command), "environment": machine, "revision": revision}
    data = [
        {
            "file": file.name,
            "sha256": file.sha256,
            "num_documents": len(file.documents),
            "num_tokens": file.num_tokens,
            "num_generated_tokens": file.num_generated,
            "num_skipped_documents": file.num_skipped,
        }
        for file in files
    ]
    write_json(path, {**about, "data": data, **facts})


def read_provenance(directory: Path) -> Any:
    """Return the provenance of the weights in `directory`; None where there is none."""
    path = directory / PROVENANCE_NAME
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

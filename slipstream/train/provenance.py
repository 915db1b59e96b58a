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


def write_provenance(path: Path, *, command: Sequence[str], facts: Mapping[str, Any]) -> None:
    """Write a provenance file, with the versions of what computed the weights, whole or not."""
    packages = {name: version(name) for name in _PACKAGES}
    machine = {"python": platform.python_version(), "machine": platform.machine(), **packages}
    write_json(path, {"command": " ".join(command), "environment": machine, **facts})


def read_provenance(directory: Path) -> Any:
    """Return the provenance of the weights in `directory`; None where there is none."""
    path = directory / PROVENANCE_NAME
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def data_facts(data: DataFile) -> dict[str, Any]:
    """Return name, hash and sizes of a data file."""
    return {
        "file": data.name,
        "sha256": data.sha256,
        "num_documents": len(data.documents),
        "num_tokens": data.num_tokens,
        "num_generated_tokens": data.num_generated,
        "num_skipped_documents": data.num_skipped,
    }

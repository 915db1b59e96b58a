"""Safetensors of a model directory, read in place: one file, or the shards that an index names."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from slipstream.core.errors import WeightsError
from slipstream.models.dtypes import Array
from slipstream.models.store.folder import SHARD_INDEX, WEIGHTS, brief

_PLAIN = {"F32", "F16", "BF16"}
_BROKEN = (
    SafetensorError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
)
"""Errors of files that come from anywhere."""


class Safetensors:
    """The tensors of a model directory by name, mapped into memory when they are read."""

    def __init__(self, folder: Path) -> None:
        """Raise `WeightsError` for a file that is missing or broken."""
        self.folder = folder
        self._paths: dict[str, Path] = {}
        self._kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._open: dict[Path, Any] = {}
        try:
            for path in _paths(folder):
                file: Any = safe_open(path, framework="np")
                self._open[path] = file
                for name in file.keys():  # noqa: SIM118 - it is no mapping
                    at = file.get_slice(name)
                    self._paths[name] = path
                    self._kinds[name] = at.get_dtype(), tuple(at.get_shape())
        except _BROKEN as error:
            raise WeightsError(
                f"the weights in {folder} can't be loaded ({brief(error)})"
            ) from error

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None where there is none of the name."""
        return self._kinds[name][1] if name in self._kinds else None

    def is_plain(self, name: str) -> bool:
        """Return whether a tensor is of a type that is multiplied."""
        return self._kinds[name][0] in _PLAIN

    def tensor(self, name: str) -> Array:
        """Return a tensor in place. Raises `WeightsError` for a type that is no plain one."""
        path = self._paths[name]
        if not self.is_plain(name):
            raise WeightsError(f"{name} in {path} has the type {self._kinds[name][0]}")
        try:
            if path not in self._open:
                self._open[path] = safe_open(path, framework="np")
            found: Array = self._open[path].get_tensor(name)
        except _BROKEN as error:
            raise WeightsError(f"{name} in {path} can't be read ({brief(error)})") from error
        return found

    def release(self, names: Iterable[str]) -> None:
        """Close the files of these tensors; their memory is free once no tensor is in use."""
        for name in names:
            self._open.pop(self._paths[name], None)


def _paths(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = json.loads((folder / SHARD_INDEX).read_text(encoding="utf-8"))
    return [folder / str(name) for name in sorted(set(index["weight_map"].values()))]

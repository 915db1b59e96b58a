"""Safetensors of a model directory, read in place: one file, or the shards that an index names."""

import json
import math
import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors import safe_open

from slipstream.core.errors import WeightsError
from slipstream.models.dtypes import DTYPES, Array
from slipstream.models.format.folder import SHARD_INDEX, WEIGHTS, reading

_PLAIN = {"F32": DTYPES["float32"], "F16": DTYPES["float16"], "BF16": DTYPES["bfloat16"]}
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
_SCALE = np.dtype(ml_dtypes.float8_e8m0fnu)
"""Type of scales that are powers of two."""
_Types = Mapping[str, np.dtype[Any]]
_TYPES: _Types = {**_PLAIN, "F8_E4M3": FP8, "F8_E8M0": _SCALE}
WHOLE: _Types = {"I64": np.dtype("i8"), "I32": np.dtype("i4"), "BOOL": np.dtype("?")}
"""Types of whole numbers and flags."""


class _Place(NamedTuple):
    """A tensor's file, its first byte there, its type as the file names it, and its shape."""

    path: Path
    start: int
    type: str
    shape: tuple[int, ...]


class Safetensors:
    """The tensors of a model directory by name, mapped into memory when they are read."""

    def __init__(self, folder: Path) -> None:
        """Raise `WeightsError` for a file that is missing or broken."""
        self.folder = folder
        self._places: dict[str, _Place] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        with reading(f"the weights in {folder}"):
            for path in _paths(folder):
                self._places |= _places(path)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def names(self) -> Iterable[str]:
        """Return the names of all tensors."""
        return self._places

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None where there is none of the name."""
        return self._places[name].shape if name in self._places else None

    def is_plain(self, name: str) -> bool:
        """Return whether a tensor is of a type that is multiplied."""
        return self._places[name].type in _PLAIN

    def require_floats(self, names: Iterable[str]) -> None:
        """Raise `WeightsError` for a tensor of these names in whole numbers, without scales."""
        for name in sorted(self._places.keys() & set(names)):
            if "F" not in (kind := self._places[name].type):
                raise WeightsError(f"{name} in {self.folder} is quantised ({kind}), unknown how")

    def tensor(self, name: str, types: _Types = _TYPES) -> Array:
        """Return a tensor in place. Raises `WeightsError` for one of another type than these."""
        place = self._places[name]
        if place.type not in types:
            raise WeightsError(f"{name} in {place.path} has the type {place.type}")
        with reading(f"{name} in {place.path}"):
            if place.path not in self._maps:
                with place.path.open("rb") as file:  # torch needs memory that may be written to
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                self._maps[place.path] = mapped
            values = np.frombuffer(
                self._maps[place.path], types[place.type], math.prod(place.shape), place.start
            )
            return values.reshape(place.shape)

    def release(self, names: Iterable[str]) -> None:
        """Let go of the pages that tensors were read from; they are read again when needed."""
        for path in {self._places[name].path for name in names}:
            if path in self._maps:
                self._maps[path].madvise(mmap.MADV_DONTNEED)


def _paths(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = json.loads((folder / SHARD_INDEX).read_text(encoding="utf-8"))
    return [folder / str(name) for name in sorted(set(index["weight_map"].values()))]


def _places(path: Path) -> dict[str, _Place]:
    with safe_open(path, framework="np"):  # checks the header, sizes and offsets
        pass
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {
        name: _Place(
            path, 8 + size + entry["data_offsets"][0], entry["dtype"], tuple(entry["shape"])
        )
        for name, entry in header.items()
    }

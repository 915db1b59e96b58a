"""Reads safetensors files in place: one file, or the shards that an index names.

Every place is checked against the file's length before it is read: files come from anywhere.
"""

import json
import math
import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slipstream.core.errors import WeightsError
from slipstream.models.store.folder import SHARD_INDEX, WEIGHTS

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What comes of reading JSON that anybody may have written."""
_MAX_HEADER = 100 << 20
"""The longest header that the format allows, in bytes."""


class StoredTensor(NamedTuple):
    """One tensor: its type's name, its shape and its place in the file."""

    type: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class SafetensorsFile:
    """One file, mapped into memory: pages are read when they are touched."""

    def __init__(self, path: Path) -> None:
        """Raises `WeightsError` for what is no whole safetensors file."""
        self.path = path
        try:
            with path.open("rb") as file:
                # What is private may be written to, which torch asks of memory that it shares.
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self.tensors = self._read()
        except _BROKEN as error:
            raise WeightsError(f"the weights in {path} can't be loaded ({error})") from None

    def tensor(self, name: str) -> Tensor:
        """A tensor in place. Raises `WeightsError` for a type that is no plain one."""
        at = self.tensors[name]
        if at.type not in _DTYPES:
            raise WeightsError(f"{name} in {self.path} has the type {at.type}")
        dtype, count = _DTYPES[at.type], math.prod(at.shape)
        if at.num_bytes != count * dtype.itemsize:
            raise WeightsError(f"{name} in {self.path} is not as long as its shape says")
        if not count:
            return torch.empty(at.shape, dtype=dtype)
        flat = torch.frombuffer(self._bytes, dtype=dtype, count=count, offset=at.offset)
        return flat.view(at.shape)

    def release(self, name: str) -> None:
        """Give the memory of a tensor's pages back; they are read again when they are touched."""
        at = self.tensors[name]
        first = -(-at.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (at.offset + at.num_bytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._bytes.madvise(mmap.MADV_DONTNEED, first, length)

    def _read(self) -> dict[str, StoredTensor]:
        length = int.from_bytes(self._bytes[:8], "little")
        start = 8 + length
        if length > _MAX_HEADER or start > len(self._bytes):
            raise ValueError(f"its header would have {length} bytes")
        header = json.loads(self._bytes[8:start])
        header.pop("__metadata__", None)
        return {name: self._placed(name, about, start) for name, about in header.items()}

    def _placed(self, name: str, about: Mapping[str, Any], start: int) -> StoredTensor:
        first, last = (int(number) for number in about["data_offsets"])
        shape = tuple(int(size) for size in about["shape"])
        if not 0 <= first <= last <= len(self._bytes) - start or min(shape, default=0) < 0:
            raise ValueError(f"{name} lies outside the file")
        return StoredTensor(str(about["dtype"]), shape, start + first, last - first)


class Safetensors:
    """The tensors of a model directory by name, of all its files."""

    def __init__(self, folder: Path) -> None:
        """Raises `WeightsError` for a file that is missing or broken."""
        self.folder = folder
        self._of: dict[str, SafetensorsFile] = {}
        for path in _paths(folder):
            file = SafetensorsFile(path)
            self._of.update(dict.fromkeys(file.tensors, file))

    def __contains__(self, name: object) -> bool:
        return name in self._of

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor; None where there is none of the name."""
        file = self._of.get(name)
        return None if file is None else file.tensors[name].shape

    def is_plain(self, name: str) -> bool:
        """Whether a tensor is of a type that torch multiplies."""
        return self._of[name].tensors[name].type in _DTYPES

    def tensor(self, name: str) -> Tensor:
        """A tensor in place."""
        return self._of[name].tensor(name)

    def release(self, names: Iterable[str]) -> None:
        """Give the memory of these tensors back: see `SafetensorsFile.release`."""
        for name in names:
            self._of[name].release(name)


def _paths(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / SHARD_INDEX
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return [folder / str(name) for name in sorted(names)]
    except _BROKEN as error:
        raise WeightsError(f"the weights in {folder} can't be loaded ({error})") from None

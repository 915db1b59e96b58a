"""Checks the header of a GGUF file against the file's length, before anything is made of it.

Readers of GGUF believe counts and sizes. Every one is checked here, in time and memory that the
length of the file bounds.
"""

import mmap
import struct
from pathlib import Path

MAX_LAYERS = 1024
"""Layers of a model. A parser builds a module for each before it looks for the weights."""
_MAX_FIELDS, _MAX_TENSORS, _MAX_STRINGS = 1 << 16, 1 << 18, 1 << 22
_MAX_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value, by its type."""


def check_header(gguf: Path) -> None:
    """Raise `ValueError` for a header that does not fit into the file, or that no model has."""
    with gguf.open("rb") as file:
        if gguf.stat().st_size < 24 or file.read(4) != b"GGUF":
            raise ValueError("it is not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Header(data).check()


class _Header:
    """A place in the header, and the reads that move it on."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4

    def check(self) -> None:
        version = self._number("<I")
        if version not in {2, 3}:
            raise ValueError(f"its GGUF version is {version}, but 2 and 3 can be read")
        num_tensors = self._count("tensors", _MAX_TENSORS)
        for _ in range(self._count("metadata fields", _MAX_FIELDS)):
            self._field()
        for _ in range(num_tensors):
            self._tensor()

    def _field(self) -> None:
        key = self._string()
        kind = self._number("<I")
        if key.endswith(b".block_count") and _SIZES.get(kind) == 4:
            layers = self._number("<I")
            if not 1 <= layers <= MAX_LAYERS:
                raise ValueError(f"it has {layers} layers, but 1 to {MAX_LAYERS} can be loaded")
        elif kind == _ARRAY:
            self._array()
        else:
            self._value(kind)

    def _array(self) -> None:
        kind = self._number("<I")
        if kind != _STRING:  # no reader has use for arrays of arrays
            self._skip(self._number("<Q") * self._size(kind))
            return
        for _ in range(self._count("strings of an array", _MAX_STRINGS)):
            self._string()

    def _value(self, kind: int) -> None:
        if kind == _STRING:
            self._string()
        else:
            self._skip(self._size(kind))

    def _tensor(self) -> None:
        self._string()
        dimensions = self._number("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"a tensor has {dimensions} dimensions, at most {_MAX_DIMENSIONS} can")
        self._skip(dimensions * 8 + 4)
        if self._number("<Q") >= len(self._data):
            raise ValueError("a tensor begins behind the end of the file")

    def _size(self, kind: int) -> int:
        if kind not in _SIZES:
            raise ValueError(f"a metadata field has a value of the type {kind}, which is not known")
        return _SIZES[kind]

    def _count(self, noun: str, most: int) -> int:
        count = self._number("<Q")
        if count > most:
            raise ValueError(f"its header has {count} {noun}, but {most} is the most")
        return count

    def _number(self, form: str) -> int:
        size = struct.calcsize(form)
        self._skip(size)
        (number,) = struct.unpack_from(form, self._data, self._at - size)
        return int(number)

    def _string(self) -> bytes:
        size = self._number("<Q")
        self._skip(size)
        return self._data[self._at - size : self._at]

    def _skip(self, size: int) -> None:
        if size > len(self._data) - self._at:
            raise ValueError("its header goes past the end of the file")
        self._at += size

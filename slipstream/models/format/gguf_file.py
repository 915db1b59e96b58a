"""Reads GGUF files: their metadata, and where in them which weights are.

Everything is checked against the file's length before it is read: files come from anywhere.
"""

import glob
import json
import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from slipstream.core.errors import WeightsError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
MAX_LAYERS = 1024
"""Layers of a model. A module is built for each before the weights are looked for."""
_MAX_FIELDS, _MAX_TENSORS, MAX_STRINGS = 1 << 16, 1 << 18, 1 << 22
_MAX_DIMENSIONS = 4
_MAX_NAME = 256
"""Characters of the name of a field or tensor, which messages show."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """Form of a type of GGUF files: elements and bytes of a block."""

    name: str
    elements: int
    num_bytes: int


TABLES = json.loads((Path(__file__).parent / "gguf.json").read_text(encoding="utf-8"))
"""Types of weights that files may have, and fields of tokenizers with what they may name."""
TYPES: Mapping[int, BlockType] = {
    int(number): BlockType(*size) for number, size in TABLES["types"].items()
}
"""The types that can be read, by their numbers in files."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: its type's name, its shape (outputs before inputs) and its place in the file."""

    type: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class GgufFile:
    """A GGUF file, or all parts of a split one by any of them: `fields` is the metadata of the
    first part, `tensors` the places of weights."""

    def __init__(self, path: Path) -> None:
        """Read all but the weights. Raises `WeightsError` for what is no whole GGUF file."""
        self.path, self.name = path, path.name
        given = _Part(path)
        count, parts = given.count, gguf_parts(path)
        if count > 1 and len(parts) != count:
            raise WeightsError(
                f"{path.name} is part {given.number + 1} of {count} of a split model, but the other"
                f" parts are not beside it as NAME-00001-of-{count:05}.gguf and so on"
            )
        self._parts = [*map(_Part, parts)] if count > 1 else [given]
        self.fields = self._parts[0].fields
        self.tensors: dict[str, GgufTensor] = {}
        self._places: dict[str, _Part] = {}
        for number, part in enumerate(self._parts):
            if count > 1 and (part.number, part.count) != (number, count):
                raise WeightsError(f"{part.path.name} is not part {number + 1} of {count}")
            if twice := sorted(self.tensors.keys() & part.tensors.keys()):
                raise WeightsError(
                    f"{part.path.name} has {twice[0]}, as a part before it ({len(twice)} in all)"
                )
            self.tensors |= part.tensors
            self._places |= dict.fromkeys(part.tensors, part)
        total = self.fields.get("split.tensors.count", len(self.tensors))
        if count > 1 and total != len(self.tensors):
            raise WeightsError(
                f"{path.name} has split.tensors.count of {total!r:.40}, but its parts have"
                f" {len(self.tensors)} tensors"
            )

    def release(self) -> None:
        """Let go of the pages that tensors were read from; they are read again when needed."""
        for part in self._parts:
            part.data.madvise(mmap.MADV_DONTNEED)

    def view(self, name: str) -> memoryview:
        """Return the bytes of a tensor, in place."""
        tensor = self.tensors[name]
        data = memoryview(self._places[name].data)
        return data[tensor.offset : tensor.offset + tensor.num_bytes]


_PART = re.compile(r"(.+)-[0-9]{5}-of-([0-9]{5})\.gguf")


def gguf_parts(path: Path) -> list[Path]:
    """Return the files that a model is split into, by one of their names or a link to it, the first
    one first; of a model in one file that file."""
    real = path if _PART.fullmatch(path.name) else path.resolve()
    found = _PART.fullmatch(real.name)
    if found is None:
        return [path]
    pattern = f"{glob.escape(found[1])}-[0-9][0-9][0-9][0-9][0-9]-of-{found[2]}.gguf"
    return sorted(real.parent.glob(pattern)) or [path]


def is_gguf(path: Path) -> bool:
    """Return whether a file begins as GGUF files do, whatever its name."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


class _Part:
    """One file: its metadata, its tensors, its bytes, and its number among the parts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                # A private map may be written to, which torch needs.
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:  # an empty file can't be mapped
            raise WeightsError(f"{path.name} can't be read ({error})") from None
        reader = _Reader(self.data, path.name)
        num_tensors, num_fields = reader.head()
        self.fields = reader.fields(num_fields)
        self.tensors = reader.tensors(num_tensors, self.fields.get("general.alignment", 32))
        self.number, self.count = self._whole("split.no", 0), self._whole("split.count", 1)

    def _whole(self, name: str, default: int) -> int:
        value = self.fields.get(name, default)
        if not isinstance(value, int):
            raise WeightsError(
                f"{self.path.name} has a {name} of {value!r:.60}, which is no number"
            )
        return value


class _Reader:
    """A position in a file, which never leaves it."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data, self._name, self._at = data, name, 0

    def head(self) -> tuple[int, int]:
        """Return the numbers of tensors and of fields that follow."""
        if (magic := self._take(4)) != _MAGIC:
            is_pointer = magic == b"vers"  # `version https://git-lfs...`
            what = "is a pointer of Git LFS alone" if is_pointer else "does not begin with GGUF"
            raise self._broken(f"it {what}")
        version = self._number("I")
        if version and not version & 0xFF:
            raise WeightsError(f"{self._name} is a big-endian GGUF file, which can't be read here")
        if version not in _VERSIONS:
            raise self._broken(f"its version is {version}, but must be 2 or 3")
        return self._number("Q"), self._number("Q")

    def fields(self, count: int) -> dict[str, Any]:
        self._expect(count, 13, "fields", _MAX_FIELDS)
        found: dict[str, Any] = {}
        for _ in range(count):
            if (name := self._name_of("field")) in found:
                raise self._broken(f"it has the field {name} twice")
            found[name] = self._value(self._number("I"))
        return found

    def tensors(self, count: int, alignment: object) -> dict[str, GgufTensor]:
        self._expect(count, 24, "tensors", _MAX_TENSORS)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment % 8:
            raise self._broken(f"its alignment is {alignment!r:.60}, but must be a multiple of 8")
        tensors = [self._tensor() for _ in range(count)]
        names = sorted(name for name, _ in tensors)
        if twice := [name for name, other in pairwise(names) if name == other]:
            raise self._broken(f"it has the tensor {twice[0]} twice")
        start = -(-self._at // alignment) * alignment
        for name, tensor in tensors:
            if tensor.offset % alignment:
                raise self._broken(f"{name} is at {tensor.offset}, no multiple of {alignment}")
        return {name: self._placed(name, tensor, start) for name, tensor in tensors}

    def _tensor(self) -> tuple[str, GgufTensor]:
        name = self._name_of("tensor")
        dimensions = self._number("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._broken(f"{name} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        number, offset = self._number("I"), self._number("Q")
        if number not in TYPES:
            kind = TABLES["other_types"].get(str(number), number)
            raise WeightsError(
                f"{self._name} has weights of type {kind} ({name}), which can't be read here; types"
                f" that can: {', '.join(known.name for known in TYPES.values())}"
            )
        kind = TYPES[number]
        if shape[0] % kind.elements:
            raise self._broken(f"{name} has {shape[0]} columns, no multiple of {kind.elements}")
        num_bytes = math.prod(shape) // kind.elements * kind.num_bytes
        return name, GgufTensor(kind.name, shape[::-1], offset, num_bytes)

    def _placed(self, name: str, tensor: GgufTensor, start: int) -> GgufTensor:
        offset = start + tensor.offset
        if offset + tensor.num_bytes > len(self._data):
            raise self._broken(
                f"{name} ends at byte {offset + tensor.num_bytes}, but the file has"
                f" {len(self._data)}"
            )
        return GgufTensor(tensor.type, tensor.shape, offset, tensor.num_bytes)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(self._code(kind))
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            self._expect(count, 8, "strings", MAX_STRINGS)
            return [self._string() for _ in range(count)]
        code = self._code(kind)  # of arrays of arrays there is no need
        self._expect(count, struct.calcsize(code), "numbers")
        return list(struct.unpack(f"<{count}{code}", self._take(count * struct.calcsize(code))))

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self._broken(f"a field has the type {kind}")
        return _SCALARS[kind]

    def _number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._take(struct.calcsize(code)))[0]

    def _name_of(self, what: str) -> str:
        name = self._string()
        if not (0 < len(name) <= _MAX_NAME and name.isprintable()):
            raise self._broken(f"the name of a {what} is {name[:20]!r}, which can't be one")
        return name

    def _string(self) -> str:
        return self._take(self._number("Q")).decode("utf-8", errors="replace")

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise self._broken(f"it ends in the middle, at byte {len(self._data)}")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _expect(self, count: int, least: int, what: str, most: int | None = None) -> None:
        """Raise `WeightsError` where so many, of so many bytes at least, can't follow, or are more
        than any model has."""
        if count * least > len(self._data) - self._at:
            raise self._broken(f"it can't hold the {count} {what} that it names")
        if most is not None and count > most:
            raise self._broken(f"it has {count} {what}, but {most} is the most")

    def _broken(self, reason: str) -> WeightsError:
        return WeightsError(f"{self._name} is no whole GGUF file: {reason}")

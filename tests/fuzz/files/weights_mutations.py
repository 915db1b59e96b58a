"""Ways to break files of weights that keep their structure: GGUF and safetensors."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from fuzz.files.mutations import NUMBERS, WORDS, changed, json_values, some_bytes
from slipstream.models.format.gguf_file import TYPES

_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY, _ALIGNMENT = 8, 9, 32
_FLOATS = (0.0, -1.0, 1e-38, 3e38, float("nan"), float("inf"), 1e4)
_WIDTHS = {"B": 8, "H": 16, "I": 32, "Q": 64}
Token = tuple[str, Any]
"""A number and its layout, or a text and "s"."""


@dataclass(slots=True)
class Gguf:
    """The parts of a GGUF file: each field and each tensor is a list of tokens."""

    fields: list[list[Token]]
    tensors: list[list[Token]]
    data: bytes

    def file(self, version: int = 3, more: tuple[int, int] = (0, 0)) -> bytes:
        """Return the file; its counts of tensors and fields are wrong by `more`."""
        counts = (len(self.tensors) + more[0], len(self.fields) + more[1])
        head = b"GGUF" + struct.pack("<IQQ", version, *(at % 2**64 for at in counts))
        head += b"".join(_packed(*at) for part in (*self.fields, *self.tensors) for at in part)
        return head + bytes(-len(head) % _ALIGNMENT) + self.data


def _packed(layout: str, value: Any) -> bytes:
    if layout == "s":
        return struct.pack("<Q", len(value)) + bytes(value)
    return struct.pack(f"<{layout}", value)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 4

    def number(self, layout: str) -> Token:
        (value,) = struct.unpack_from(f"<{layout}", self.data, self.at)
        self.at += struct.calcsize(layout)
        return layout, value

    def text(self) -> Token:
        _, size = self.number("Q")
        self.at += size
        return "s", self.data[self.at - size : self.at]

    def one(self, kind: int) -> Token:
        return self.text() if kind == _STRING else self.number(_SCALARS[kind])

    def field(self) -> list[Token]:
        found = [self.text(), self.number("I")]
        if (kind := found[-1][1]) != _ARRAY:
            return [*found, self.one(kind)]
        found += [self.number("I"), self.number("Q")]
        return found + [self.one(found[2][1]) for _ in range(found[3][1])]

    def tensor(self) -> list[Token]:
        found = [self.text(), self.number("I")]
        return found + [self.number(layout) for layout in "Q" * found[1][1] + "IQ"]


def parsed(data: bytes) -> Gguf:
    """Return the parts of an intact file."""
    reader = _Reader(data)
    _, tensors, fields = (reader.number(layout)[1] for layout in "IQQ")
    found = [reader.field() for _ in range(fields)], [reader.tensor() for _ in range(tensors)]
    return Gguf(*found, data[-(-reader.at // _ALIGNMENT) * _ALIGNMENT :])


def halves(data: bytes) -> tuple[bytes, bytes]:
    """Return a file as two parts, half of the tensors each."""
    whole = parsed(data)
    middle = len(whole.tensors) // 2
    start = whole.tensors[middle][-1][1]
    numbers = {"split.no": 0, "split.count": 2, "split.tensors.count": len(whole.tensors)}
    one, other = (
        [[("s", name.encode()), ("I", 4), ("I", at)] for name, at in {**numbers, **own}.items()]
        for own in ({}, {"split.no": 1})
    )
    moved = [[*at[:-1], ("Q", at[-1][1] - start)] for at in whole.tensors[middle:]]
    first = Gguf(whole.fields + one, whole.tensors[:middle], whole.data[:start])
    return first.file(), Gguf(other, moved, whole.data[start:]).file()


def _token(random: Random, file: Gguf, layouts: str) -> tuple[list[Token], int]:
    """Return a record with a token of some layouts, and the token's place in it."""
    records = [*file.tensors, *file.fields] if random.random() < 0.5 else [*file.fields]
    record = random.choice([at for at in records if any(one[0] in layouts for one in at)])
    return record, random.choice([at for at, one in enumerate(record) if one[0] in layouts])


def _number(random: Random, file: Gguf) -> None:
    record, at = _token(random, file, "BHIQ")
    layout, value = record[at]
    near = (value + 1, value - 1, value * 2, value // 2, value + 32, value ^ 1 << 31)
    odd = random.choice(near if random.random() < 0.6 else NUMBERS)
    record[at] = (layout, odd % 2 ** _WIDTHS[layout])


def _float(random: Random, file: Gguf) -> None:
    if not any(one[0] == "f" for record in file.fields for one in record):
        return
    record, at = _token(random, file, "f")
    record[at] = ("f", random.choice(_FLOATS))


def _text(random: Random, file: Gguf) -> None:
    record, at = _token(random, file, "s")
    word = random.choice(WORDS).encode("utf-8", "surrogatepass")
    other, place = _token(random, file, "s")
    record[at] = ("s", word) if random.random() < 0.4 else other[place]


def _record(random: Random, file: Gguf) -> None:
    records = random.choice((file.fields, file.tensors)) or file.fields
    at, other = random.randrange(len(records)), random.randrange(len(records))
    choice = random.random()
    if choice < 0.4:
        del records[at]
    elif choice < 0.6:
        records.insert(other, [*records[at]])
    else:  # another's contents under its own name
        records[at] = [records[at][0], *records[other][1:]]


def _tensor(random: Random, file: Gguf) -> None:
    if not file.tensors:
        return
    record = random.choice(file.tensors)
    last = len(record) - 2
    choice = random.random()
    if choice < 0.5:
        record[last] = ("I", random.choice(list(TYPES)))
    elif choice < 0.7:
        record[2:last] = record[2:last][::-1]
    elif choice < 0.9:
        record[last + 1] = random.choice(file.tensors)[-1]
    else:
        record[1:last] = [("I", last - 1), *record[2:last], ("Q", random.choice((0, 1, 1, 2**32)))]


def _weights(random: Random, file: Gguf) -> None:
    data, size = file.data, len(file.data)
    at = random.randrange(size + 1)
    odd = random.choice((b"\xff" * 64, bytes(64), random.randbytes(64), b"\x00\x7c" * 32))
    cut = random.choice((size, size, at))
    file.data = (data[:at] + odd + data[at + 64 :])[:cut]


_CHANGES: tuple[Callable[[Random, Gguf], None], ...] = (
    *(_number, _number, _number, _float, _text, _record, _tensor, _tensor, _weights),
)


def gguf(random: Random, data: bytes) -> bytes:
    """Break a GGUF file: numbers, texts, fields, tensors, counts, weights, seldom bytes."""
    file = parsed(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        random.choice(_CHANGES)(random, file)
    choice = random.random()
    if choice < 0.9:
        return file.file()
    if choice < 0.95:
        odd = random.choice((0, 0, *NUMBERS)), random.choice((0, 1, -1, *NUMBERS))
        return file.file(random.choice((3, 3, 2, 1, 0, 2**31)), odd)
    whole = file.file()
    return some_bytes(random, whole[:4000]) + whole[4000:]


_TYPES = ("F32", "F16", "BF16", "F64", "I8", "U8", "I64", "BOOL", "F8_E4M3", "x", "")


def _tensor_of(random: Random, header: Any) -> Any:
    """Change a tensor's type, shape or place in a header, or anything in it."""
    if not isinstance(header, dict) or random.random() < 0.4:
        return changed(random, header)
    tensors = [at for at in header.values() if isinstance(at, dict) and "shape" in at]
    if not tensors:
        return changed(random, header)
    one, other = random.choice(tensors), random.choice(tensors)
    choice = random.random()
    if choice < 0.4:
        one["dtype"] = random.choice(_TYPES)
    elif choice < 0.7:
        one["shape"] = random.choice(([], other.get("shape"), [0], [2**32, 2**32], [-1]))
    else:
        one["data_offsets"] = other.get("data_offsets")
    return header


def safetensors(random: Random, data: bytes) -> bytes:
    """Break a safetensors file: its header, the header's length, weights, seldom bytes."""
    (size,) = struct.unpack_from("<Q", data)
    header, body = data[8 : 8 + size], data[8 + size :]
    choice = random.random()
    if choice < 0.1:
        return some_bytes(random, data[:3000]) + data[3000:]
    if choice < 0.3:
        file = Gguf([], [], body)
        _weights(random, file)
        body = file.data
    else:
        header = json_values(random, header, _tensor_of)
        json_pad = -len(header) % 8 if random.random() < 0.9 else 0
        header += b" " * json_pad
    length = len(header) if choice < 0.9 else random.choice(NUMBERS) % 2**64
    return struct.pack("<Q", length) + header + body

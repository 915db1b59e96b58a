"""Fields in the bytes of a message, counted before anything is parsed.

Parsing makes an object of every field: two bytes may become a hundred, and hold the event loop.
"""

from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from slipstream.core.errors import InvalidRequest

NUMBERS = 100
"""Numbers of a packed list that count as a field: they are parsed that much faster."""
_VARINT, _FIXED64, _BYTES, _START_GROUP, _END_GROUP, _FIXED32 = range(6)
_SIZES = {_FIXED64: 8, _START_GROUP: 0, _END_GROUP: 0, _FIXED32: 4}
_MAX_VARINT_BYTES = 10
_NOT_LAST = bytes(range(128, 256))
"""Bytes of a number that another one follows."""


def check_num_fields(data: bytes, descriptor: Descriptor, limit: int) -> None:
    """Raise `InvalidRequest` for a message of more fields, those within fields included.

    Raises `DecodeError` for bytes that are no message. Reads no more than `limit` fields.
    """
    if len(data) <= limit:  # a field has a byte at least
        return
    try:
        _Count(data, limit).read(0, len(data), descriptor)
    except IndexError:
        raise DecodeError("the message is cut off") from None


def cut_out(data: bytes, number: int, limit: int) -> tuple[bytes, memoryview]:
    """Return a message without its first bytes field of that number, and the value of that field,
    which is not copied.

    Parsing copies a large field twice. The field begins within the first `limit` bytes; where none
    does, nothing is cut out. Raises `DecodeError` for bytes that are no message, or have groups.
    """
    position = 0
    try:
        while position < min(len(data), limit):
            start = position
            tag, position = _varint(data, position)
            kind = tag & 7
            if kind in (_START_GROUP, _END_GROUP):
                raise DecodeError("the message has a group")
            size, position = _size(data, kind, position)
            if position + size > len(data):
                raise DecodeError("the message is cut off")
            if tag >> 3 == number and kind == _BYTES:
                value = memoryview(data)[position : position + size]
                return data[:start] + data[position + size :], value
            position += size
    except IndexError:
        raise DecodeError("the message is cut off") from None
    return data, memoryview(b"")


def bytes_head(number: int, size: int) -> bytes:
    """Return what stands before the value of a field of so many bytes; `number` is below 16."""
    head = bytearray(((number << 3) | _BYTES,))
    while size >= 128:
        head.append((size & 127) | 128)
        size >>= 7
    return bytes((*head, size))


class _Count:
    def __init__(self, data: bytes, limit: int) -> None:
        self._data = data
        self._limit = self._num_left = limit

    def read(self, position: int, end: int, descriptor: Descriptor) -> None:
        """Count the fields of the message that lies there."""
        inner, depth = _inner(descriptor), 0
        while position < end:
            self._take(1)
            tag, position = _varint(self._data, position)
            kind = tag & 7
            depth += (kind == _START_GROUP) - (kind == _END_GROUP)
            size, position = _size(self._data, kind, position)
            if position + size > end:
                raise DecodeError("the message is cut off")
            if kind == _BYTES and not depth and tag >> 3 in inner:
                self._read_inner(position, position + size, inner[tag >> 3])
            position += size

    def _read_inner(self, position: int, end: int, descriptor: Descriptor | None) -> None:
        """Count what a field holds: a message, or numbers where there is no descriptor."""
        if descriptor is not None:
            self.read(position, end, descriptor)
        elif end - position >= NUMBERS:
            self._take(len(self._data[position:end].translate(None, _NOT_LAST)) // NUMBERS)

    def _take(self, num_fields: int) -> None:
        if self._num_left < num_fields:
            raise InvalidRequest(
                f"the message has {len(self._data)} bytes in more than {self._limit} fields, of"
                f" which {NUMBERS} numbers of a list are one"
            )
        self._num_left -= num_fields


def _size(data: bytes, kind: int, position: int) -> tuple[int, int]:
    if kind == _BYTES:
        return _varint(data, position)
    if kind == _VARINT:
        return 0, _varint(data, position)[1]
    if kind not in _SIZES:
        raise DecodeError(f"the message has a field of wire type {kind}")
    return _SIZES[kind], position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = data[position]
    if value < 128:
        return value, position + 1
    value &= 127
    for number in range(1, _MAX_VARINT_BYTES):
        byte = data[position + number]
        value |= (byte & 127) << 7 * number
        if byte < 128:
            return value, position + number + 1
    raise DecodeError("the message has a number of more than 64 bits")


@cache
def _inner(descriptor: Descriptor) -> dict[int, Descriptor | None]:
    """Types of the fields that are messages, by number; None for lists of numbers."""
    texts = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if field.message_type is not None or (field.is_repeated and field.type not in texts)
    }

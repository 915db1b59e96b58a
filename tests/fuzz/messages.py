"""Random and mutated protobuf messages, as bytes. The randomness is an argument."""

import math
import struct
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from fuzz.files.mutations import some_bytes

EDGES = (0, 1, 2, 7, 127, 128, 2**31 - 1, 2**31, 2**32 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e300, float("nan"), float("inf"), float("-inf"))
WORDS = ("", "x", "glide", "smollm2-135m", "\x00", "ж" * 300, "a" * 5000, "../../x", "{{ 1/0 }}")
DEEP = "[" * 30_000
SCHEMAS = (
    *("", "{", "[]", "true", "false", '{"type": "object"}', '{"$ref": "#"}', '{"enum": []}'),
    *(DEEP, '{"items":' * 5_000 + "{}" + "}" * 5_000, '{"not":' * 100 + "{}" + "}" * 100),
    '{"allOf": [{"$ref": "#/allOf/0"}]}',
    '{"type": "array", "minItems": 4000000000, "items": {"type": "integer"}}',
    '{"type": "string", "pattern": "(a|aa)+$", "minLength": 1000000}',
    '{"type": "number", "minimum": 1e308, "maximum": -1e308, "multipleOf": 1e-300}',
)
"""JSON schemas, most of which ask for too much."""
REGEXES = (
    *("", "(", "a" * 60_000, "(" * 20_000, "(a*)*b", "(a{1,1000}){1,1000}", "x{4000000000}"),
    *("[\\s\\S]{0,60000}", "(?=a)", "\\p{L}{1,500}", "a|" * 20_000, "(?P<x>a)(?P=x)", "[z-a]"),
)
"""Regular expressions, most of which ask for too much."""
_LARGEST = 4 << 20
_SIGNED = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_SINT32,
    FieldDescriptor.TYPE_ENUM,
    FieldDescriptor.TYPE_SFIXED32,
}
_MESSAGE = FieldDescriptor.TYPE_MESSAGE


def message_bytes(kind: type[Message], valid: list[bytes], random: Random) -> bytes:
    """Bytes for one message: noise, a random message, or a valid one with something wrong."""
    choice = random.random()
    if choice < 0.1:
        return random.randbytes(random.choice((0, 1, 3, 17, 200, 3000)))
    if choice < 0.105:
        return huge(kind.DESCRIPTOR, random)
    if choice < 0.4 or not valid:
        return random_message(kind.DESCRIPTOR, random).SerializeToString()
    data = random.choice(valid)
    if choice < 0.5:
        return data
    if choice < 0.8:
        changed = kind.FromString(data)
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            mutate(changed, random)
        return changed.SerializeToString()
    return data + unknown(random) if choice < 0.85 else some_bytes(random, data)


def huge(descriptor: Descriptor, random: Random) -> bytes:
    """A message that is mostly one field, repeated or long, somewhere in it; up to 4 MiB."""
    if not descriptor.fields:
        return unknown(random)
    size = round(math.exp(random.uniform(math.log(1000), math.log(_LARGEST))))
    field = random.choice(descriptor.fields)
    if field.type == _MESSAGE and random.random() < 0.7:
        inner = huge(field.message_type, random)
        return tagged(field.number, 2, _varint(len(inner)) + inner)
    if field.type == _MESSAGE:
        return tagged(field.number, 2, b"\0") * (size // 2)
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        text = random.choice((b"a", b" ", "ж".encode(), b"<|end|>", b"[", b'{"a":'))
        whole = text * (size // len(text))
        return tagged(field.number, 2, _varint(len(whole)) + whole)
    value = random.choice((b"\0", b"\1", b"\x7f"))
    packed = value * (size // 8 * 8)  # a whole number of any fixed type, too
    return tagged(field.number, 2, _varint(len(packed)) + packed)


def unknown(random: Random) -> bytes:
    """Fields that no message has, groups within groups among them."""
    number = random.choice((19, 1000, 536_870_911))
    depth = random.choice((1, 50, 99, 100, 101, 10_000))
    return random.choice(
        (
            tagged(number, 0, b"\1"),
            tagged(number, 2, _varint(5) + b"hello"),
            tagged(number, 2, _varint(2**31)),
            tagged(number, 3, b"") * depth,
            tagged(number, 3, b"") * depth + tagged(number, 4, b"") * depth,
            tagged(number, 7, b""),
            b"\xff" * 11,
        )
    )


def tagged(number: int, wire_type: int, rest: bytes) -> bytes:
    return _varint(number << 3 | wire_type) + rest


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def random_message(descriptor: Descriptor, random: Random, depth: int = 0) -> Message:
    """A message with random fields, some of them at the edges of their types."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if random.random() < 0.6:
            fill(message, field, random, depth)
    return message


def mutate(message: Message, random: Random) -> None:
    """Change one field somewhere in a message that has any."""
    if not message.DESCRIPTOR.fields:
        return
    field = random.choice(message.DESCRIPTOR.fields)
    is_set = [at for at, _ in message.ListFields()]
    if is_set and random.random() < 0.7:
        field = random.choice(is_set)
    if field.type == _MESSAGE and not field.is_repeated and message.HasField(field.name):
        mutate(getattr(message, field.name), random)
        return
    message.ClearField(field.name)
    if random.random() < 0.85:
        fill(message, field, random, 0)


def fill(message: Message, field: FieldDescriptor, random: Random, depth: int) -> None:
    """Give a field something of its type."""
    if field.is_repeated:
        fill_repeated(message, field, random, depth)
    elif field.type == _MESSAGE:
        if depth < 4:
            inner = random_message(field.message_type, random, depth + 1)
            getattr(message, field.name).CopyFrom(inner)
    else:
        setattr(message, field.name, scalar(field, random))


def fill_repeated(message: Message, field: FieldDescriptor, random: Random, depth: int) -> None:
    """Give a repeated field or a map some elements."""
    into: Any = getattr(message, field.name)
    count = random.choice((0, 1, 2, 5, 40))
    if field.type != _MESSAGE:
        into.extend(scalar(field, random) for _ in range(count))
    elif field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        for _ in range(count):
            into[scalar(key, random)] = scalar(value, random)
    elif depth < 4:
        into.extend(random_message(field.message_type, random, depth + 1) for _ in range(count % 6))


def scalar(field: FieldDescriptor, random: Random) -> Any:
    noise: float = struct.unpack("<f", random.randbytes(4))[0]
    doubles = (*FLOATS, noise, random.random())
    numbers = (*EDGES, random.randrange(300))
    signed = (-(2**31), -1, 0, 1, 2, 3, 99, 2**31 - 1)
    if field.name in ("json_schema", "regex") or field.full_name.endswith(".Grammar.text"):
        return random.choice(REGEXES if field.name == "regex" else (*SCHEMAS, *REGEXES))
    of_type: dict[int, Any] = {
        FieldDescriptor.TYPE_DOUBLE: doubles,
        FieldDescriptor.TYPE_FLOAT: doubles,
        FieldDescriptor.TYPE_STRING: WORDS,
        FieldDescriptor.TYPE_BYTES: (b"", random.randbytes(random.randrange(64))),
        FieldDescriptor.TYPE_BOOL: (False, True),
        FieldDescriptor.TYPE_UINT64: (*EDGES, 2**64 - 1, random.getrandbits(64)),
    }
    return random.choice(of_type.get(field.type, signed if field.type in _SIGNED else numbers))

"""Random and mutated protobuf messages, as bytes. The randomness is an argument."""

import struct
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

EDGES = (0, 1, 2, 7, 127, 128, 2**31 - 1, 2**31, 2**32 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e300, float("nan"), float("inf"), float("-inf"))
WORDS = ("", "x", "glide", "smollm2-135m", "\x00", "ж" * 300, "a" * 5000, "../../x", "{{ 1/0 }}")
_SIGNED = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_SINT32,
    FieldDescriptor.TYPE_ENUM,
    FieldDescriptor.TYPE_SFIXED32,
}
_MESSAGE = FieldDescriptor.TYPE_MESSAGE


def message_bytes(kind: type[Message], valid: list[Message], random: Random) -> bytes:
    """Bytes for one message: noise, a random message, or a valid one with something wrong."""
    choice = random.random()
    if choice < 0.15:
        return random.randbytes(random.choice((0, 1, 3, 17, 200, 3000)))
    if choice < 0.5 or not valid:
        return random_message(kind.DESCRIPTOR, random).SerializeToString()
    changed = kind.FromString(random.choice(valid).SerializeToString())
    if choice < 0.8:
        mutate(changed, random)
        return changed.SerializeToString()
    return broken(changed.SerializeToString(), random)


def random_message(descriptor: Descriptor, random: Random, depth: int = 0) -> Message:
    """A message with random fields, some of them at the edges of their types."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if random.random() < 0.6:
            fill(message, field, random, depth)
    return message


def mutate(message: Message, random: Random) -> None:
    """Change one field somewhere in a message."""
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


def broken(data: bytes, random: Random) -> bytes:
    """The bytes cut, flipped, doubled or with others in between."""
    at = random.randrange(len(data) + 1)
    change = random.randrange(4)
    if change == 0:
        return data[:at]
    if change == 1:
        return data[:at] + random.randbytes(random.randrange(1, 9)) + data[at:]
    if change == 2:
        return data + data[:at]
    flipped = bytearray(data)
    if flipped:
        flipped[at % len(flipped)] ^= 1 << random.randrange(8)
    return bytes(flipped)


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
    """A value of a scalar type."""
    noise: float = struct.unpack("<f", random.randbytes(4))[0]
    doubles = (*FLOATS, noise, random.random())
    numbers = (*EDGES, random.randrange(300))
    signed = (-(2**31), -1, 0, 1, 2, 3, 99, 2**31 - 1)
    of_type: dict[int, Any] = {
        FieldDescriptor.TYPE_DOUBLE: doubles,
        FieldDescriptor.TYPE_FLOAT: doubles,
        FieldDescriptor.TYPE_STRING: WORDS,
        FieldDescriptor.TYPE_BYTES: (b"", random.randbytes(random.randrange(64))),
        FieldDescriptor.TYPE_BOOL: (False, True),
        FieldDescriptor.TYPE_UINT64: (*EDGES, 2**64 - 1, random.getrandbits(64)),
    }
    return random.choice(of_type.get(field.type, signed if field.type in _SIGNED else numbers))

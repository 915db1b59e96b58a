"""Makes a case that shows a fault smaller, for as long as it shows it."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from google.protobuf.message import DecodeError, Message

from fuzz.case import Case
from fuzz.methods import METHODS

MAX_ATTEMPTS = 40


async def minimised(case: Case, shows_it: Callable[[Case], Awaitable[bool]]) -> Case:
    """The smallest case that was found within some attempts."""
    num_attempts = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in smaller(case):
            num_attempts += 1
            if num_attempts > MAX_ATTEMPTS:
                return case
            if await shows_it(candidate):
                case, is_smaller = candidate, True
                break
    return case


def smaller(case: Case) -> Iterator[Case]:
    """Cases with a little less: a part, a field, half of a text or of a list, half of the bytes."""
    if len(case.parts) > 1:
        for at in range(len(case.parts)):
            yield replace(case, parts=case.parts[:at] + case.parts[at + 1 :])
    for at, part in enumerate(case.parts):
        for less in _less(case, part):
            yield replace(case, parts=(*case.parts[:at], less, *case.parts[at + 1 :]))


def _less(case: Case, part: bytes) -> Iterator[bytes]:
    if case.to in METHODS:
        kind = METHODS[case.to].request
        try:
            message = kind.FromString(part)
        except DecodeError:
            pass
        else:
            yield from (data for data in _without(message) if len(data) < len(part))
            return
    for size in (len(part) // 2, len(part) // 4):
        if size:
            yield part[size:]
            yield part[:-size]


def _without(message: Message) -> Iterator[bytes]:
    """The message without one field, or with less of it, at any depth."""
    yield from (changed.SerializeToString() for changed in _changed(message))


def _changed(message: Message) -> Iterator[Message]:
    for field, value in message.ListFields():
        copy = type(message).FromString(message.SerializeToString())
        copy.ClearField(field.name)
        yield copy
        if field.is_repeated or isinstance(value, str | bytes):
            if len(value) > 1 and not _is_map(field):
                yield _halved(message, field.name)
        elif isinstance(value, Message):
            for inner in _changed(value):
                copy = type(message).FromString(message.SerializeToString())
                getattr(copy, field.name).CopyFrom(inner)
                yield copy


def _is_map(field: object) -> bool:
    kind = getattr(field, "message_type", None)
    return kind is not None and kind.GetOptions().map_entry


def _halved(message: Message, name: str) -> Message:
    copy = type(message).FromString(message.SerializeToString())
    value = getattr(copy, name)
    if isinstance(value, str | bytes):
        setattr(copy, name, value[: len(value) // 2])
    else:
        del value[len(value) // 2 :]
    return copy

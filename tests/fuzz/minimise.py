"""Makes a case that shows a fault smaller, for as long as it shows it."""

from collections.abc import Awaitable, Callable, Iterator
from copy import deepcopy
from dataclasses import replace

from google.protobuf.message import DecodeError, Message

from fuzz.case import METHODS, Case

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
            found = (changed.SerializeToString() for changed in _changed(message))
            yield from (data for data in found if len(data) < len(part))
            return
    for size in (len(part) // 2, len(part) // 4):
        if size:
            yield part[size:]
            yield part[:-size]


def _changed(message: Message) -> Iterator[Message]:
    """Yield the message without one field, or with less of it, at any depth."""
    for field, value in message.ListFields():
        copy = deepcopy(message)
        copy.ClearField(field.name)
        yield copy
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if isinstance(value, Message):
            for inner in _changed(value):
                copy = deepcopy(message)
                getattr(copy, field.name).CopyFrom(inner)
                yield copy
        elif isinstance(value, str | bytes) and len(value) > 1:
            setattr(copy, field.name, value[: len(value) // 2])
            yield copy
        elif field.is_repeated and len(value) > 1 and not is_map:
            copy = deepcopy(message)
            del getattr(copy, field.name)[len(value) // 2 :]
            yield copy

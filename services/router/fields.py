"""Fields that this build has never heard of: refused, for what is asked must not be ignored."""

from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from slipstream.core.errors import NotBuilt


def refuse_unknown(message: Message) -> None:
    """Raises `NotBuilt` naming the first field of the message, or within, that is unknown."""
    unknown: Any = UnknownFieldSet(message)
    if len(unknown):
        number, name = unknown[0].field_number, message.DESCRIPTOR.name
        raise NotBuilt(f"field {number} of {name} is not known to this version")
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        for part in _messages(value):
            refuse_unknown(part)


def _messages(value: Any) -> Any:
    return (value,) if isinstance(value, Message) else value

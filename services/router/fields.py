"""Checks of requests before they are read: unknown fields, and prompts that are too long."""

from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from slipstream.core.errors import NotBuilt, PromptTooLong
from slipstream.core.request.prompt import check_num_messages
from slipstream.rpc.v1 import generation_pb2 as pb


def refuse_too_many(prompt: pb.Prompt, context_length: int) -> None:
    """Raise `InvalidRequest` for more messages or ids than fit, before any of them is read."""
    check_num_messages(len(prompt.chat.messages))
    num_tokens = len(prompt.token_ids.ids)
    if num_tokens > context_length:
        raise PromptTooLong(
            f"a prompt of {num_tokens} tokens exceeds the context of {context_length} tokens"
        )


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

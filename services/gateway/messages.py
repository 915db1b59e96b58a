"""Messages and tools of chats in bodies of requests."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic_core import PydanticCustomError

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
_EMPTY: tuple[object, ...] = (None, [], "")
"""Values of fields that clients send back with an answer of ours."""


def _text_of(value: Any) -> Any:
    """Return a message's text: as it is, or its parts joined."""
    if not isinstance(value, list):
        return value
    return "".join(_part_text(part, number) for number, part in enumerate(value))


def _part_text(part: Any, number: int) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise PydanticCustomError(
            "refused",
            "has a part {number} that is no text, but text is all that can be read",
            {"number": number},
        )
    if set(part) != {"type", "text"} or not isinstance(part["text"], str):
        raise PydanticCustomError(
            "refused", "has a part {number} that must be type and text", {"number": number}
        )
    return part["text"]


def _message(value: Any) -> Any:
    """Return a message without the further fields of an answer, where these are empty."""
    if not isinstance(value, dict):
        return value
    kept = ("role", "content")
    message = {name: it for name, it in value.items() if name in kept or it not in _EMPTY}
    if "tool_calls" in message and message.get("content") is None:
        message["content"] = ""
    return message


Text = Annotated[
    str,
    BeforeValidator(_text_of),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
]


class StrictModel(BaseModel):
    """A part of a body: no other fields, and values of the very types."""

    model_config = _STRICT


class CalledFunction(StrictModel):
    """The function of a call, and JSON of its arguments."""

    name: str
    arguments: str


class MessageCall(StrictModel):
    """A call that an assistant's message makes."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(StrictModel):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text
    tool_calls: list[MessageCall] | None = None
    tool_call_id: str | None = None


class FunctionSchema(StrictModel):
    """A function that the model may call. `strict` asks for what a forced call always keeps."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(StrictModel):
    """A tool: of functions only."""

    type: Literal["function"]
    function: FunctionSchema


class FunctionName(StrictModel):
    """The name of a function."""

    name: str


class ChosenFunction(StrictModel):
    """A choice of the function that must be called."""

    type: Literal["function"]
    function: FunctionName


GivenMessage = Annotated[ChatMessage, BeforeValidator(_message)]
"""A message, which may have further fields of an answer where these are empty."""


def messages_of(given: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages with the roles that models have: a developer's are the system's."""
    messages = [message.model_dump(exclude_none=True) for message in given]
    for message in messages:
        if message["role"] == "developer":
            message["role"] = "system"
    return messages

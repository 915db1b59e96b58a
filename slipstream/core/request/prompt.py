"""Prompts: text, messages or token ids. Errors go into logs, so they quote no prompt."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.core.errors import (
    InvalidRequest,
    PromptTooLong,
    UnsupportedCombination,
    check_fits,
    check_token_ids,
)
from slipstream.core.request.tools import Tool, check_tools
from slipstream.core.text import check_unicode

Message = Mapping[str, Any]
"""`role` and `content`, a text or parts of it; an assistant's may have `tool_calls` as OpenAI
writes them (id, type, function with name and arguments, JSON as text), a tool's has the
`tool_call_id` that it answers. Further texts, such as `name`, are for the chat template; what else
there is, is left out."""
Prompt = str | Sequence[int] | Sequence[Message]

MAX_MESSAGES = 2048
MAX_TOOL_CALLS = 128
MAX_FIELDS = 32
"""Further texts of one message."""
TOKEN_BYTES = 64
"""Bytes of a prompt for each token of the context: all that it has, whatever is shown of it."""
_READ = ("role", "content", "tool_calls", "function_call")
_UNREAD = ("images", "videos")
"""Names that clients give what a message shows beside its content."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names that clients give an assistant's reasoning; templates read one of the first two."""
_ROLES = {"developer": "system", "function": "tool"}
"""Roles by which OpenAI's clients mean others."""
_PARTS = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    "refusal": "refusal",
    **dict.fromkeys(("reasoning", "reasoning_text", "thinking", "redacted_thinking"), None),
}
"""Types of parts, and the field that has their text; None: it is left out."""


@dataclass(frozen=True, slots=True)
class PromptForm:
    """Reading of a prompt. `raw` text is taken as it is, with `allow_special_tokens` also the
    names of special tokens; else it goes through the chat template, which shows the tools and may
    read further variables, `chat_template_kwargs`: JSON of an object, or empty. With
    `continue_final` the last message goes on, which is the assistant's."""

    raw: bool = False
    allow_special_tokens: bool = False
    tools: tuple[Tool, ...] = ()
    continue_final: bool = False
    chat_template_kwargs: str = ""

    def __post_init__(self) -> None:
        if self.allow_special_tokens and not self.raw:
            raise UnsupportedCombination("allow_special_tokens goes with a raw prompt only")
        if self.raw and (self.tools or self.chat_template_kwargs):
            what = "tools" if self.tools else "chat_template_kwargs"
            raise UnsupportedCombination(f"{what} are given, but a raw prompt shows none")
        check_tools(self.tools)
        check_unicode(self.chat_template_kwargs, "chat_template_kwargs")

    @property
    def goes_on(self) -> bool:
        """Return whether an answer goes on within the prompt's last text."""
        return self.raw or self.continue_final


PLAIN_FORM = PromptForm()


def checked_prompt(prompt: Prompt, form: PromptForm = PLAIN_FORM) -> Prompt:
    """The prompt as text, a tuple of ids or a tuple of messages; raw ones are no messages.

    Raises `InvalidRequest` for what is none of the three, for an empty one, and for tools with ids.
    """
    if form.continue_final and (form.raw or isinstance(prompt, str) or are_ids(prompt)):
        raise UnsupportedCombination("continue_final goes with messages only")
    if isinstance(prompt, str) and prompt:
        return content_text(prompt, "the prompt")
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        raise _not_a_prompt(prompt)
    if not prompt:
        raise InvalidRequest("the prompt is empty")
    if are_ids(prompt):
        if form.tools:
            raise UnsupportedCombination("tools are given, but token ids show none")
        check_token_ids("the prompt", prompt)  # type: ignore[arg-type]
        return tuple(prompt)  # type: ignore[return-value]
    if form.raw:
        raise UnsupportedCombination("a raw prompt is text or token ids, not messages")
    check_num_messages(len(prompt))
    check_num_parts(sum(map(_num_parts, prompt)))
    return tuple(_message(item, f"messages[{number}]") for number, item in enumerate(prompt))


def are_ids(prompt: Sequence[Any]) -> bool:
    """Return whether it consists of token ids, and of at least one."""
    return set(map(type, prompt)) == {int}


def check_num_messages(num_messages: int) -> None:
    """Raise `InvalidRequest` for more messages than a prompt may have."""
    check_fits("the prompt has", num_messages, "messages", MAX_MESSAGES)


def check_num_bytes(num_bytes: int, max_tokens: int) -> None:
    """Raise `PromptTooLong` for a prompt of more bytes than one of so many tokens may have."""
    if num_bytes > TOKEN_BYTES * max_tokens:
        raise PromptTooLong(
            f"a prompt of {num_bytes} bytes exceeds {TOKEN_BYTES * max_tokens}, {TOKEN_BYTES} for"
            f" each of the context's {max_tokens} tokens"
        )


def content_text(content: Any, place: str) -> str:
    """Return the text of a message's content: as it is, or its parts joined by line breaks.

    None is no text; reasoning is left out. Raises `InvalidRequest`, with the place of what is no
    text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        check_unicode(content, place)
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequest(f"{place} must be a text or a list of parts")
    texts = (_part_text(part, f"{place}[{number}]") for number, part in enumerate(content))
    return "\n".join(text for text in texts if text is not None)


def arguments_text(arguments: Any) -> str:
    """Return the arguments of a call as text: JSON of what is no text, {} where there are none."""
    if isinstance(arguments, str):
        return arguments if arguments.strip() else "{}"
    return "{}" if arguments is None else json.dumps(arguments)


def _part_text(part: Any, place: str) -> str | None:
    if isinstance(part, str):
        part = {"text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in (None, "") and isinstance(part, Mapping) and "text" in part:
        kind = "text"
    if not isinstance(kind, str) or kind not in _PARTS:
        raise InvalidRequest(f"{place} is no text, but text is all that can be read")
    name = _PARTS[kind]
    if name is not None and name not in part:
        raise InvalidRequest(f"{place}.{name} is needed")
    text = None if name is None else part[name]
    if not isinstance(text, str | None):
        raise InvalidRequest(f"{place}.{name} must be a text")
    check_unicode(text or "", place)
    return text


def _message(item: Any, place: str) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise _not_a_prompt(item)
    role = item.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{place}.role must be a text, and not empty")
    if unread := next((name for name in _UNREAD if item.get(name)), None):
        raise InvalidRequest(f"{place}.{unread} is no text, but text is all that can be read")
    fields = _fields(item, place)
    content = content_text(item.get("content"), f"{place}.content")
    message: dict[str, Any] = {"role": _ROLES.get(role, role), "content": content, **fields}
    if calls := item.get("tool_calls"):
        message["tool_calls"] = _tool_calls(calls, f"{place}.tool_calls")
    elif call := item.get("function_call"):
        message["tool_calls"] = (_tool_call({"function": call}, f"{place}.function_call"),)
    return message


def _fields(item: Message, place: str) -> dict[str, str]:
    fields = {
        name: text
        for name, text in item.items()
        if isinstance(name, str) and name not in _READ and isinstance(text, str) and text
    }
    check_fits(f"{place} has", len(fields), "fields", MAX_FIELDS)
    for text in (item["role"], *fields, *fields.values()):
        check_unicode(text, place)
    own = [fields[it] for it in _REASONING if it in fields]
    return {"thinking": own[0], **fields, "reasoning_content": own[0]} if own else fields


def _tool_calls(calls: Any, place: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(calls, Sequence) or isinstance(calls, str) or len(calls) > MAX_TOOL_CALLS:
        raise InvalidRequest(f"{place} must be a list of at most {MAX_TOOL_CALLS}")
    return tuple(_tool_call(call, f"{place}[{number}]") for number, call in enumerate(calls))


def _tool_call(call: Any, place: str) -> dict[str, Any]:
    call = call if isinstance(call, Mapping) else {}
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    name = function.get("name")
    if not isinstance(name, str) or call.get("type") not in (None, "", "function"):
        raise InvalidRequest(f"{place} must be of the type function, with the function's name")
    call_id, arguments = call.get("id"), arguments_text(function.get("arguments"))
    call_id = call_id if isinstance(call_id, str) else ""
    for text in (call_id, name, arguments):
        check_unicode(text, place)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


MAX_PARTS = 16_384
"""Most parts of all messages together: fields, tool calls and parts of contents."""


def check_num_parts(num_parts: int) -> None:
    """Raise `InvalidRequest` for messages of more parts than a prompt may have."""
    check_fits("the messages have", num_parts, "fields, tool calls and parts", MAX_PARTS)


def _num_parts(message: Any) -> int:
    if not isinstance(message, Mapping):
        return 0
    lists = (message.get(name) for name in ("content", "tool_calls"))
    return len(message) + sum(len(found) for found in lists if isinstance(found, list | tuple))


def _not_a_prompt(item: Any) -> InvalidRequest:
    return InvalidRequest(
        "a prompt is text, token ids or messages with role and content, but"
        f" there is a value of type {type(item).__name__}"
    )

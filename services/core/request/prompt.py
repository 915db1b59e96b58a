"""Prompts: text, messages or token ids. Form only.

Knows no tokenizer, no chat template and no wire. Errors go into logs, so they quote no prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.core.request.tools import Tool, check_tools, json_object

Message = Mapping[str, Any]
"""`role` and `content`; an assistant's may have `tool_calls` as OpenAI writes them (id, type,
function with name and arguments, JSON as text), a tool's has the `tool_call_id` that it answers."""
Prompt = str | Sequence[int] | Sequence[Message]

MAX_TOKEN_ID = 2**31 - 1
MAX_MESSAGES = 2048
"""Of one prompt."""
MAX_TOOL_CALLS = 128
"""Of one message."""
_FIELDS = {"assistant": {"tool_calls"}, "tool": {"tool_call_id"}}
"""Fields that messages of these roles may have beside role and content."""


@dataclass(frozen=True, slots=True)
class PromptForm:
    """Reading of a prompt. `raw` text is taken as it is, with `allow_special_tokens` also the
    names of special tokens; else it goes through the chat template, which shows the tools."""

    raw: bool = False
    allow_special_tokens: bool = False
    tools: tuple[Tool, ...] = ()

    def __post_init__(self) -> None:
        if self.allow_special_tokens and not self.raw:
            raise UnsupportedCombination("allow_special_tokens goes with a raw prompt only")
        if self.tools and self.raw:
            raise UnsupportedCombination("tools are given, but a raw prompt shows none")
        check_tools(self.tools)


PLAIN_FORM = PromptForm()


def checked_prompt(prompt: Prompt, form: PromptForm = PLAIN_FORM) -> Prompt:
    """The prompt as text, a tuple of ids or a tuple of messages; raw ones are no messages.

    Raises `InvalidRequest` for what is none of the three, for an empty one, and for tools with ids.
    """
    if isinstance(prompt, str):
        return _text(prompt, "the prompt")
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        raise _not_a_prompt(prompt)
    if not prompt:
        raise InvalidRequest("the prompt is empty")
    if are_ids(prompt):
        if form.tools:
            raise UnsupportedCombination("tools are given, but token ids show none")
        check_token_ids(prompt)  # type: ignore[arg-type]
        return tuple(prompt)  # type: ignore[return-value]
    if form.raw:
        raise UnsupportedCombination("a raw prompt is text or token ids, not messages")
    check_num_messages(len(prompt))
    return tuple(_message(item) for item in prompt)


def are_ids(prompt: Sequence[Any]) -> bool:
    """Return whether it consists of token ids, and of at least one."""
    return set(map(type, prompt)) == {int}


def check_num_messages(num_messages: int) -> None:
    """Raise `InvalidRequest` for more messages than a prompt may have."""
    if num_messages > MAX_MESSAGES:
        raise InvalidRequest(
            f"the prompt has {num_messages} messages, but at most {MAX_MESSAGES} fit"
        )


def check_unicode(text: str, name: str) -> None:
    """Raises `InvalidRequest` for text that has no bytes: half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{name} is not valid Unicode ({error.reason})") from None


def check_token_ids(tokens: Sequence[int], what: str = "the prompt") -> None:
    """Raise `InvalidRequest` for ids that are none."""
    for token in (min(tokens, default=0), max(tokens, default=0)):
        if not 0 <= token <= MAX_TOKEN_ID:
            raise InvalidRequest(f"{what} has token id {token}, not 0 to {MAX_TOKEN_ID}")


def _message(item: Any) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise _not_a_prompt(item)
    known = {"role", "content"}
    role, more = item.get("role"), item.keys() - known
    if not known <= item.keys() or not isinstance(role, str):
        raise _not_a_prompt(item)
    if unknown := sorted(map(str, more - _FIELDS.get(role, set()))):
        raise InvalidRequest(f"a message has {unknown[0][:80]}, which no {role[:80]} message has")
    if role == "tool" and not item.get("tool_call_id"):
        raise InvalidRequest("a message of a tool must have the tool_call_id that it answers")
    may_be_empty = role == "tool" or bool(item.get("tool_calls"))
    texts = [name for name in ("role", "content", "tool_call_id") if name in item]
    if not all(isinstance(item[name], str) for name in texts) or not (
        item["role"] and (item["content"] or may_be_empty)
    ):
        raise InvalidRequest("role and content of a message must be text, and not empty")
    message: dict[str, Any] = {name: item[name] for name in texts}
    for name in texts:
        check_unicode(message[name], name)
    if item.get("tool_calls"):
        message["tool_calls"] = _tool_calls(item["tool_calls"])
    return message


def _tool_calls(calls: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(calls, Sequence) or len(calls) > MAX_TOOL_CALLS:
        raise InvalidRequest(f"tool_calls must be a list of at most {MAX_TOOL_CALLS}")
    return tuple(_tool_call(call) for call in calls)


def _tool_call(call: Any) -> dict[str, Any]:
    try:
        call_id, kind, function = call["id"], call["type"], call["function"]
        name, arguments = function["name"], function["arguments"]
    except (TypeError, KeyError):
        call_id = kind = name = arguments = None
    if kind != "function" or not all(isinstance(at, str) for at in (call_id, name, arguments)):
        raise InvalidRequest(
            "a tool call must have an id, the type function, and a function with name and arguments"
        )
    for text in (call_id, name, arguments):
        check_unicode(text, "a tool call")
    json_object(arguments, "the arguments of a tool call")
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _text(text: str, name: str) -> str:
    if not text:
        raise InvalidRequest(f"{name} is empty")
    check_unicode(text, name)
    return text


def _not_a_prompt(item: Any) -> InvalidRequest:
    return InvalidRequest(
        "a prompt is text, token ids or messages with role and content, but"
        f" there is a value of type {type(item).__name__}"
    )

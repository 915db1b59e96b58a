"""Prompts: text, messages or token ids. Form only.

Knows no tokenizer, no chat template and no wire. Errors go into logs, so they quote no prompt.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.core.errors import InvalidRequest, UnsupportedCombination

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]

MAX_TOKEN_ID = 2**31 - 1
MAX_MESSAGES = 2048
"""Of one prompt."""


def checked_prompt(
    prompt: Prompt, *, raw: bool = False, allow_special_tokens: bool = False
) -> Prompt:
    """The prompt as text, a tuple of ids or a tuple of messages; `raw` refuses messages.

    Raises `InvalidRequest` for what is none of the three, and for an empty one.
    """
    if allow_special_tokens and not raw:
        raise UnsupportedCombination("allow_special_tokens goes with a raw prompt only")
    if isinstance(prompt, str):
        return _text(prompt, "the prompt")
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        raise _not_a_prompt(prompt)
    if not prompt:
        raise InvalidRequest("the prompt is empty")
    if are_ids(prompt):
        return _token_ids(prompt)  # type: ignore[arg-type]
    if raw:
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


def _token_ids(tokens: Sequence[int]) -> tuple[int, ...]:
    for token in (min(tokens), max(tokens)):
        if not 0 <= token <= MAX_TOKEN_ID:
            raise InvalidRequest(f"the prompt has token id {token}, not 0 to {MAX_TOKEN_ID}")
    return tuple(tokens)


def _message(item: Any) -> dict[str, str]:
    if not isinstance(item, Mapping) or set(item) != {"role", "content"}:
        raise _not_a_prompt(item)
    if not all(isinstance(value, str) and value for value in item.values()):
        raise InvalidRequest("role and content of a message must be text, and not empty")
    return {name: _text(item[name], name) for name in ("role", "content")}


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

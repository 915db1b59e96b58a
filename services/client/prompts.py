"""From what a caller says to token ids: text, messages or ids, a first turn or a later one.

A later turn is encoded alone and appended; what was said before is never tokenised again.
Knows nothing of engines and sessions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from slipstream.core.errors import InvalidRequest, UnsupportedCombination

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]

# Stands for the reply that the session already holds. No template trims or rewrites it.
_REPLY = "SLIPSTREAMREPLY"


def encode_prompt(tokenizer: Any, prompt: Prompt, *, raw: bool = False) -> tuple[int, ...]:
    """Token ids of a conversation's first turn, up to where the model is to go on.

    Text is one user message, put through the model's chat template unless `raw`. Ids are taken
    as they are. Raises `InvalidRequest` for an empty or ill-formed prompt.
    """
    if not isinstance(prompt, str) and _are_ids(prompt):
        return _checked_ids(tokenizer, prompt)
    if raw:
        return _not_empty(tokenizer.encode(_text(prompt)))
    return _not_empty(_encode(tokenizer, _render(tokenizer, _messages(prompt))))


def encode_turn(
    tokenizer: Any, prompt: Prompt, *, last_token: int, raw: bool = False
) -> tuple[int, ...]:
    """Token ids to append for a later turn, behind a reply that ended with `last_token`.

    Closes the reply as the chat template does, unless the model has done so itself.
    """
    if not isinstance(prompt, str) and _are_ids(prompt):
        return _checked_ids(tokenizer, prompt)
    if raw:
        return _not_empty(_encode(tokenizer, _text(prompt)))
    before = [{"role": "user", "content": "."}, {"role": "assistant", "content": _REPLY}]
    parts = _render(tokenizer, [*before, *_messages(prompt)]).split(_REPLY)
    if len(parts) != 2:
        raise InvalidRequest("the chat template of this model can't continue a conversation")
    ids = _encode(tokenizer, parts[1])
    return _not_empty(ids[1:] if ids and ids[0] == last_token else ids)


def _are_ids(prompt: Sequence[Any]) -> bool:
    return len(prompt) > 0 and all(type(item) is int for item in prompt)


def _checked_ids(tokenizer: Any, prompt: Sequence[Any]) -> tuple[int, ...]:
    num_tokens = len(tokenizer)
    for token in prompt:
        if not 0 <= token < num_tokens:
            raise InvalidRequest(f"the prompt has token id {token}, not 0 to {num_tokens - 1}")
    return tuple(prompt)


def _text(prompt: Prompt) -> str:
    if not isinstance(prompt, str):
        raise UnsupportedCombination("a raw prompt is text or token ids, not messages")
    return prompt


def _messages(prompt: Prompt) -> list[dict[str, str]]:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise InvalidRequest("the prompt is empty")
        return [{"role": "user", "content": prompt}]
    messages = [_message(item) for item in prompt]
    if not messages:
        raise InvalidRequest("the prompt is empty")
    if messages[-1]["role"] == "assistant":
        raise InvalidRequest("the last message is the assistant's, so there is nothing to answer")
    return messages


def _message(item: Any) -> dict[str, str]:
    if not isinstance(item, Mapping) or set(item) != {"role", "content"}:
        raise InvalidRequest(
            f"a prompt is text, token ids or messages with role and content: {item!r}"
        )
    if not all(isinstance(value, str) and value for value in item.values()):
        raise InvalidRequest(f"role and content of a message must be text: {item!r}")
    return dict(item)


def _render(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    if not tokenizer.chat_template:
        raise InvalidRequest("the model has no chat template, so the prompt must be raw")
    try:
        text: str = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
    except TemplateError as error:
        raise InvalidRequest(f"the chat template refuses these messages ({error})") from None
    return text


def _encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def _not_empty(ids: Sequence[int]) -> tuple[int, ...]:
    if not ids:
        raise InvalidRequest("the prompt is empty")
    return tuple(ids)

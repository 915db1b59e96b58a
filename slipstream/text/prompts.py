"""Encoding of prompts: text, messages or ids, of a first turn or a later one.

A later turn is encoded alone and appended; earlier ones are never tokenised again.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from slipstream.core.errors import InvalidRequest, check_token_ids
from slipstream.core.request.prompt import (
    PLAIN_FORM,
    Message,
    Prompt,
    PromptForm,
    are_ids,
    check_num_bytes,
    checked_prompt,
)
from slipstream.core.request.tools import json_object
from slipstream.text.tokenizer import TextTokenizer

# Stands for the reply that the session already holds. No template trims or rewrites it.
_REPLY = "SLIPSTREAMREPLY"


def encode_prompt(
    tokenizer: TextTokenizer,
    prompt: Prompt,
    form: PromptForm = PLAIN_FORM,
    *,
    last_token: int | None = None,
    max_tokens: int | None = None,
) -> tuple[int, ...]:
    """Return the token ids of a conversation's first turn, up to where the model is to go on.

    With `last_token`, those to append for a later turn, behind a reply that ended with it: they
    close the reply as the chat template does, unless the model has done so itself.

    Text is one user message, put through the model's chat template unless raw. Ids are taken
    as they are. Raises `InvalidRequest` for an empty or ill-formed prompt, or tools with a later
    turn, and `PromptTooLong` for one that is far longer than `max_tokens`: by its size first.
    """
    content: Any = checked_prompt(prompt, form)
    if not isinstance(content, str) and are_ids(content):
        check_token_ids("the prompt", content, len(tokenizer))
        return tuple(content)
    if form.tools and last_token is not None:
        raise InvalidRequest("tools are given with a later turn, but only the first can have any")
    if max_tokens is not None:
        check_size(content, form, max_tokens)
    if form.raw:
        text = content if form.allow_special_tokens else tokenizer.as_text(content)
    else:
        text = _rendered(tokenizer, content, form, is_later=last_token is not None)
    is_start = form.raw and last_token is None
    ids = tokenizer.encode(text, add_special_tokens=is_start, max_tokens=max_tokens)
    is_closed = not form.raw and bool(ids) and ids[0] == last_token
    return _not_empty(ids[1:] if is_closed else ids)


def encode_answer(tokenizer: TextTokenizer, answer: str) -> tuple[int, ...]:
    """Return the token ids of a reply, without the token that ends it."""
    ids = tokenizer.encode(tokenizer.as_text(answer), add_special_tokens=False)
    return _not_empty(ids, "answer")


def _rendered(
    tokenizer: TextTokenizer, content: str | Sequence[Message], form: PromptForm, *, is_later: bool
) -> str:
    """Return messages by the chat template; of a later turn what follows the reply before it, of
    a reply that goes on what comes before its next token."""
    own = json_object(form.chat_template_kwargs or "{}", "chat_template_kwargs")
    if form.continue_final and not isinstance(content, str):
        *before, last = content
        if is_later or last["role"] != "assistant":
            raise InvalidRequest("continue_final goes with a last message of the assistant's only")
        going_on = {**last, "content": last["content"] + _REPLY}
        return _parted(tokenizer.render([*before, going_on], form.tools, own))[0]
    if not is_later:
        return tokenizer.render(_messages(content), form.tools, own)
    before = [{"role": "user", "content": "."}, {"role": "assistant", "content": _REPLY}]
    return _parted(tokenizer.render([*before, *_messages(content)], (), own))[1]


def _parted(text: str) -> list[str]:
    parts = text.split(_REPLY)
    if len(parts) != 2:
        raise InvalidRequest("the chat template of this model can't continue a conversation")
    return parts


def check_size(content: Any, form: PromptForm, max_tokens: int) -> int:
    """Return the bytes of a prompt and of what is shown with it. Raises `PromptTooLong` for more
    than fit."""
    texts = [(tool.name, tool.description, tool.parameters) for tool in form.tools]
    size = _num_bytes(content) + _num_bytes([texts, form.chat_template_kwargs])
    check_num_bytes(size, max_tokens)
    return size


def _num_bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    parts = chain(*value.items()) if isinstance(value, Mapping) else value
    return sum(map(_num_bytes, parts))


def _messages(content: str | Sequence[Message]) -> Sequence[Message]:
    if isinstance(content, str):
        if not content.strip():
            raise InvalidRequest("the prompt is empty")
        return ({"role": "user", "content": content},)
    return content


def _not_empty(ids: Sequence[int], what: str = "prompt") -> tuple[int, ...]:
    if not ids:
        raise InvalidRequest(f"the {what} is empty")
    return tuple(ids)

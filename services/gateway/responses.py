"""Responses as OpenAI's clients read them: chats and completions, whole and in chunks."""

import math
from dataclasses import dataclass
from typing import Any

from slipstream.client import FinishReason, RequestStats
from slipstream.core.text.logprobs import Logprobs, TokenLogprob

Json = dict[str, Any]

IMPOSSIBLE = -9999.0
"""OpenAI's log probability of a token that can't be: JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class Content:
    """A part of an answer, or all of it."""

    text: str
    logprobs: Logprobs = ()
    offset: int = 0
    """Length of the text before it."""


class ChatFormat:
    """Answers of /v1/chat/completions."""

    prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> Json | None:
        """Return the first choice of a stream, before any text."""
        return {**self.chunk(Content("")), "delta": {"role": "assistant", "content": ""}}

    def chunk(self, content: Content | None, reason: FinishReason | None = None) -> Json:
        """Return a choice of a stream; the last one has a reason."""
        return {
            "index": 0,
            "delta": {} if content is None else {"content": content.text},
            "logprobs": None if content is None else chat_logprobs(content.logprobs),
            "finish_reason": None if reason is None else reason.value,
        }

    def whole(self, content: Content, reason: FinishReason) -> Json:
        """Return the choice of an answer that is not streamed."""
        return {
            "index": 0,
            "message": {"role": "assistant", "content": content.text, "refusal": None},
            "logprobs": chat_logprobs(content.logprobs),
            "finish_reason": reason.value,
        }


class CompletionFormat:
    """Answers of /v1/completions. See `ChatFormat`."""

    prefix = "cmpl-"
    object = chunk_object = "text_completion"

    def opening(self) -> Json | None:
        """Return None: a stream begins with text."""
        return None

    def chunk(self, content: Content | None, reason: FinishReason | None = None) -> Json:
        """See `ChatFormat.chunk`."""
        content = content or Content("")
        return {
            "index": 0,
            "text": content.text,
            "logprobs": completion_logprobs(content.logprobs, offset=content.offset),
            "finish_reason": None if reason is None else reason.value,
        }

    def whole(self, content: Content, reason: FinishReason) -> Json:
        """See `ChatFormat.whole`."""
        return self.chunk(content, reason)


ApiFormat = ChatFormat | CompletionFormat


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that every object of an answer has."""

    id: str
    created: int
    """Seconds since 1970."""
    model: str

    def around(self, object: str, *choices: Json, **more: Any) -> Json:
        """Return an object with these choices."""
        return {
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
            **more,
        }


def usage(stats: RequestStats) -> Json:
    """Return counts of tokens. Drafted tokens that were rejected are no part of the answer."""
    drafted = stats.speculation
    num_rejected = drafted.num_draft_tokens - drafted.num_accepted_draft_tokens
    return {
        "prompt_tokens": stats.num_prompt_tokens,
        "completion_tokens": stats.num_output_tokens,
        "total_tokens": stats.num_prompt_tokens + stats.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": stats.num_cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": drafted.num_accepted_draft_tokens,
            "rejected_prediction_tokens": num_rejected,
        },
    }


def metrics(stats: RequestStats) -> Json:
    """Return figures of speculation, first those that have a name in vLLM."""
    drafted = stats.speculation
    return {
        "speculative_decoding": {
            "mean_acceptance_length": drafted.mean_acceptance_length,
            "draft_acceptance_rate": drafted.draft_acceptance_rate,
            "acceptance_histogram": {
                str(length): count for length, count in drafted.acceptance_histogram.items()
            },
            "num_spec_steps": drafted.num_spec_steps,
            "num_accepted_draft_tokens": drafted.num_accepted_draft_tokens,
            "num_draft_tokens": drafted.num_draft_tokens,
            "num_spec_tokens": drafted.num_spec_tokens,
            "per_step_accepted": list(drafted.per_step_accepted),
            "per_step_drafted": list(drafted.per_step_drafted),
            "num_plain_steps": drafted.num_plain_steps,
            "stop_reasons": dict(drafted.stop_reasons),
            "fallbacks": dict(drafted.fallbacks),
            "lossless": drafted.lossless,
        }
    }


def chat_logprobs(logprobs: Logprobs) -> Json | None:
    """Return those of a chat's tokens that have any; None without any."""
    if not logprobs:
        return None
    content = [
        {
            **_entry(token.text, token.logprob),
            "top_logprobs": [_entry(other.text, other.logprob) for other in token.top],
        }
        for token in logprobs
        if token is not None
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(logprobs: Logprobs, *, offset: int = 0) -> Json | None:
    """Return those of a completion's tokens; `offset` is the length of the text before them."""
    known = [token for token in logprobs if token is not None]
    if not known:
        return None
    offsets = []
    for token in known:
        offsets.append(offset)
        offset += len(token.text.decode(errors="replace"))
    return {
        "tokens": [_name(token.text) for token in known],
        "token_logprobs": [_finite(token.logprob) for token in known],
        "top_logprobs": [_by_name(token) for token in known],
        "text_offset": offsets,
    }


def _entry(text: bytes, logprob: float) -> Json:
    return {
        "token": text.decode(errors="replace"),
        "logprob": _finite(logprob),
        "bytes": list(text),
    }


def _by_name(token: TokenLogprob) -> dict[str, float]:
    """Return the likeliest tokens and, as OpenAI has it, the token itself."""
    named = {_name(other.text): _finite(other.logprob) for other in token.top}
    return {**named, _name(token.text): _finite(token.logprob)} if named else {}


def _name(text: bytes) -> str:
    """Return the text, or the bytes of a token that is not whole characters: no two are alike."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else IMPOSSIBLE

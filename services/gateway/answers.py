"""Answers as OpenAI's clients read them: chats and completions, whole and in pieces.

Knows no HTTP; `events` makes a stream of the pieces.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.client import FinishReason, RequestStats
from slipstream.core.logprobs import Logprobs
from slipstream.gateway.logprobs import chat_logprobs, completion_logprobs

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """A part of an answer, or all of it."""

    text: str
    logprobs: Logprobs = ()
    offset: int = 0
    """Length of the text before it."""


class Style(Protocol):
    """How one kind of answer is told."""

    prefix: str
    """What its ids begin with."""
    object: str
    piece_object: str

    def opening(self) -> Json | None:
        """What a stream begins with, if anything."""
        ...

    def piece(self, said: Said) -> Json:
        """A part of a stream."""
        ...

    def ending(self, reason: FinishReason) -> Json:
        """The last part of a stream."""
        ...

    def whole(self, said: Said, reason: FinishReason) -> Json:
        """An answer that is not streamed."""
        ...


class Chat:
    """See `Style`."""

    prefix = "chatcmpl-"
    object = "chat.completion"
    piece_object = "chat.completion.chunk"

    def opening(self) -> Json | None:
        """See `Style.opening`."""
        return self._delta({"role": "assistant", "content": ""})

    def piece(self, said: Said) -> Json:
        """See `Style.piece`."""
        return self._delta({"content": said.text}, said)

    def ending(self, reason: FinishReason) -> Json:
        """See `Style.ending`."""
        return self._delta({}, reason=reason)

    def whole(self, said: Said, reason: FinishReason) -> Json:
        """See `Style.whole`."""
        message = {"role": "assistant", "content": said.text, "refusal": None}
        logprobs = chat_logprobs(said.logprobs)
        return {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": reason.value}

    def _delta(
        self, delta: Json, said: Said | None = None, reason: FinishReason | None = None
    ) -> Json:
        logprobs = None if said is None else chat_logprobs(said.logprobs)
        finish = None if reason is None else reason.value
        return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


class Completion:
    """See `Style`."""

    prefix = "cmpl-"
    object = piece_object = "text_completion"

    def opening(self) -> Json | None:
        """See `Style.opening`."""
        return None

    def piece(self, said: Said) -> Json:
        """See `Style.piece`."""
        return self._choice(said, None)

    def ending(self, reason: FinishReason) -> Json:
        """See `Style.ending`."""
        return self._choice(Said(""), reason)

    def whole(self, said: Said, reason: FinishReason) -> Json:
        """See `Style.whole`."""
        return self._choice(said, reason)

    def _choice(self, said: Said, reason: FinishReason | None) -> Json:
        logprobs = completion_logprobs(said.logprobs, offset=said.offset)
        finish = None if reason is None else reason.value
        return {"index": 0, "text": said.text, "logprobs": logprobs, "finish_reason": finish}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every part of an answer carries."""

    id: str
    created: int
    """Seconds since 1970."""
    model: str

    def around(self, object: str, *choices: Json, **more: Any) -> Json:
        """A message."""
        return {
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
            **more,
        }


def usage(stats: RequestStats) -> Json:
    """Tokens. Drafted ones that were rejected were never part of the answer."""
    told = stats.speculation
    num_rejected = told.num_draft_tokens - told.num_accepted_draft_tokens
    return {
        "prompt_tokens": stats.num_prompt_tokens,
        "completion_tokens": stats.num_output_tokens,
        "total_tokens": stats.num_prompt_tokens + stats.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": stats.num_cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": told.num_accepted_draft_tokens,
            "rejected_prediction_tokens": num_rejected,
        },
    }


def metrics(stats: RequestStats) -> Json:
    """What speculation did, with vLLM's names; those of ours come last."""
    told = stats.speculation
    return {
        "speculative_decoding": {
            "mean_acceptance_length": told.mean_acceptance_length,
            "draft_acceptance_rate": told.draft_acceptance_rate,
            "acceptance_histogram": _named(told.acceptance_histogram),
            "num_spec_steps": told.num_spec_steps,
            "num_accepted_draft_tokens": told.num_accepted_draft_tokens,
            "num_draft_tokens": told.num_draft_tokens,
            "num_spec_tokens": told.num_spec_tokens,
            "per_step_accepted": list(told.per_step_accepted),
            "per_step_drafted": list(told.per_step_drafted),
            "num_plain_steps": told.num_plain_steps,
            "stop_reasons": dict(told.stop_reasons),
            "fallbacks": dict(told.fallbacks),
            "lossless": told.lossless,
        }
    }


def _named(counts: Mapping[int, int]) -> dict[str, int]:
    """Keys as JSON has them."""
    return {str(key): count for key, count in counts.items()}

"""Responses as OpenAI's clients read them: chats and completions, whole and in chunks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.client import FinishReason, PromptInfo, RequestStats, Result
from slipstream.core.logprobs import Logprobs, TokenLogprob, TopLogprob
from slipstream.core.request.origins import RoundTree

Json = dict[str, Any]

IMPOSSIBLE = -9999.0
"""OpenAI's log probability of a token that can't be: JSON has no infinity."""
_FIGURES = (
    "mean_acceptance_length draft_acceptance_rate acceptance_histogram num_spec_steps"
    " num_accepted_draft_tokens num_draft_tokens num_spec_tokens per_step_accepted per_step_drafted"
    " num_plain_steps stop_reasons fallbacks lossless"
)
"""Figures of speculation, first those that have a name in vLLM."""


class CompletionChoice:
    """One answer of /v1/completions. See `ChatChoice`."""

    def __init__(self, index: int, prompt: PromptInfo, echoes: Sequence[str], n: int) -> None:
        """`echoes` are the prompts, of `n` answers each, where answers begin with them."""
        self._index, self._prompt = index, prompt
        self._echo = echoes[index // n] if echoes else None
        self._length = 0
        """Characters so far."""

    def opening(self) -> Json | None:
        """Return the prompt where it is echoed; else a stream begins with text."""
        if self._echo is None:
            return None
        (choice,) = self.chunk(self._echo, ())
        return {**choice, "logprobs": echoed_logprobs(self._prompt.logprobs, self._echo)}

    def chunk(
        self, text: str, logprobs: Logprobs, reason: FinishReason | None = None
    ) -> list[Json]:
        choice = {
            "index": self._index,
            "text": text,
            "logprobs": completion_logprobs(logprobs, offset=self._length),
            "finish_reason": None if reason is None else reason.value,
        }
        self._length += len(text)
        return [choice]

    def ending(self, reason: FinishReason) -> list[Json]:
        return self.chunk("", (), reason)

    def whole(self, result: Result) -> Json:
        before = self.opening()
        choice = self.chunk(result.text, result.logprobs, result.finish_reason)[0]
        return choice if before is None else _joined(before, choice)


@dataclass(frozen=True, slots=True)
class ApiFormat:
    """Form of the answers of a path."""

    prefix: str
    """Beginning of their ids."""
    object: str
    chunk_object: str
    choice: Callable[[int, PromptInfo], Any]
    """Return one answer by its number: a `ChatChoice` or `CompletionChoice`."""


def usage(choices: Sequence[RequestStats], *, n: int = 1) -> Json:
    """Return counts of tokens of all answers, `n` to each prompt, without rejected drafts."""
    drafted = sum(stats.speculation.num_draft_tokens for stats in choices)
    accepted = sum(stats.speculation.num_accepted_draft_tokens for stats in choices)
    num_prompt = sum(stats.num_prompt_tokens for stats in choices[::n])
    num_cached = sum(stats.num_cached_tokens for stats in choices[::n])
    return {
        **counts(num_prompt, sum(stats.num_output_tokens for stats in choices)),
        "prompt_tokens_details": {"cached_tokens": num_cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


def counts(num_prompt: int, num_output: int) -> Json:
    """Return counts of tokens as they are in usage."""
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
    }


def metrics(choices: Sequence[RequestStats]) -> Json:
    """Return figures of speculation; of several answers, a list in their order."""
    figures = [
        {name: getattr(stats.speculation, name) for name in _FIGURES.split()} for stats in choices
    ]
    return {"speculative_decoding": figures[0] if len(figures) == 1 else figures}


def rounds_json(rounds: Sequence[RoundTree]) -> Json:
    """Return rounds as they are shown: trees of draft tokens, what was kept, and seconds."""
    return {"rounds": list(map(_round, rounds))}


def _round(tree: RoundTree) -> Json:
    texts = [node.text.decode(errors="replace") for node in tree.nodes]
    return {
        "nodes": [
            {"text": text, "parent": it.parent, "origin": it.origin.value, "kept": it.is_kept}
            for text, it in zip(texts, tree.nodes, strict=True)
        ],
        "tokens": [{"bytes": list(it.text), "origin": it.origin.value} for it in tree.tokens],
        "draft_s": tree.draft_s,
        "verify_s": tree.verify_s,
    }


def chat_logprobs(logprobs: Logprobs) -> Json | None:
    """Return those of a chat's tokens that have any; None without any."""
    if not logprobs:
        return None
    known = [token for token in logprobs if token is not None]
    content = [{**_entry(it), "top_logprobs": [*map(_entry, it.top)]} for it in known]
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


def echoed_logprobs(logprobs: Logprobs, text: str) -> Json | None:
    """Return those of a prompt with this text, of which the first token has none."""
    if not logprobs:
        return None
    rest = b"".join(token.text for token in logprobs[1:] if token is not None)
    first = text.removesuffix(rest.decode(errors="replace"))
    behind = completion_logprobs(logprobs[1:], offset=len(first)) or _NOTHING
    before = {"tokens": first, "token_logprobs": None, "top_logprobs": None, "text_offset": 0}
    return {name: [before[name], *behind[name]] for name in _NOTHING}


_NOTHING: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _joined(one: Json, other: Json) -> Json:
    known = [part["logprobs"] for part in (one, other) if part["logprobs"] is not None]
    logprobs = {name: [it for part in known for it in part[name]] for name in _NOTHING}
    text = one["text"] + other["text"]
    return {**other, "text": text, "logprobs": logprobs if known else None}


def _entry(it: TokenLogprob | TopLogprob) -> Json:
    text, logprob = it.text.decode(errors="replace"), _finite(it.logprob)
    return {"token": text, "logprob": logprob, "bytes": list(it.text)}


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

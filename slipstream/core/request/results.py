"""Results of a request. Plain values."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from slipstream.core.errors import InvalidRequest
from slipstream.core.logprobs import Logprobs
from slipstream.core.request.origins import Origins, RoundTree
from slipstream.core.request.stats import SpeculationStats
from slipstream.core.request.tools import ToolFormat
from slipstream.core.types import FinishReason

_TUPLES = ("per_step_accepted", "per_step_drafted", "per_step_depth")


@dataclass(frozen=True, slots=True)
class PromptInfo:
    """Facts of a request at its start."""

    request_id: str
    """Names the request in answers, errors and logs."""
    model: str
    """The model that answers."""
    seed: int
    num_prompt_tokens: int
    """Tokens before the output, earlier turns included."""
    tool_format: ToolFormat | None = None
    """The text in which the model calls tools."""
    logprobs: Logprobs = ()
    """Log probabilities of the prompt's tokens, None for the first; empty unless requested."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Times of a request's parts, in seconds.

    `prefill_s` is up to the first final token, `decode_s` the rest; `draft_s` and `verify_s`
    are the engines' parts of `decode_s`, the way there and back included. The rest splits these two
    up where engines live elsewhere (see `ReplyTiming`), and is 0 otherwise.
    """

    prefill_s: float
    decode_s: float
    draft_s: float
    verify_s: float
    draft_service_s: float = 0.0
    draft_engine_s: float = 0.0
    kv_wait_s: float = 0.0
    target_service_s: float = 0.0
    target_engine_s: float = 0.0
    serialisation_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Continuity:
    """Losses that a request survived."""

    is_kept: bool = False
    """True if the answer was stored, so that the same request again gets it."""
    num_resumed_tokens: int = 0
    """Output tokens that were final before this call; statistics do not count their rounds."""
    num_unkept_tokens: int = 0
    """Tokens that were sent before they could be kept."""
    num_target_losses: int = 0
    """Times that a target was lost, and another one went on."""


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Counts, timings and speculation statistics of one request."""

    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens whose keys and values were there from an earlier turn."""
    num_output_tokens: int
    timings: Timings
    speculation: SpeculationStats
    continuity: Continuity = Continuity()

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second, prefill included; those of this call."""
        return self._num_new_tokens / (self.timings.prefill_s + self.timings.decode_s)

    @property
    def decode_tokens_per_s(self) -> float:
        """Output tokens after the first round per second of decoding."""
        return self._num_new_tokens / self.timings.decode_s if self.timings.decode_s else 0.0

    @property
    def _num_new_tokens(self) -> int:
        return max(self.num_output_tokens - self.continuity.num_resumed_tokens, 0)


@dataclass(frozen=True, slots=True)
class Ending:
    """The last word of a request."""

    reason: FinishReason
    stats: RequestStats

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Ending":
        """Return the value of what `to_json` made. Raises `ValueError` for anything else."""
        try:
            values = json.loads(text)
            return cls(FinishReason(values["reason"]), _stats_from(values["stats"]))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"this is no ending of a request: {error}") from None

    def answered_again(self) -> "Ending":
        """Return the ending for a caller who sends the request again: nothing of it is new."""
        stats = self.stats
        continuity = replace(stats.continuity, num_resumed_tokens=stats.num_output_tokens)
        return Ending(self.reason, replace(stats, continuity=continuity))


def _stats_from(values: Mapping[str, Any]) -> RequestStats:
    speculation = values["speculation"]
    lists = {name: tuple(speculation[name]) for name in _TUPLES}
    histogram = {int(num): steps for num, steps in speculation["acceptance_histogram"].items()}
    parts = {
        "timings": Timings(**values["timings"]),
        "speculation": SpeculationStats(
            **{**speculation, **lists, "acceptance_histogram": histogram}
        ),
        "continuity": Continuity(**values["continuity"]),
    }
    return RequestStats(**{**values, **parts})


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole tokens and all of their text.

    The first chunk carries `prompt`; the last one, which may be the first, reason and statistics.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stats: RequestStats | None = None
    prompt: PromptInfo | None = None
    origins: Origins = ()
    """Origin of each token; empty unless requested."""
    logprobs: Logprobs = ()
    """Log probability of each token; empty unless requested."""
    rounds: tuple[RoundTree, ...] = ()
    """Rounds that made its tokens final, or more; empty unless asked for."""

    def __post_init__(self) -> None:
        _check_length("origins", self.origins, self.token_ids)
        _check_length("log-probabilities", self.logprobs, self.token_ids)


@dataclass(frozen=True, slots=True)
class Result:
    """A finished request. `text` ends before a stop string, `token_ids` with the token of it."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: RequestStats
    prompt: PromptInfo
    origins: Origins = ()
    """Origin of each token; empty unless requested."""
    logprobs: Logprobs = ()
    """Log probability of each token; empty unless requested."""

    def __post_init__(self) -> None:
        _check_length("origins", self.origins, self.token_ids)
        _check_length("log-probabilities", self.logprobs, self.token_ids)

    @property
    def request_id(self) -> str:
        """Names the request in answers, errors and logs."""
        return self.prompt.request_id

    @property
    def lossless(self) -> bool:
        """False for `target-init` verification, which changes the distribution of the output."""
        return self.stats.speculation.lossless


def collected(chunks: Iterable[Chunk]) -> Result:
    """All of a request's chunks as its result."""
    parts = list(chunks)
    first, last = parts[0], parts[-1]
    assert first.prompt is not None
    assert last.finish_reason is not None
    assert last.stats is not None
    return Result(
        text="".join(part.text for part in parts),
        token_ids=tuple(token for part in parts for token in part.token_ids),
        finish_reason=last.finish_reason,
        stats=last.stats,
        prompt=first.prompt,
        origins=tuple(origin for part in parts for origin in part.origins),
        logprobs=tuple(item for part in parts for item in part.logprobs),
    )


def _check_length(what: str, said: Sequence[object], token_ids: Sequence[int]) -> None:
    if said and len(said) != len(token_ids):
        raise InvalidRequest(f"{len(token_ids)} tokens have {len(said)} {what}")

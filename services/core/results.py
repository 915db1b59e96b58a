"""What a request gives back. Plain values; knows nothing of engines."""

from dataclasses import dataclass, field

from slipstream.core.stats import SpeculationStats
from slipstream.core.types import FinishReason


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a request's time went, in seconds.

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
class RequestStats:
    """Counts, timings and speculation statistics of one request."""

    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens whose keys and values were there from an earlier turn."""
    num_output_tokens: int
    timings: Timings
    speculation: SpeculationStats

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second, prefill included."""
        return self.num_output_tokens / (self.timings.prefill_s + self.timings.decode_s)

    @property
    def decode_tokens_per_s(self) -> float:
        """Output tokens after the first round per second of decoding."""
        return self.num_output_tokens / self.timings.decode_s if self.timings.decode_s else 0.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole tokens and all of their text; the last chunk carries reason and statistics."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stats: RequestStats | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A finished request. `text` ends before a stop string, `token_ids` with the token of it."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: RequestStats
    lossless: bool = field(default=True)
    """False for `target-init` verification, which changes the law of the output."""

"""What a command says of a finished request: one line for people, one object for programs."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from slipstream.cli.logprobs import logprob_values

if TYPE_CHECKING:
    from slipstream.core.results import RequestStats, Result


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same request decoded plainly: for the tokens, and for the speed."""

    plain: "Result"
    """In the numerics of the request itself: its tokens are those to reproduce."""
    fastest: "Result"
    """In the fastest numerics, whose tokens may differ at near-ties."""

    def speed_ratio(self, stats: "RequestStats") -> float:
        """Speed against the fastest plain decoding, prefill included."""
        return stats.tokens_per_s / self.fastest.stats.tokens_per_s

    def identity(self, result: "Result") -> str:
        """Whether the tokens are those of plain decoding: identical, different, inconclusive."""
        if result.stats.speculation.num_draft_tokens == 0:
            return "inconclusive"
        return "identical" if result.token_ids == self.plain.token_ids else "different"


_IDENTITIES = {
    "identical": "tokens identical to plain decoding",
    "different": "tokens DIFFERENT from plain decoding",
    "inconclusive": "nothing was drafted, so there is nothing to compare",
}


def stats_line(stats: "RequestStats") -> str:
    """Speed and mean acceptance length, and how often no draft answered."""
    speculation = stats.speculation
    parts = [
        f"{stats.num_output_tokens} tokens",
        f"{stats.tokens_per_s:.1f} tokens/s",
        f"mean acceptance length {speculation.mean_acceptance_length:.2f}",
    ]
    if speculation.fallbacks:
        reasons = ", ".join(sorted(speculation.fallbacks))
        parts.append(f"{sum(speculation.fallbacks.values())} rounds without a draft ({reasons})")
    return ", ".join(parts)


def comparison_line(result: "Result", comparison: Comparison) -> str:
    """Speed and identity against plain decoding."""
    plain = comparison.fastest.stats.tokens_per_s
    ratio = comparison.speed_ratio(result.stats)
    identity = _IDENTITIES[comparison.identity(result)]
    return f"{ratio:.2f}x plain decoding ({plain:.1f} tokens/s), {identity}"


def result_object(result: "Result", comparison: Comparison | None) -> dict[str, Any]:
    """A finished request as JSON values."""
    values: dict[str, Any] = {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason.value,
        "lossless": result.lossless,
        "request_id": result.request_id,
        "stats": stats_object(result.stats),
    }
    if result.origins:
        values["origins"] = [origin and origin.value for origin in result.origins]
    if result.logprobs:
        values["logprobs"] = logprob_values(result.logprobs)
    if comparison is not None:
        values["compare"] = {
            "identity": comparison.identity(result),
            "speed_ratio": comparison.speed_ratio(result.stats),
            "plain_tokens_per_s": comparison.fastest.stats.tokens_per_s,
            "plain_token_ids": list(comparison.plain.token_ids),
        }
    return values


def stats_object(stats: "RequestStats") -> dict[str, Any]:
    """Statistics as one flat JSON object, derived figures included."""
    speculation = stats.speculation
    return {
        "num_prompt_tokens": stats.num_prompt_tokens,
        "num_cached_tokens": stats.num_cached_tokens,
        "num_output_tokens": stats.num_output_tokens,
        "tokens_per_s": stats.tokens_per_s,
        "decode_tokens_per_s": stats.decode_tokens_per_s,
        **asdict(stats.timings),
        "mean_acceptance_length": speculation.mean_acceptance_length,
        "draft_acceptance_rate": speculation.draft_acceptance_rate,
        **asdict(speculation),
    }

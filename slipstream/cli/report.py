"""Output of commands: a finished request in one line or as JSON, and figures."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from slipstream.core.logprobs import TokenLogprob, TopLogprob
from slipstream.core.request.results import RequestStats, Result

if TYPE_CHECKING:
    from slipstream.client.embedded import Embedded

WIDTH_OF_FILES = 240
_IDENTITIES = {
    "identical": "tokens identical to plain decoding",
    "different": "tokens DIFFERENT from plain decoding",
    "inconclusive": "nothing was drafted, so there is nothing to compare",
}


@dataclass(frozen=True, slots=True)
class PlainComparison:
    """Results beside plain decoding of the same requests: their tokens, and their speed."""

    results: Sequence[Result]
    plain: Sequence[Result]

    @property
    def speed_ratio(self) -> float:
        """Speed over that of plain decoding, prefill included."""
        return _speed(self.results) / _speed(self.plain)

    @property
    def identity(self) -> str:
        """Return how the tokens compare with plain decoding: identical, different, inconclusive."""
        if not any(one.stats.speculation.num_draft_tokens for one in self.results):
            return "inconclusive"
        tokens, plain = ([one.token_ids for one in side] for side in (self.results, self.plain))
        return "identical" if tokens == plain else "different"

    def line(self) -> str:
        plain, identity = _speed(self.plain), _IDENTITIES[self.identity]
        return f"{self.speed_ratio:.2f}x plain decoding ({plain:.1f} tokens/s), {identity}"

    def sum_lines(self, engines: "Embedded | None") -> Iterator[str]:
        """Yield the figures of several requests together, and what `engines` have measured where
        drafting gained nothing."""
        num_tokens = sum(one.stats.num_output_tokens for one in self.results)
        speed = f"{num_tokens} tokens, {_speed(self.results):.1f} tokens/s"
        yield f"[{len(self.results)} prompts, {speed}, {self.line()}]"
        is_drafted = self.identity != "inconclusive"
        if engines is None or (is_drafted and self.speed_ratio >= 1):
            return
        cost_s, step_s = engines.engine.budget.cost_s, engines.drafter.facts.step_s
        few, many = (f"{cost_s(count) / cost_s(1):.2f}" for count in (4, 8))
        costs = f"4 tokens take {few} times as long to verify as one, 8 tokens {many} times"
        if step_s is not None:
            costs += f", and a draft step takes {step_s / cost_s(1):.2f} times as long"
        found = "Drafting did not pay" if is_drafted else "Nothing was drafted"
        yield f"{found}: here {costs}."

    def values(self) -> dict[str, Any]:
        return {
            "identity": self.identity,
            "speed_ratio": self.speed_ratio,
            "plain_tokens_per_s": _speed(self.plain),
            "plain_token_ids": [token for one in self.plain for token in one.token_ids],
        }


def _speed(results: Iterable[Result]) -> float:
    """Return tokens per second of all of them, one after the other."""
    stats = [result.stats for result in results]
    seconds = [one.timings.prefill_s + one.timings.decode_s for one in stats]
    return fmean((one.tokens_per_s for one in stats), weights=seconds)


def stats_line(stats: RequestStats) -> str:
    """Return speed, mean acceptance length, and the rounds in which no draft answered."""
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


def result_object(result: Result, comparison: PlainComparison | None) -> dict[str, Any]:
    """Return a finished request as JSON values."""
    stats, speculation = result.stats, result.stats.speculation
    counts = asdict(stats)
    parts = [counts.pop(part) for part in ("timings", "speculation", "continuity")]
    values: dict[str, Any] = {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason.value,
        "lossless": result.lossless,
        "request_id": result.request_id,
        "stats": {
            **counts,
            "tokens_per_s": stats.tokens_per_s,
            "decode_tokens_per_s": stats.decode_tokens_per_s,
            **parts[0],
            "mean_acceptance_length": speculation.mean_acceptance_length,
            "draft_acceptance_rate": speculation.draft_acceptance_rate,
            **parts[1],
        },
    }
    if result.origins:
        values["origins"] = [origin and origin.value for origin in result.origins]
    if result.logprobs:
        values["logprobs"] = [item and _logprob_object(item) for item in result.logprobs]
    if comparison is not None:
        values["compare"] = comparison.values()
    return values


def _logprob_object(item: TokenLogprob) -> dict[str, Any]:
    """Return JSON values; bytes also as text, in which U+FFFD stands for what is no character."""
    top = [{"token_id": other.token_id, **_values(other)} for other in item.top]
    return {**_values(item), "top": top}


def _values(item: TokenLogprob | TopLogprob) -> dict[str, Any]:
    text = item.text.decode(errors="replace")
    return {"logprob": item.logprob, "text": text, "bytes": list(item.text)}


def show(*figures: Table | str) -> None:
    """Print tables as wide as the terminal, and sentences; lines of a file may be of any width."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    for figure in figures:
        console.print(figure, markup=False, soft_wrap=isinstance(figure, str))

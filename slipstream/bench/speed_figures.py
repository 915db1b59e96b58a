"""Figures of a method from its single outputs, and their tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.table import Table

from slipstream.bench.methods import Method
from slipstream.bench.report import Figures, fixed, number, table, table_of
from slipstream.bench.statistics import SpeculationCounts, differences, quotient
from slipstream.core.request.results import Timings
from slipstream.core.request.stats import SpeculationStats

ByMethod = Mapping[str, Figures]
"""Figures of `method_figures` by method."""


@dataclass(frozen=True, slots=True)
class MethodReply:
    """Reply of a method, and how long it took."""

    token_ids: tuple[int, ...]
    timings: Timings
    speculation: SpeculationStats | None = None
    """None where nothing could be drafted."""


@dataclass(frozen=True, slots=True)
class Output:
    """Reply of one method to one question."""

    question_id: int | str
    category: str
    prompt: tuple[int, ...]
    reply: MethodReply


@dataclass(frozen=True, slots=True)
class Divergence:
    """Position where an output leaves plain decoding's, and how close plain decoding's choice was.

    `position` counts output tokens before; `margin` is the score of plain decoding's token over
    that of the next best (logits, or what sampling adds up to), None when not looked at.
    """

    question_id: int | str
    position: int
    margin: float | None = None


@dataclass(frozen=True, slots=True)
class MethodComparison:
    """The outputs of a method beside those it is measured against, for the same questions."""

    method: Method
    outputs: Sequence[Output]
    plain: Sequence[Output]
    """The fastest plain decoding: for the speed."""
    reference: Sequence[Output]
    """Plain decoding in the method's own numerics: for the tokens."""
    is_greedy: bool = True
    divergences: Sequence[Divergence] = ()

    def only(self, category: str) -> "MethodComparison":
        """Return the comparison for one category."""

        def of(outputs: Sequence[Output]) -> list[Output]:
            return [output for output in outputs if output.category == category]

        outputs = of(self.outputs)
        ids = {output.question_id for output in outputs}
        return replace(
            self,
            outputs=outputs,
            plain=of(self.plain),
            reference=of(self.reference),
            divergences=[item for item in self.divergences if item.question_id in ids],
        )


def divergences(outputs: Sequence[Output], reference: Sequence[Output]) -> list[Divergence]:
    """Return outputs that are not the reference's, at the earliest difference of repeats."""
    expected = {output.question_id: output.reply.token_ids for output in reversed(reference)}
    pairs = ((output.question_id, output.reply.token_ids) for output in outputs)
    return [Divergence(*item) for item in differences(pairs, expected).items()]


def method_figures(comparison: MethodComparison) -> dict[str, Any]:
    """Return `{"overall": R, "categories": {CATEGORY: R}}`."""
    categories = dict.fromkeys(output.category for output in comparison.outputs)
    return {
        "overall": figures(comparison),
        "categories": {name: figures(comparison.only(name)) for name in categories},
    }


def figures(comparison: MethodComparison) -> dict[str, Any]:
    """Return one R: speed, acceptance and identity, of all outputs together."""
    outputs, plain = comparison.outputs, comparison.plain
    counts = SpeculationCounts.of(
        out.reply.speculation for out in outputs if out.reply.speculation is not None
    )
    decode_s = _sum(outputs, lambda reply: reply.timings.decode_s)
    return {
        "tokens_per_s": _total_rate(outputs),
        "ratio": quotient(_total_rate(outputs), _total_rate(plain)),
        "ratio_decode": quotient(_decode_rate(outputs), _decode_rate(plain)),
        "mean_acceptance_length": counts.acceptance_length,
        "draft_acceptance_rate": quotient(counts.accepted, counts.drafted) or 0.0,
        "drafted_tokens": counts.drafted,
        "outputs": len({output.question_id for output in outputs}),
        **_identity(comparison, counts.drafted),
        "tokens": int(_sum(outputs, lambda reply: len(reply.token_ids))),
        "rounds": counts.speculative,
        "plain_rounds": counts.plain,
        "draft_share": quotient(_sum(outputs, lambda reply: reply.timings.draft_s), decode_s),
        "verify_share": quotient(_sum(outputs, lambda reply: reply.timings.verify_s), decode_s),
    }


def _identity(comparison: MethodComparison, num_drafted: int) -> Mapping[str, Any]:
    """Count outputs identical to plain decoding; None where that has no meaning.

    Nothing drafted is nothing shown, and where only the distribution is the same (or not even
    that), other tokens are no fault.
    """
    method = comparison.method
    num_outputs = len({output.question_id for output in comparison.outputs})
    num_different = len(divergences(comparison.outputs, comparison.reference))
    identical: int | None = num_outputs - num_different
    verdict = "different" if num_different else "identical"
    if method.name == method.reference:
        verdict = "reference"
    elif method.is_drafting and num_drafted == 0:
        verdict, identical = "inconclusive", None
    elif not method.is_comparable(is_greedy=comparison.is_greedy):
        verdict = "not-comparable"
    return {
        "identical": identical,
        "identity": verdict,
        "identity_promised": method.promises_identity(is_greedy=comparison.is_greedy),
        "divergences": [asdict(item) for item in comparison.divergences],
    }


def _sum(outputs: Sequence[Output], value: Callable[[MethodReply], float]) -> float:
    return sum(value(output.reply) for output in outputs)


def _total_rate(outputs: Sequence[Output]) -> float | None:
    """Return tokens per second, prefill included."""
    seconds = _sum(outputs, lambda reply: reply.timings.prefill_s + reply.timings.decode_s)
    return quotient(_sum(outputs, lambda reply: len(reply.token_ids)), seconds)


def _decode_rate(outputs: Sequence[Output]) -> float | None:
    """Return tokens after the first, which is prefill's, per second of decoding."""
    tokens = _sum(outputs, lambda reply: max(len(reply.token_ids) - 1, 0))
    return quotient(tokens, _sum(outputs, lambda reply: reply.timings.decode_s))


def speed_table(methods: ByMethod) -> Table:
    """Return the figures of every method, all categories together."""
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        "ratio": number("ratio", 2, "x"),
        "ratio decode": number("ratio_decode", 2, "x"),
        "acceptance length": number("mean_acceptance_length", 2),
        "acceptance rate": number("draft_acceptance_rate", 2),
        "drafted": lambda of: str(of["drafted_tokens"]),
        "draft share": number("draft_share", 2),
        "identical": _identity_text,
    }
    rows = (([name], parts["overall"]) for name, parts in methods.items())
    return table_of(["method"], columns, rows)


def category_table(methods: ByMethod) -> Table:
    """Return ratio and acceptance length of every method (columns) in every category (rows)."""
    shown = table("ratio (acceptance length)", *methods)
    names = dict.fromkeys(name for parts in methods.values() for name in parts["categories"])
    for category in names:
        found = [parts["categories"][category] for parts in methods.values()]
        cells = [
            f"{fixed(of['ratio'], 2, 'x')} ({of['mean_acceptance_length']:.2f})" for of in found
        ]
        shown.add_row(category, *cells)
    return shown


def _identity_text(of: Figures) -> str:
    """Return how many outputs are those of plain decoding in the same numerics."""
    if of["identity"] in ("reference", "inconclusive"):
        return str(of["identity"])
    share = f"{of['identical']}/{of['outputs']}"
    if of["identity"] == "not-comparable":
        return f"{share}, not expected"
    if of["identity"] == "different" and of["identity_promised"]:
        return f"{share}, BROKEN PROMISE"
    return share


def divergence_lines(methods: ByMethod) -> list[str]:
    """Return, per method, where its outputs first left plain decoding's, and by which margin."""
    lines = []
    for name, parts in methods.items():
        of = parts["overall"]
        if not of["divergences"] or of["identity"] == "reference":
            continue
        places = [
            f"question {item['question_id']} at token {item['position']},"
            f" margin {item['margin']:.3g}"
            for item in of["divergences"]
        ]
        share = f"{of['identical']} of {of['outputs']} outputs identical"
        lines.append(f"{name}: {share}; first differences: {'; '.join(places)}")
    return lines

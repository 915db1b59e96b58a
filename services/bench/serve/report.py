"""The figures under load as tables for people. The numbers are made elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from slipstream.bench.report import fixed, table
from slipstream.bench.serve.distributions import PERCENTS
from slipstream.bench.serve.plan import Point
from slipstream.bench.serve.ratios import BETTER

Figures = Mapping[str, Any]

_MEASURES = {
    "ttft_ms": "time to first token",
    "tpot_ms": "time per output token",
    "latency_ms": "whole answer",
    "gap_ms": "between chunks",
    "sent_late_ms": "sent late",
}
_BASELINES = {BETTER: "the better, each time"}


def load_table(figures: Figures) -> Table:
    """One row for each point and arm: how much was done, and what it cost a user."""
    shown = table(
        "load",
        "method",
        "tokens/s",
        "all at work",
        "of one plain",
        "requests/s",
        "goodput/s",
        "first token p50/p99 ms",
        "per token p50/p99 ms",
        "acceptance length",
        "speculative rounds",
        "cached",
        "identical",
        "errors",
    )
    for name, arm, of in _rows(figures):
        shown.add_row(
            name,
            arm,
            fixed(of["tokens_per_s"], 1),
            fixed(of["steady_tokens_per_s"], 1),
            fixed((of["over_one_plain"] or {}).get("median"), 2, "x"),
            fixed(of["requests_per_s"], 2),
            _goodput(of["goodput"]),
            _pair(of["ttft_ms"]),
            _pair(of["tpot_ms"]),
            fixed(of["mean_acceptance_length"], 2),
            f"{of['speculative_share']:.0%}",
            f"{of['cached_tokens']}/{of['prompt_tokens']}",
            _identity(of["identity"]),
            str(sum(of["errors"].values())),
        )
    return shown


def latency_table(figures: Figures) -> Table:
    """Every latency of each point and arm, in milliseconds."""
    shown = table("ms", "load", "method", *(f"p{percent}" for percent in PERCENTS), "mean")
    for measure, label in _MEASURES.items():
        for name, arm, of in _rows(figures):
            if of[measure] is not None:
                shown.add_row(label, name, arm, *(fixed(ms, 1) for ms in of[measure].values()))
    return shown


def ratio_table(figures: Figures) -> Table:
    """Tokens per second of arms over those of others, run by run."""
    shown = table("ratio", "load", "over", "median", "interval", "confidence", "pairs")
    for point in figures["points"]:
        for subject, against in point["ratios"].items():
            for base, found in against.items():
                cells = _interval(found)
                shown.add_row(subject, _name(point), _BASELINES.get(base, base), *cells)
    return shown


def intruder_table(figures: Figures) -> Table:
    """One row for each point and arm: what the running sessions felt of the long prompt."""
    windows = ("before", "during", "after")
    shown = table(
        "load",
        "method",
        *(f"{window} ms/token" for window in windows),
        "during/before",
        "interval",
        "confidence",
        "pairs",
        *(f"longest gap {window} ms" for window in windows),
        "intruder's first token ms",
        "errors",
    )
    for name, arm, of in _rows(figures):
        shown.add_row(
            name,
            arm,
            *(fixed(of[f"{window}_ms"], 1) for window in windows),
            *_interval(of["ratio"]),
            *(fixed(of[f"{window}_gap_ms"], 1) for window in windows),
            fixed(of["intruder_ttft_ms"], 1),
            str(sum(of["errors"].values())),
        )
    return shown


def remarks(figures: Figures) -> list[str]:
    """What went another way than it should: errors, other tokens, rounds without a draft."""
    lines = []
    for name, arm, of in _rows(figures):
        for kind, count in of["errors"].items():
            lines.append(f"{name}, {arm}: {count} {kind}: {of['error_examples'][kind]}")
        if reasons := of.get("fallbacks"):
            said = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
            lines.append(f"{name}, {arm}: rounds without a draft: {said}")
        if places := (of.get("identity") or {}).get("differences"):
            said = "; ".join(f"{at['question_id']} at token {at['position']}" for at in places)
            lines.append(f"{name}, {arm}: other tokens than alone in question {said}")
    return lines


def _rows(figures: Figures) -> Iterator[tuple[str, str, Figures]]:
    for point in figures["points"]:
        for arm, of in point["arms"].items():
            yield _name(point), arm, of


def _name(point: Figures) -> str:
    return Point(point["kind"], point["value"]).name


def _pair(of: Figures | None) -> str:
    return "-" if of is None else f"{of['p50']:.1f} / {of['p99']:.1f}"


def _goodput(of: Figures | None) -> str:
    if of is None or of["share"] is None:
        return "-"
    return f"{fixed(of['requests_per_s'], 2)} ({of['share']:.0%})"


def _identity(of: Figures | None) -> str:
    if of is None:
        return "-"
    share = f"{of['identical']}/{of['outputs']}"
    return share if of["expected"] else f"{share}, not expected"


def _interval(of: Figures | None) -> Sequence[str]:
    if of is None:
        return ("-", "-", "-", "0")
    return (
        f"{of['median']:.3f}x",
        f"{of['low']:.3f} to {of['high']:.3f}",
        f"{of['coverage']:.1%}",
        str(of["count"]),
    )

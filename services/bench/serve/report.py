"""Tables of the figures under load."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from slipstream.bench.identity import position_text
from slipstream.bench.report import fixed, table
from slipstream.bench.serve.figures import BETTER
from slipstream.bench.serve.plan import Point
from slipstream.bench.statistics import PERCENTS

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
    """Return throughput and latency, one row for each point and configuration."""
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
    for name, config, of in _rows(figures):
        shown.add_row(
            name,
            config,
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
    """Return every latency of each point and configuration, in milliseconds."""
    shown = table("ms", "load", "method", *(f"p{percent}" for percent in PERCENTS), "mean")
    for measure, label in _MEASURES.items():
        for name, config, of in _rows(figures):
            if of[measure] is not None:
                shown.add_row(label, name, config, *(fixed(ms, 1) for ms in of[measure].values()))
    return shown


def ratio_table(figures: Figures) -> Table:
    """Return tokens per second of configurations over those of others, run by run."""
    shown = table("ratio", "load", "over", "median", "interval", "confidence", "pairs")
    for point in figures["points"]:
        for subject, against in point["ratios"].items():
            for base, found in against.items():
                cells = _interval(found)
                shown.add_row(subject, _name(point), _BASELINES.get(base, base), *cells)
    return shown


def interference_table(figures: Figures) -> Table:
    """Return how a long prompt slowed the running sessions, one row for each configuration."""
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
        "long prompt's first token ms",
        "errors",
    )
    for name, config, of in _rows(figures):
        shown.add_row(
            name,
            config,
            *(fixed(of[f"{window}_ms"], 1) for window in windows),
            *_interval(of["ratio"]),
            *(fixed(of[f"{window}_gap_ms"], 1) for window in windows),
            fixed(of["intruder_ttft_ms"], 1),
            str(sum(of["errors"].values())),
        )
    return shown


def remarks(figures: Figures) -> list[str]:
    """Return what went wrong: errors, other tokens, rounds without a draft."""
    lines = []
    for name, config, of in _rows(figures):
        for kind, count in of["errors"].items():
            lines.append(f"{name}, {config}: {count} {kind}: {of['error_examples'][kind]}")
        if reasons := of.get("fallbacks"):
            said = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
            lines.append(f"{name}, {config}: rounds without a draft: {said}")
        if places := (of.get("identity") or {}).get("differences"):
            said = position_text(places)
            lines.append(f"{name}, {config}: other tokens than alone in question {said}")
    return lines


def _rows(figures: Figures) -> Iterator[tuple[str, str, Figures]]:
    for point in figures["points"]:
        for config, of in point["arms"].items():
            yield _name(point), config, of


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

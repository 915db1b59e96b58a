"""Tables and plots of the figures under load."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from slipstream.bench.report import (
    Figures,
    draw_line,
    fallback_line,
    fixed,
    number,
    position_text,
    scale_loads,
    table,
    table_of,
)
from slipstream.bench.serve.figures import BETTER
from slipstream.bench.serve.interference import WINDOWS
from slipstream.bench.serve.plan import Point
from slipstream.bench.statistics import PERCENTS
from slipstream.plots import save_plot

_MEASURES = {
    "ttft_ms": "time to first token",
    "tpot_ms": "time per output token",
    "latency_ms": "whole answer",
    "gap_ms": "between chunks",
    "sent_late_ms": "sent late",
}
_LABELS = ("load", "method")
_BASELINES = {BETTER: "the better, each time"}
_AXES = {"concurrency": "users who wait for their answers", "rate": "users a second"}
_PLOTS = {
    "tokens-per-s": ("Output tokens of all requests", "tokens per second"),
    "ttft": ("Time to the first token", "ms"),
    "tpot": ("Time per output token", "ms"),
}


def load_table(figures: Figures) -> Table:
    """Return throughput and latency, one row for each point and method."""
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        "all at work": number("steady_tokens_per_s", 1),
        "of one plain": lambda of: fixed((of["over_one_plain"] or {}).get("median"), 2, "x"),
        "requests/s": number("requests_per_s", 2),
        "goodput/s": lambda of: _goodput(of["goodput"]),
        "first token p50/p99 ms": lambda of: _pair(of["ttft_ms"]),
        "per token p50/p99 ms": lambda of: _pair(of["tpot_ms"]),
        "acceptance length": number("mean_acceptance_length", 2),
        "speculative rounds": lambda of: f"{of['speculative_share']:.0%}",
        "cached": lambda of: f"{of['cached_tokens']}/{of['prompt_tokens']}",
        "identical": lambda of: _identity(of["identity"]),
        "errors": _num_errors,
    }
    return table_of(_LABELS, columns, _rows(figures))


def latency_table(figures: Figures) -> Table:
    """Return every latency of each point and method, in milliseconds."""
    shown = table("ms", *_LABELS, *(f"p{percent}" for percent in PERCENTS), "mean")
    for measure, label in _MEASURES.items():
        for labels, of in _rows(figures):
            if of[measure] is not None:
                shown.add_row(label, *labels, *(fixed(ms, 1) for ms in of[measure].values()))
    return shown


def ratio_table(figures: Figures) -> Table:
    """Return tokens per second of methods over those of others, run by run."""
    shown = table("ratio", "load", "over", "median", "interval", "confidence", "pairs")
    for point in figures["points"]:
        for subject, against in point["ratios"].items():
            for base, found in against.items():
                cells = _interval(found)
                shown.add_row(subject, _name(point), _BASELINES.get(base, base), *cells)
    return shown


def interference_table(figures: Figures) -> Table:
    """Return how a long prompt slowed the running sessions, one row for each method."""
    columns = {
        **{f"{window} ms/token": number(f"{window}_ms", 1) for window in WINDOWS},
        "during/before": lambda of: _interval(of["ratio"])[0],
        "interval": lambda of: _interval(of["ratio"])[1],
        "confidence": lambda of: _interval(of["ratio"])[2],
        "pairs": lambda of: _interval(of["ratio"])[3],
        **{f"longest gap {window} ms": number(f"{window}_gap_ms", 1) for window in WINDOWS},
        "long prompt's first token ms": number("intruder_ttft_ms", 1),
        "errors": _num_errors,
    }
    return table_of(_LABELS, columns, _rows(figures))


def remarks(figures: Figures) -> list[str]:
    """Return what went wrong: errors, other tokens, rounds without a draft."""
    lines = []
    for labels, of in _rows(figures):
        name = ", ".join(labels)
        for kind, count in of["errors"].items():
            lines.append(f"{name}: {count} {kind}: {of['error_examples'][kind]}")
        if reasons := of.get("fallbacks"):
            lines.append(fallback_line(name, reasons))
        if places := (of.get("identity") or {}).get("differences"):
            lines.append(f"{name}: other tokens than alone in question {position_text(places)}")
    return lines


def _rows(figures: Figures) -> Iterator[tuple[tuple[str, str], Figures]]:
    for point in figures["points"]:
        for method, of in point["arms"].items():
            yield (_name(point), method), of


def _num_errors(of: Figures) -> str:
    return str(sum(of["errors"].values()))


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


def save_curves(figures: Figures, folder: Path) -> list[Path]:
    """Write every plot that there are figures for, a line a method; return where they are."""
    written = []
    for kind, axis in _AXES.items():
        points = [point for point in figures["points"] if point["kind"] == kind]
        for name, (title, unit) in _PLOTS.items() if points else ():
            path = folder / f"{kind}-{name}.png"
            save_plot(path, partial(_draw, points, name), title=title, x=axis, y=unit)
            written.append(path)
    return written


def curves(points: Sequence[Figures], name: str) -> dict[str, list[tuple[float, float]]]:
    """Return load and value of every point that has one, by the label of the line."""
    values: Mapping[str, Callable[[Figures], float | None]] = {
        f" {rank}": partial(_percentile, f"{name}_ms", rank) for rank in ("p50", "p99")
    }
    if name == "tokens-per-s":
        values = {"": lambda of: of["tokens_per_s"]}
    found: dict[str, list[tuple[float, float]]] = {}
    for label, value in values.items():
        for method in points[0]["arms"]:
            pairs = [(point["value"], value(point["arms"][method])) for point in points]
            found[f"{method}{label}"] = sorted((x, y) for x, y in pairs if y is not None)
    return found


def _percentile(key: str, rank: str, of: Figures) -> float | None:
    found: Mapping[str, float] | None = of[key]
    return None if found is None else found[rank]


def _draw(points: Sequence[Figures], name: str, axes: Any) -> None:
    """Draw every method in a colour of its own."""
    colours = {method: f"C{number}" for number, method in enumerate(points[0]["arms"])}
    for label, line in curves(points, name).items():
        style = "--" if label.endswith(" p99") else "-"
        draw_line(axes, line, label, linestyle=style, color=colours[label.partition(" ")[0]])
    scale_loads(axes, sorted(point["value"] for point in points))

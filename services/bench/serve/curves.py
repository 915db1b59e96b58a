"""Figures under load as plots: one line a configuration, over concurrency and over rate."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.bench.charts import draw_line, scale_loads
from slipstream.plots import save_plot

Figures = Mapping[str, Any]
Value = Callable[[Figures], float | None]

_AXES = {"concurrency": "users who wait for their answers", "rate": "users a second"}
_TITLES = {
    "tokens-per-s": ("Output tokens of all requests", "tokens per second"),
    "ttft": ("Time to the first token", "ms"),
    "tpot": ("Time per output token", "ms"),
}
_LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms"}


def save_curves(figures: Figures, folder: Path) -> list[Path]:
    """Write every plot that there are figures for; where they are."""
    written = []
    for kind, axis in _AXES.items():
        points = [point for point in figures["points"] if point["kind"] == kind]
        if not points:
            continue
        for name, (title, unit) in _TITLES.items():
            path = folder / f"{kind}-{name}.png"
            save_plot(path, partial(_draw, points, name), title=title, x=axis, y=unit)
            written.append(path)
    return written


def lines(points: Sequence[Figures], name: str) -> dict[str, list[tuple[float, float]]]:
    """Return load and value of every point that has one, by the label of the line."""
    found: dict[str, list[tuple[float, float]]] = {}
    for label, value in _values(name).items():
        for config in points[0]["arms"]:
            pairs = [(point["value"], value(point["arms"][config])) for point in points]
            found[f"{config}{label}"] = sorted((x, y) for x, y in pairs if y is not None)
    return found


def _values(name: str) -> dict[str, Value]:
    key = _LATENCIES.get(name)
    if key is None:
        return {"": lambda of: of["tokens_per_s"]}
    return {f" {rank}": partial(_ranked, key, rank) for rank in ("p50", "p99")}


def _ranked(key: str, rank: str, of: Figures) -> float | None:
    found: Mapping[str, float] | None = of[key]
    return None if found is None else found[rank]


def _draw(points: Sequence[Figures], name: str, axes: Any) -> None:
    """Draw every configuration in a colour of its own."""
    colours = {config: f"C{number}" for number, config in enumerate(points[0]["arms"])}
    for label, line in lines(points, name).items():
        style = "--" if label.endswith(" p99") else "-"
        draw_line(axes, line, label, linestyle=style, color=colours[label.partition(" ")[0]])
    scale_loads(axes, sorted(point["value"] for point in points))

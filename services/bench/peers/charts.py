"""Plots of a comparison with other engines: bars, and lines over concurrency; PNG and SVG."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.bench.charts import draw_line, scale_loads
from slipstream.bench.peers.report import config_names
from slipstream.plots import save_plot

Figures = Mapping[str, Any]
_SUFFIXES = (".png", ".svg")
_OURS, _OTHERS = "C0", "C7"
_SPEED = "tokens per second"


def save_charts(figures: Figures, folder: Path) -> list[Path]:
    """Write every plot that there are figures for; where they are."""
    written: list[Path] = []
    levels = figures["levels"]
    for level in levels:
        at = level["concurrency"]
        title = f"Output tokens, {at} at once" if at > 1 else "Output tokens, one at a time"
        draw = partial(_bars, level)
        written += _saved(folder / f"peers-{at}", draw, title=title, x=_SPEED, y="")
        if level["base"] and level["best"] and at == 1:
            title = f"{level['best']} and the others, by category"
            draw = partial(_categories, level)
            label = f"over {level['base']}"
            written += _saved(folder / "peers-categories", draw, title=title, x="", y=label)
    if len(levels) > 1:
        draw = partial(_lines, levels)
        title = "Output tokens of all requests"
        path = folder / "peers-concurrency"
        written += _saved(path, draw, title=title, x="requests at once", y=_SPEED)
    return written


def _saved(stem: Path, draw: Callable[[Any], None], *, title: str, x: str, y: str) -> list[Path]:
    paths = [stem.with_name(stem.name + suffix) for suffix in _SUFFIXES]
    for path in paths:
        save_plot(path, draw, title=title, x=x, y=y)
    return paths


def _bars(level: Figures, axes: Any) -> None:
    """Draw the fastest on top; ours in another colour."""
    configs = sorted(level["arms"].items(), key=lambda item: item[1]["tokens_per_s"])
    rates = [of["tokens_per_s"] for _, of in configs]
    colours = [_OURS if of["is_ours"] else _OTHERS for _, of in configs]
    bars = axes.barh([name for name, _ in configs], rates, color=colours)
    axes.bar_label(bars, fmt="%.1f", fontsize="x-small", padding=2)
    axes.tick_params(axis="y", labelsize="x-small")


def _categories(level: Figures, axes: Any) -> None:
    """Draw ratios of the best of ours and of those that are not ours; the base is the line at 1."""
    configs = level["arms"]
    others = [name for name, of in configs.items() if not of["is_ours"] and name != level["base"]]
    names = [level["best"], *others]
    categories = list(configs[level["best"]]["categories"])
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        heights = [configs[name]["categories"][at]["ratio"]["ratio"] for at in categories]
        places = [index + number * width for index in range(len(categories))]
        axes.bar(places, heights, width, label=name)
    middle = 0.4 - width / 2
    places = [index + middle for index in range(len(categories))]
    axes.set_xticks(places, labels=categories, rotation=30, ha="right", fontsize="x-small")
    axes.axhline(1.0, color="black", linewidth=0.8)


def _lines(levels: Sequence[Figures], axes: Any) -> None:
    """Draw those that ran at more than one concurrency."""
    for name in config_names(levels):
        found = [
            (level["concurrency"], level["arms"][name]["tokens_per_s"])
            for level in levels
            if name in level["arms"]
        ]
        if len(found) > 1:
            style = "-" if levels[0]["arms"][name]["is_ours"] else "--"
            draw_line(axes, found, name, linestyle=style)
    scale_loads(axes, [level["concurrency"] for level in levels])

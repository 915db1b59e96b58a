"""Plots over load, which benchmarks share. Pure but for the plot that they draw into."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.core.errors import InvalidRequest
from slipstream.plots import check_plot


def check_folder(folder: Path) -> None:
    """Raise `InvalidRequest` for what can't become a folder, and what `check_plot` does."""
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest(f"{folder} is a file, but plots go into a directory")
    check_plot(folder / "plot.png")


def draw_line(axes: Any, points: Sequence[tuple[float, float]], label: str, **style: Any) -> None:
    """Draw one line with a mark at each point."""
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        marker="o",
        markersize=3,
        label=label,
        **style,
    )


def scale_loads(axes: Any, loads: Sequence[float]) -> None:
    """Scale the axis of loads, which are usually doubled, and begin the other at 0."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(loads, labels=[f"{load:g}" for load in loads])
    axes.set_ylim(bottom=0)

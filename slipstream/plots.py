"""Plots of measurements, as files: the only module that uses matplotlib."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slipstream.core.errors import TrainingError

_FORMATS = {".png": "png", ".svg": "svg"}
_SIZE_INCHES = (8.0, 4.8)
_DOTS_PER_INCH = 120


def save_plot(path: Path, draw: Callable[[Any], None], *, title: str, x: str, y: str) -> None:
    """Write one plot, whole or not at all, as PNG or SVG by the suffix of `path`.

    `draw` gets the plot's only matplotlib Axes; what it labels makes the legend. `x` and `y`
    name the axes. TrainingError for another suffix and where matplotlib is missing.
    """
    kind = _format(path)
    figure = _new_figure()
    axes = figure.add_subplot()
    draw(axes)
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(visible=True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(fontsize="small", loc="outside right upper")  # covers no data
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(part, format=kind, dpi=_DOTS_PER_INCH)
    os.replace(part, path)


def check_plot(path: Path) -> None:
    """Raise what `save_plot` would for this path, before there is anything to plot."""
    _format(path)
    _new_figure()


def _format(path: Path) -> str:
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise TrainingError(f"a plot is written as .png or .svg, but {path} is neither")
    return kind


def _new_figure() -> Any:
    """Return a figure that belongs to no window and no global list."""
    try:
        # Imported here: it is optional.
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise TrainingError("plots need matplotlib: pip install 'slipstream[train]'") from None
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    return figure

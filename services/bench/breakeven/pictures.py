"""The sweeps as plots: what was measured, over the curve of the model."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.bench.breakeven.plan import ACCEPTANCE, COST, RTT, SESSIONS
from slipstream.plots import save_plot
from slipstream.sizing.break_even import Setting, pay_off
from slipstream.sizing.recording import Devices

Figures = Mapping[str, Any]

AXES = {
    ACCEPTANCE: "chance of each drafted token to be right",
    COST: "a drafted token over a plain round",
    RTT: "network round trip of a proposal, ms",
    SESSIONS: "sessions at once",
}
_STEPS = 60
_SUFFIXES = (".png", ".svg")


def save_pictures(figures: Figures, devices: Devices, folder: Path) -> list[Path]:
    """Write a plot of each sweep, as PNG and as SVG; where they are."""
    written = []
    for name, axis in AXES.items():
        for suffix in _SUFFIXES:
            path = folder / f"breakeven-{name.replace('_', '-')}{suffix}"
            draw = partial(_draw, figures, devices, name)
            save_plot(path, draw, title=_title(figures, name), x=axis, y="speed-up over plain")
            written.append(path)
    return written


def curve(figures: Figures, devices: Devices, name: str) -> tuple[Sequence[float], Sequence[float]]:
    """The model over one sweep's axis."""
    places = _places([point[name] for point in figures["sweeps"][name]], name)
    base = figures["base"]
    found = []
    for place in places:
        at = {**base, name: place}
        setting = Setting(figures["depth"], at[COST], at[RTT] / 1000, int(at[SESSIONS]))
        found.append(pay_off(devices, setting).speedup(at[ACCEPTANCE]))
    return places, found


def _places(values: Sequence[float], name: str) -> list[float]:
    low, high = min(values), max(values)
    if name == SESSIONS:
        return [float(count) for count in range(int(low), int(high) + 1)]
    if name == ACCEPTANCE:
        low, high = 0.0, 1.0
    return [low + (high - low) * step / _STEPS for step in range(_STEPS + 1)]


def _draw(figures: Figures, devices: Devices, name: str, axes: Any) -> None:
    axes.axhline(1.0, color="grey", linewidth=1, linestyle="--")
    axes.plot(*curve(figures, devices, name), label="model", color="tab:blue")
    points = figures["sweeps"][name]
    _bars(axes, points, name, label="measured", marker="o", color="tab:orange")
    real = [at for at in figures["real"] if name == SESSIONS or at[SESSIONS] == _size(figures)]
    if real:
        _bars(axes, real, name, label=_named(real), marker="*", color="tab:green")
    if name == ACCEPTANCE and (at := points[0]["break_even_acceptance"]) is not None:
        axes.axvline(at, color="tab:red", linewidth=1, label=f"break-even at {at:.2f}")
    axes.set_ylim(bottom=0)  # last: what is drawn afterwards would no longer be made room for


def _bars(
    axes: Any, points: Sequence[Figures], name: str, *, label: str, marker: str, color: str
) -> None:
    middle = [at["speedup"]["median"] for at in points]
    below = [at["speedup"]["median"] - at["speedup"]["low"] for at in points]
    above = [at["speedup"]["high"] - at["speedup"]["median"] for at in points]
    axes.errorbar(
        [at[name] for at in points],
        middle,
        yerr=[below, above],
        fmt=marker,
        capsize=3,
        label=label,
        color=color,
    )


def _named(real: Sequence[Figures]) -> str:
    if len(real) > 1:
        return "the draft here"
    accepted, cost = real[0][ACCEPTANCE], real[0][COST]
    return f"the draft here: acceptance {accepted:.2f}, cost ratio {cost:.2f}"


def _title(figures: Figures, name: str) -> str:
    base = figures["base"]
    others = {
        ACCEPTANCE: f"acceptance {base[ACCEPTANCE]:g}",
        COST: f"cost ratio {base[COST]:g}",
        RTT: f"round trip {base[RTT]:g} ms",
        SESSIONS: f"sessions {base[SESSIONS]:g}",
    }
    kept = ", ".join(text for key, text in others.items() if key != name)
    return f"{figures['depth']} drafted tokens, {kept}"


def _size(figures: Figures) -> int:
    return int(figures["base"][SESSIONS])

"""The figures as a table for people. The numbers are made elsewhere."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from slipstream.bench.report import fixed, table

Figures = Mapping[str, Any]


def break_even_table(figures: Figures) -> Table:
    """A line for each point of each sweep, and for the draft that there is."""
    shown = table(
        "sweep",
        "acceptance",
        "cost ratio",
        "round trip ms",
        "sessions",
        "tokens a round",
        "speed-up",
        "interval",
        "curve",
        "deviation",
        "break-even acceptance",
    )
    for name, points in figures["sweeps"].items():
        for point in points:
            shown.add_row(name, *_cells(point))
        shown.add_section()
    for real in figures["real"]:
        shown.add_row("draft here", *_real_cells(real))
    return shown


def remarks(figures: Figures) -> Iterator[str]:
    """What has to be said beside the table."""
    depth, plain_ms = figures["depth"], figures["plain_round_ms"]
    yield (
        f"{depth} tokens drafted in a round; a plain round of one session takes {plain_ms:.2f} ms,"
        " which cost ratios go by."
    )
    for name, what in (
        ("largest_deviation", "The largest deviation of a speed-up from the curve"),
        ("largest_deviation_of_round_cost", "That of what a round costs, whatever luck it had"),
    ):
        at = figures[name]
        place = ", ".join(f"{key} {value:g}" for key, value in at["point"].items())
        yield f"{what} is {at['value']:+.1%} ({place})."
    yield (
        f"{figures['num_identical']} of {figures['num_outputs']} outputs are those of plain"
        " decoding."
    )


def _cells(point: Figures) -> list[str]:
    needed = point["break_even_acceptance"]
    return [
        f"{point['acceptance']:.2f}",
        f"{point['cost_ratio']:g}",
        f"{point['rtt_ms']:g}",
        str(point["sessions"]),
        fixed(point["tokens_per_round"], 2),
        *_speedup(point),
        fixed(point["model"], 2, "x"),
        f"{point['deviation']:+.1%}",
        "never pays" if needed is None else f"{needed:.2f}",
    ]


def _real_cells(real: Figures) -> list[str]:
    return [
        fixed(real["acceptance"], 2),
        fixed(real["cost_ratio"], 2),
        "0",
        str(real["sessions"]),
        fixed(real["tokens_per_round"], 2),
        *_speedup(real),
        "-",
        "-",
        "-",
    ]


def _speedup(of: Figures) -> tuple[str, str]:
    at = of["speedup"]
    return f"{at['median']:.2f}x", f"{at['low']:.2f} to {at['high']:.2f}"

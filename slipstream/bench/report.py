"""Tables and plots of figures, which all benchmarks share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

Figures = Mapping[str, Any]
Cell = Callable[[Figures], str]
"""Shows one of the figures of a row."""


def table(first: str, *others: str, title: str | None = None) -> Table:
    """Return an empty table: names on the left, numbers on the right."""
    empty = Table(title=title, box=None, pad_edge=False, header_style="bold")
    empty.add_column(first, no_wrap=True)
    for name in others:
        empty.add_column(name, justify="right", overflow="fold")
    return empty


def table_of(
    labels: Sequence[str],
    columns: Mapping[str, Cell],
    rows: Iterable[tuple[Sequence[str], Figures]],
    *,
    title: str | None = None,
) -> Table:
    """Return a table of rows, each with its labels and a cell for each column."""
    shown = table(*labels, *columns, title=title)
    for names, of in rows:
        shown.add_row(*names, *(cell(of) for cell in columns.values()))
    return shown


def number(key: str, digits: int, unit: str = "") -> Cell:
    """Return a cell that shows one of the figures."""
    return lambda of: fixed(of[key], digits, unit)


def fixed(value: float | None, digits: int, unit: str = "") -> str:
    """Return a number, or a dash for none."""
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def fallback_line(name: str, of: Mapping[str, int]) -> str:
    """Return the rounds without a draft, by reason, in words."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in of.items())
    return f"{name}: rounds without a draft: {reasons}"


def position_text(of: Iterable[Mapping[str, int | str]]) -> str:
    """Return where outputs differ, as a file holds it, in words."""
    return "; ".join(
        f"{difference['question_id']} at token {difference['position']}" for difference in of
    )

"""Measured tables and verdicts on a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from slipstream.bench.papers.catalogue import EXPERIMENTS
from slipstream.bench.papers.experiment import Table
from slipstream.bench.papers.measured import Measured
from slipstream.bench.papers.page import measured_tables, verdicts
from slipstream.bench.report import table


def show(values: Mapping[str, Any], console: Console) -> None:
    """Everything that was measured, experiment by experiment."""
    for name, of in values["experiments"].items():
        measured = Measured(of["speed"], of["more"], values["categories"])
        console.print(EXPERIMENTS[name].title, style="bold")
        for found in measured_tables(EXPERIMENTS[name], measured):
            _print(found, console)
        for sentence, _, outcome, why in verdicts(EXPERIMENTS[name], measured):
            console.print(f"{outcome}: {sentence} {why}", markup=False, soft_wrap=True)
        console.print()


def _print(found: Table, console: Console) -> None:
    console.print(found.title)
    shown = table(*found.heads)
    for row in found.rows:
        shown.add_row(*row)
    console.print(shown)

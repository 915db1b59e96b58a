"""Two routers side by side as a table for people. The numbers are made elsewhere."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from slipstream.bench.pairs.plan import PairPlan
from slipstream.bench.report import fixed, table

Figures = Mapping[str, Any]


def pair_table(figures: Figures, plan: PairPlan, *, what: str) -> Table:
    """Speed of either, and the one over the other; `what` is in what they differ."""
    rows = table(what, "tokens/s", "95%", "first token ms", "95%")
    for name, speed in figures["tokens_per_s"].items():
        rows.add_row(name, *_cells(speed, 1), *_cells(figures["ttft_ms"][name], 1))
    rows.add_row(f"{plan.subject} / {plan.base}", *_cells(figures["ratio"], 3), "", "")
    return rows


def remarks(figures: Figures) -> list[str]:
    """What has to be said beside the table."""
    same, count = figures["num_identical"], figures["num_requests"]
    lines = [f"{same} of {count} outputs are the same with both."]
    kinds = sorted({f"{failure['name']}: {failure['sentence']}" for failure in figures["failures"]})
    if kinds:
        lines.append(f"{len(figures['failures'])} requests failed: {'; '.join(kinds)}")
    return lines


def _cells(interval: Mapping[str, float] | None, digits: int) -> tuple[str, str]:
    if interval is None:
        return "-", "-"
    low, high = (fixed(interval[name], digits) for name in ("low", "high"))
    return fixed(interval["median"], digits), f"{low} to {high}"

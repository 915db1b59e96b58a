"""What a round costs, as tables for people. The numbers are made elsewhere."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from slipstream.bench.identity import position_text
from slipstream.bench.report import fixed, table
from slipstream.bench.rounds_figures import EMBEDDED, PARTS

_LABELS = {
    "draft_engine": "draft engine",
    "kv_wait": "draft waits for keys and values",
    "draft_service": "draft service, rest",
    "draft_wire": "wire to the draft",
    "target_engine": "target engine",
    "target_service": "target service, rest",
    "target_wire": "wire to the target",
    "serialisation": "serialisation",
    "rest": "loop, text and the rest of the router",
}

Figures = Mapping[str, Mapping[str, Any]]
"""By the name of who answered."""


def answers_table(figures: Figures) -> Table:
    """One row for everybody who answered."""
    heads = ("tokens/s", "ratio", "decode tokens/s", "ratio decode", "tokens per round")
    rows = table("", *heads, "prefill ms", "outside ms", "identical", "idle others' CPU")
    for name, of in figures.items():
        rows.add_row(
            name,
            fixed(of["tokens_per_s"], 1),
            fixed(of["ratio"], 3, "x"),
            fixed(of["decode_tokens_per_s"], 1),
            fixed(of["ratio_decode"], 3, "x"),
            fixed(of["tokens"] / of["rounds"] if of["rounds"] else None, 2),
            fixed(of["prefill_ms"], 1),
            fixed(of["outside_ms"], 1),
            "reference" if name == EMBEDDED else f"{of['identical']}/{of['requests']}",
            _percent(of["others_cpu_share"]),
        )
    return rows


def parts_table(figures: Figures) -> Table:
    """What a mean round's milliseconds go to, one column for everybody who answered."""
    rows = table("ms per round", *figures)
    for part in PARTS:
        rows.add_row(_LABELS[part], *(fixed(of["round_ms"][part], 3) for of in figures.values()))
    rows.add_row("all", *(fixed(total_ms(of), 3) for of in figures.values()))
    return rows


def total_ms(of: Mapping[str, Any]) -> float:
    """Milliseconds of a mean round."""
    return float(sum(of["round_ms"].values()))


def delay_line(without: Mapping[str, Any], with_delay: Mapping[str, Any], *, ms: float) -> str:
    """What a delay between draft and target adds to a round."""
    before, after = total_ms(without), total_ms(with_delay)
    return (
        f"{ms:g} ms between draft and target, each way: {after:.3f} ms per round instead of"
        f" {before:.3f}, {after - before:+.3f} ms; {_acceptance(with_delay):.3f} tokens per round"
        f" instead of {_acceptance(without):.3f}"
    )


def remarks(figures: Figures) -> list[str]:
    """What went another way than it should: other tokens, rounds without a draft."""
    lines = []
    for name, of in figures.items():
        if places := of["differences"]:
            where = position_text(places)
            lines.append(f"{name}: other tokens than {EMBEDDED} in question {where}")
        if of["fallbacks"]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in of["fallbacks"].items())
            lines.append(f"{name}: rounds without a draft: {reasons}")
    return lines


def _acceptance(of: Mapping[str, Any]) -> float:
    return of["tokens"] / of["rounds"] if of["rounds"] else 0.0


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"

"""Tables of what a round costs, embedded and distributed."""

from collections.abc import Mapping

from rich.table import Table

from slipstream.bench.identity import position_text
from slipstream.bench.report import Figures, fallback_text, fixed, number, table, table_of
from slipstream.bench.rounds_figures import EMBEDDED, PARTS
from slipstream.bench.statistics import quotient

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

ByName = Mapping[str, Figures]
"""Figures by the name of the engine."""


def answers_table(figures: ByName) -> Table:
    """Return the speed of every engine, one row each."""
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        "ratio": number("ratio", 3, "x"),
        "decode tokens/s": number("decode_tokens_per_s", 1),
        "ratio decode": number("ratio_decode", 3, "x"),
        "tokens per round": lambda of: fixed(quotient(of["tokens"], of["rounds"]), 2),
        "prefill ms": number("prefill_ms", 1),
        "outside ms": number("outside_ms", 1),
        "identical": lambda of: (
            "reference" if of is figures[EMBEDDED] else f"{of['identical']}/{of['requests']}"
        ),
        "idle others' CPU": lambda of: _percent(of["others_cpu_share"]),
    }
    return table_of([""], columns, (([name], of) for name, of in figures.items()))


def parts_table(figures: ByName) -> Table:
    """Return what a mean round's milliseconds go to, one column for each engine."""
    rows = table("ms per round", *figures)
    for part in PARTS:
        rows.add_row(_LABELS[part], *(fixed(of["round_ms"][part], 3) for of in figures.values()))
    rows.add_row("all", *(fixed(total_ms(of), 3) for of in figures.values()))
    return rows


def total_ms(of: Figures) -> float:
    """Return the milliseconds of a mean round."""
    return float(sum(of["round_ms"].values()))


def delay_line(without: Figures, with_delay: Figures, *, ms: float) -> str:
    """Return what a delay between draft and target adds to a round."""
    before, after = total_ms(without), total_ms(with_delay)
    return (
        f"{ms:g} ms between draft and target, each way: {after:.3f} ms per round instead of"
        f" {before:.3f}, {after - before:+.3f} ms; {_acceptance(with_delay):.3f} tokens per round"
        f" instead of {_acceptance(without):.3f}"
    )


def remarks(figures: ByName) -> list[str]:
    """Return what went wrong: other tokens, rounds without a draft."""
    lines = []
    for name, of in figures.items():
        if places := of["differences"]:
            where = position_text(places)
            lines.append(f"{name}: other tokens than {EMBEDDED} in question {where}")
        if of["fallbacks"]:
            lines.append(f"{name}: rounds without a draft: {fallback_text(of['fallbacks'])}")
    return lines


def _acceptance(of: Figures) -> float:
    return quotient(of["tokens"], of["rounds"]) or 0.0


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"

"""Tables of `bench rounds`: the speed of every engine, and what a mean round's time goes to."""

from rich.table import Table

from slipstream.bench.report import (
    Figures,
    fallback_line,
    fixed,
    number,
    position_text,
    table,
    table_of,
)
from slipstream.bench.rounds import EMBEDDED, PARTS, ByName
from slipstream.bench.statistics import quotient


def answers_table(figures: ByName) -> Table:
    """Return the speed of every engine, one row each."""
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        "ratio": number("ratio", 3, "x"),
        "decode tokens/s": number("decode_tokens_per_s", 1),
        "ratio decode": number("ratio_decode", 3, "x"),
        "tokens per round": lambda of: fixed(quotient(of["tokens"], of["rounds"]), 2),
        "without a wait": lambda of: f"{of['ahead_share']:.0%}",
        "prefill ms": number("prefill_ms", 1),
        "outside ms": number("outside_ms", 1),
        "identical": lambda of: (
            "reference" if of is figures[EMBEDDED] else f"{of['identical']}/{of['requests']}"
        ),
    }
    return table_of([""], columns, (([name], of) for name, of in figures.items()))


def parts_table(figures: ByName) -> Table:
    """Return what a mean round's milliseconds go to, one column for each engine."""
    rows = table("ms per round", *figures)
    for part, label in PARTS.items():
        rows.add_row(label, *(fixed(of["round_ms"][part], 3) for of in figures.values()))
    rows.add_row("all", *(fixed(total_ms(of), 3) for of in figures.values()))
    return rows


def total_ms(of: Figures) -> float:
    """Return the milliseconds of a mean round."""
    return float(sum(of["round_ms"].values()))


def remarks(figures: ByName) -> list[str]:
    """Return what went wrong: other tokens, rounds without a draft."""
    lines = []
    for name, of in figures.items():
        if places := of["differences"]:
            where = position_text(places)
            lines.append(f"{name}: other tokens than {EMBEDDED} in question {where}")
        if of["fallbacks"]:
            lines.append(fallback_line(name, of["fallbacks"]))
    return lines

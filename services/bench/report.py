"""Tables and sentences of figures, which all benchmarks share, and those of speed and cost."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

Figures = Mapping[str, Any]
Cell = Callable[[Figures], str]
"""Shows one of the figures of a row."""


def speed_table(methods: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the figures of every method, all categories together."""
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        "ratio": number("ratio", 2, "x"),
        "ratio decode": number("ratio_decode", 2, "x"),
        "acceptance length": number("mean_acceptance_length", 2),
        "acceptance rate": number("draft_acceptance_rate", 2),
        "drafted": lambda of: str(of["drafted_tokens"]),
        "draft share": number("draft_share", 2),
        "identical": identity,
    }
    rows = (([name], parts["overall"]) for name, parts in methods.items())
    return table_of(["method"], columns, rows)


def category_table(methods: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return ratio and acceptance length of every method (columns) in every category (rows)."""
    shown = table("ratio (acceptance length)", *methods)
    names = dict.fromkeys(name for parts in methods.values() for name in parts["categories"])
    for category in names:
        cells = []
        for parts in methods.values():
            of = parts["categories"][category]
            cells.append(f"{fixed(of['ratio'], 2, 'x')} ({of['mean_acceptance_length']:.2f})")
        shown.add_row(category, *cells)
    return shown


def identity(of: Figures) -> str:
    """Return how many outputs are those of plain decoding in the same numerics."""
    if of["identity"] in ("reference", "inconclusive"):
        return str(of["identity"])
    share = f"{of['identical']}/{of['outputs']}"
    if of["identity"] == "not-comparable":
        return f"{share}, not expected"
    if of["identity"] == "different" and of["identity_promised"]:
        return f"{share}, BROKEN PROMISE"
    return share


def divergence_lines(methods: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return, per method, where its outputs first left plain decoding's, and by which margin."""
    lines = []
    for name, parts in methods.items():
        of = parts["overall"]
        if not of["divergences"] or of["identity"] == "reference":
            continue
        places = [
            f"question {item['question_id']}"
            + (f" turn {item['turn'] + 1}" if item["turn"] else "")
            + f" at token {item['position']}, margin {item['margin']:.3g}"
            for item in of["divergences"]
        ]
        share = f"{of['identical']} of {of['outputs']} outputs identical"
        lines.append(f"{name}: {share}; first differences: {'; '.join(places)}")
    return lines


def cost_table(cost: Mapping[str, Any]) -> Table:
    """Return what verifying some rows takes, and against one row."""
    kinds = cost["forward_ms"]
    heads = [head for name in kinds for head in (f"{name} ms", "of one row")]
    shown = table("rows", *heads)
    for rows in kinds["fast"]:
        cells = []
        for ms in kinds.values():
            cells += [fixed(ms[rows], 2), fixed(ms[rows] / ms["1"], 2, "x")]
        shown.add_row(rows, *cells)
    return shown


def cost_lines(cost: Mapping[str, Any]) -> list[str]:
    """Return the draft beside the target, and plain decoding beside transformers'."""
    lines = []
    if (draft := cost["draft"]) is not None:
        lines.append(
            f"draft step {draft['step_ms']:.3f} ms, {draft['step_ratio']:.1%} of a one-row target"
            f" forward; in a round, with reading its law, {draft['round_step_ms']:.3f} ms,"
            f" {draft['round_step_ratio']:.1%}"
        )
    plain = [f"{name} {fixed(ms, 2)} ms" for name, ms in cost["plain_ms_per_token"].items()]
    lines.append(f"plain decoding, per token: {', '.join(plain)}")
    return lines


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


def markdown(shown: Table) -> str:
    """Return a table with its title as Markdown."""
    heads = [str(column.header) for column in shown.columns]
    rows = zip(*(map(str, column.cells) for column in shown.columns), strict=True)
    rules = ["---", *["---:"] * (len(heads) - 1)]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, rules, *rows)]
    return "\n".join([f"**{shown.title}**", "", *lines])


def fixed(value: float | None, digits: int, unit: str = "") -> str:
    """Return a number, or a dash for none."""
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def fallback_text(of: Mapping[str, int]) -> str:
    """Return the rounds without a draft, by reason, in words."""
    return ", ".join(f"{count} {reason}" for reason, count in of.items())

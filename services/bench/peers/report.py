"""The figures as tables, on a terminal and as a part of a page. The numbers are made elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from slipstream.bench.report import fixed, table

Figures = Mapping[str, Any]
_ONE_BY_ONE = "one after another"


@dataclass(frozen=True, slots=True)
class Rows:
    """A table, whatever shows it: names on the left, numbers on the right."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def shown(self) -> Table:
        """For a terminal."""
        made = table(*self.heads)
        for row in self.rows:
            made.add_row(*row)
        return made

    def markdown(self) -> str:
        """For a page."""
        rules = ["---", *["---:"] * (len(self.heads) - 1)]
        lines = [f"| {' | '.join(cells)} |" for cells in (self.heads, rules, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines])


def tables(figures: Figures) -> Iterator[Rows]:
    """Speed at every concurrency, ratios by category, and memory."""
    for level in figures["levels"]:
        yield speed_rows(level, figures["reference"])
        if level["concurrency"] == 1:
            yield category_rows(level)
    yield memory_rows(figures["seats"])


def speed_rows(level: Figures, reference: str | None) -> Rows:
    """One row an arm."""
    is_single = level["concurrency"] == 1
    heads = ["arm", "tokens/s", f"over {level['base'] or 'hf'}", "95% interval"]
    heads += ["tokens per forward"] if is_single else ["requests"]
    heads += [f"as {reference or 'plain'}", "idle others' CPU"]
    rows = []
    for name, of in level["arms"].items():
        how = "together" if of["is_batching"] else _ONE_BY_ONE
        rows.append(
            (
                name,
                fixed(of["tokens_per_s"], 1),
                *_ratio(of["ratio"]),
                fixed(of["tokens_per_forward"], 2) if is_single else how,
                _identity(of),
                f"{of['others_cpu_share']:.1%}",
            )
        )
    requests = "one request at a time" if is_single else f"{level['concurrency']} at once"
    title = f"{requests}, {level['prompts']} prompts"
    return Rows(title, tuple(heads), tuple(rows))


def category_rows(level: Figures) -> Rows:
    """Tokens per second over the base (without one: tokens per second), by category."""
    arms = level["arms"]
    names = dict.fromkeys(name for of in arms.values() for name in of["categories"])
    rows = []
    for name, of in arms.items():
        cells = [of["categories"][category] for category in names]
        rows.append((name, *(_short(cell) for cell in cells)))
    what = f"over {level['base']}" if level["base"] else "tokens per second"
    return Rows(f"{what}, by category", ("arm", *names), tuple(rows))


def memory_rows(seats: Figures) -> Rows:
    """What the processes of every arm held at most, with others in the same process if any."""
    rows = []
    for name, of in seats.items():
        versions = ", ".join(f"{what} {number}" for what, number in of["versions"].items())
        others = len(of["arms"]) - 1
        rows.append(
            (
                name,
                fixed(of["peak_bytes"] / 2**20, 0),
                str(of["num_processes"]),
                f"with {others} more" if others else "alone",
                versions or "-",
            )
        )
    heads = ("arm", "peak MiB", "processes", "shared", "versions")
    return Rows("memory", heads, tuple(rows))


def lines(figures: Figures) -> list[str]:
    """What the best of ours is over everybody else, and who was left out."""
    said = []
    for level in figures["levels"]:
        said += list(_best_lines(level))
    said += [f"skipped {name}: {reason}" for name, reason in figures["skipped"].items()]
    if not figures["whole"]:
        said.append("this run was interrupted: figures are of what all arms had answered")
    return said


def page(figures: Figures, facts: Figures) -> str:
    """A part of a Markdown page: tables, lines, and what they were measured with."""
    parts = [rows.markdown() for rows in tables(figures)]
    parts.append("\n".join(f"- {line}" for line in lines(figures)))
    what = f"{facts['processor']}, {facts['threads']} threads, {facts['platform']}"
    parts.append(f"Measured with `{facts['command']}` on {what}; commit {facts['git_commit']}.")
    return "\n\n".join(parts) + "\n"


def _best_lines(level: Figures) -> Iterator[str]:
    for name, of in level["best_over"].items():
        value, interval = _ratio(of)
        is_single = level["arms"][name]["is_batching"] is False and level["concurrency"] > 1
        how = f", which answers {_ONE_BY_ONE}" if is_single else ""
        between = "" if interval == "-" else f" ({interval})"
        yield f"{level['best']} is {value}{between} of {name} at {level['concurrency']}{how}"


def _ratio(of: Figures | None) -> tuple[str, str]:
    if of is None:
        return "-", "-"
    interval = "-" if of["low"] is None else f"{of['low']:.2f} to {of['high']:.2f}"
    return fixed(of["ratio"], 2, "x"), interval


def _short(cell: Figures) -> str:
    if cell["ratio"] is None:
        return fixed(cell["tokens_per_s"], 1)
    return fixed(cell["ratio"]["ratio"], 2, "x")


def _identity(of: Figures) -> str:
    if of["is_reference"]:
        return "reference"
    found = of["identity"]
    if found is None:
        return "-"
    by = " by text" if found["by"] == "text" else ""
    return f"{found['same']}/{found['of']}{by}"


def arm_names(levels: Sequence[Figures]) -> list[str]:
    """Of all levels, in the order of the first."""
    return list(dict.fromkeys(name for level in levels for name in level["arms"]))

"""Tables of a comparison with other engines, for a terminal and for a page."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from slipstream.bench.report import Figures, fixed, markdown, number, table, table_of

_ONE_BY_ONE = "one after another"


def tables(figures: Figures) -> Iterator[Table]:
    """Yield speed at every concurrency, ratios by category, and memory."""
    for level in figures["levels"]:
        yield speed_table(level, figures["reference"])
        if level["concurrency"] == 1:
            yield category_table(level)
    yield memory_table(figures["seats"])


def speed_table(level: Figures, reference: str | None) -> Table:
    """Return tokens per second, one row a configuration."""
    is_single = level["concurrency"] == 1
    requests = "one request at a time" if is_single else f"{level['concurrency']} at once"
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        f"over {level['base'] or 'hf'}": lambda of: _ratio(of["ratio"])[0],
        "95% interval": lambda of: _ratio(of["ratio"])[1],
        **(
            {"tokens per forward": number("tokens_per_forward", 2)}
            if is_single
            else {"requests": lambda of: "together" if of["is_batching"] else _ONE_BY_ONE}
        ),
        f"as {reference or 'plain'}": _identity,
        "idle others' CPU": lambda of: f"{of['others_cpu_share']:.1%}",
    }
    rows = (([name], of) for name, of in level["arms"].items())
    return table_of(
        ["configuration"], columns, rows, title=f"{requests}, {level['prompts']} prompts"
    )


def category_table(level: Figures) -> Table:
    """Return ratios over the base (without one: tokens per second) by category."""
    what = f"over {level['base']}" if level["base"] else "tokens per second"
    categories = {name: of["categories"] for name, of in level["arms"].items()}
    names = dict.fromkeys(category for of in categories.values() for category in of)
    shown = table("configuration", *names, title=f"{what}, by category")
    for name, of in categories.items():
        shown.add_row(name, *(_short(of[category]) for category in names))
    return shown


def memory_table(engines: Figures) -> Table:
    """Return the peak memory of every configuration's processes."""
    columns = {
        "peak MiB": lambda of: fixed(of["peak_bytes"] / 2**20, 0),
        "processes": lambda of: str(of["num_processes"]),
        "shared": lambda of: f"with {len(of['arms']) - 1} more" if of["arms"][1:] else "alone",
        "versions": lambda of: ", ".join(f"{a} {b}" for a, b in of["versions"].items()) or "-",
    }
    rows = (([name], of) for name, of in engines.items())
    return table_of(["configuration"], columns, rows, title="memory")


def lines(figures: Figures) -> list[str]:
    """Return the ratios of the best of ours to the others, and what was skipped."""
    said = []
    for level in figures["levels"]:
        said += list(_best_lines(level))
    said += [f"skipped {name}: {reason}" for name, reason in figures["skipped"].items()]
    if not figures["whole"]:
        said.append("this run was interrupted: figures are of what all configurations had answered")
    return said


def page(figures: Figures, facts: Figures) -> str:
    """Return a part of a Markdown page: tables, lines, and what they were measured with."""
    parts = [markdown(shown) for shown in tables(figures)]
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


def config_names(levels: Sequence[Figures]) -> list[str]:
    """Return the configurations of all levels, in the order of the first."""
    return list(dict.fromkeys(name for level in levels for name in level["arms"]))

"""Tables and plots of a comparison with other engines, for a terminal and for a page."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from slipstream.bench.report import Figures, fixed, markdown, number, table, table_of
from slipstream.plots import save_plot

_ONE_BY_ONE = "one after another"
_SUFFIXES = (".png", ".svg")
_OURS, _OTHERS = "C0", "C7"
_SPEED = "tokens per second"


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
    found = []
    for level in figures["levels"]:
        found += list(_best_lines(level))
    found += [f"skipped {name}: {reason}" for name, reason in figures["skipped"].items()]
    if not figures["whole"]:
        found.append(
            "this run was interrupted: figures are of what all configurations had answered"
        )
    return found


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


def save_charts(figures: Figures, folder: Path) -> list[Path]:
    """Write every plot that there are figures for; return where they are."""
    written: list[Path] = []
    levels = figures["levels"]
    for level in levels:
        at = level["concurrency"]
        title = f"Output tokens, {at} at once" if at > 1 else "Output tokens, one at a time"
        draw = partial(_bars, level)
        written += _saved(folder / f"peers-{at}", draw, title=title, x=_SPEED, y="")
        if level["base"] and level["best"] and at == 1:
            title = f"{level['best']} and the others, by category"
            draw = partial(_categories, level)
            label = f"over {level['base']}"
            written += _saved(folder / "peers-categories", draw, title=title, x="", y=label)
    if len(levels) > 1:
        draw = partial(_lines, levels)
        title = "Output tokens of all requests"
        path = folder / "peers-concurrency"
        written += _saved(path, draw, title=title, x="requests at once", y=_SPEED)
    return written


def _saved(stem: Path, draw: Callable[[Any], None], *, title: str, x: str, y: str) -> list[Path]:
    paths = [stem.with_name(stem.name + suffix) for suffix in _SUFFIXES]
    for path in paths:
        save_plot(path, draw, title=title, x=x, y=y)
    return paths


def _bars(level: Figures, axes: Any) -> None:
    """Draw the fastest on top; ours in another colour."""
    configs = sorted(level["arms"].items(), key=lambda item: item[1]["tokens_per_s"])
    rates = [of["tokens_per_s"] for _, of in configs]
    colours = [_OURS if of["is_ours"] else _OTHERS for _, of in configs]
    bars = axes.barh([name for name, _ in configs], rates, color=colours)
    axes.bar_label(bars, fmt="%.1f", fontsize="x-small", padding=2)
    axes.tick_params(axis="y", labelsize="x-small")


def _categories(level: Figures, axes: Any) -> None:
    """Draw ratios of the best of ours and of those that are not ours; the base is the line at 1."""
    configs = level["arms"]
    others = [name for name, of in configs.items() if not of["is_ours"] and name != level["base"]]
    names = [level["best"], *others]
    categories = list(configs[level["best"]]["categories"])
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        heights = [configs[name]["categories"][at]["ratio"]["ratio"] for at in categories]
        places = [at + index * width for at in range(len(categories))]
        axes.bar(places, heights, width, label=name)
    middle = 0.4 - width / 2
    places = [index + middle for index in range(len(categories))]
    axes.set_xticks(places, labels=categories, rotation=30, ha="right", fontsize="x-small")
    axes.axhline(1.0, color="black", linewidth=0.8)


def _lines(levels: Sequence[Figures], axes: Any) -> None:
    """Draw configurations that ran at more than one concurrency."""
    for name in _names(levels):
        found = [
            (level["concurrency"], level["arms"][name]["tokens_per_s"])
            for level in levels
            if name in level["arms"]
        ]
        if len(found) > 1:
            style = "-" if levels[0]["arms"][name]["is_ours"] else "--"
            axes.plot(*zip(*found, strict=True), marker="o", markersize=3, label=name, ls=style)
    loads = [level["concurrency"] for level in levels]
    axes.set_xscale("log", base=2)
    axes.set_xticks(loads, labels=[f"{load:g}" for load in loads])
    axes.set_ylim(bottom=0)


def _names(levels: Sequence[Figures]) -> list[str]:
    """Return the configurations of all levels, in the order of the first."""
    return list(dict.fromkeys(name for level in levels for name in level["arms"]))

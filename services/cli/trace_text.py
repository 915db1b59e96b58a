"""A trace on a terminal, or in a file: a row per span, then the summary."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slipstream.cli.trace_rows import rows
from slipstream.cli.trace_summary import summary
from slipstream.telemetry.traces import Trace

WIDTH_OF_FILES = 140
"""Width where no terminal has one."""
_COLOURS = {"client": "blue", "router": "cyan", "draft": "magenta", "target": "green"}
_MEDIUM, _WIDE = 60, 100
"""Columns from which on there is room for services, and for attributes."""
_BAR, _NUMBER = 20, 10
"""Columns of a bar, and of a time."""


def trace_console() -> Console:
    """Return a console as wide as the terminal, without colours where there is none."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    return console


def show(trace: Trace, console: Console) -> None:
    """Print waterfall and summary."""
    console.print(_waterfall(trace, console))
    found = summary(trace)
    for name, value in found.facts:
        console.print(Text(f"{name:<19}{value}"))
    console.print(Text("\nwhere the time went", style="bold"))
    for part in found.parts:
        console.print(Text(f"  {part.name:<17}{part.duration_ms:9.1f} ms {part.share:6.1%}"))
    console.print(Text(f"{found.explained:.1%} of the wall time is accounted for.\n", style="dim"))
    for sentence in (*found.sentences, *(f"link: {link}" for link in found.links)):
        console.print(Text(sentence))


def _waterfall(trace: Trace, console: Console) -> Table:
    has_service, is_wide = console.width >= _MEDIUM, console.width >= _WIDE
    mark, cells = "#" if console.options.ascii_only else "█", _BAR if is_wide else 6
    room = console.width - 2 * _NUMBER - cells - (10 if has_service else 2)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("span", no_wrap=True, overflow="crop", max_width=min(room, 40))
    if has_service:
        table.add_column("where", no_wrap=True, overflow="crop", width=7)
    for name in ("at ms", "took ms"):
        table.add_column(name, justify="right", no_wrap=True, width=_NUMBER - 1)
    table.add_column("", no_wrap=True, overflow="crop", width=cells)
    if is_wide:
        table.add_column("", style="dim")
    for row in rows(trace):
        start = min(int(row.left * cells), cells - 1)
        length = max(round((row.left + row.width) * cells) - start, 1)
        colour = "red" if row.has_failed else _COLOURS.get(row.service, "yellow")
        table.add_row(
            Text("  " * row.depth + row.name),
            *([Text(row.service, style=colour)] if has_service else []),
            Text(f"{row.offset_ms:.1f}"),
            Text(f"{row.span.duration_ms:.1f}"),
            Text(" " * start + mark * length, style=colour),
            *([Text(", ".join(row.about))] if is_wide else []),
        )
    return table

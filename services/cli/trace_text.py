"""A trace on a terminal, or in a file: a waterfall, then what it says in words. Colours are extra.

Knows widths and encodings of consoles; what is worth saying comes from `trace_rows.py` and
`trace_summary.py`.
"""

from collections.abc import Iterator
from textwrap import wrap

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from slipstream.cli.trace_rows import Row, rows
from slipstream.cli.trace_summary import Part, Summary, summary
from slipstream.telemetry.traces import Trace

WIDTH_OF_FILES = 140
"""Where there is no terminal that would say."""
_COLOURS = {"client": "blue", "router": "cyan", "draft": "magenta", "target": "green"}
_OTHER_COLOUR = "yellow"
_WIDE = 110
"""From so many columns on, what a span says is on its own line beside it."""
_NUMBERS = 18
"""Columns of offset and duration."""


def show(trace: Trace, console: Console) -> None:
    """Print all of it."""
    shown = _Waterfall(console)
    for line in shown.lines(trace):
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    console.print()
    _show_summary(summary(trace), console)


def trace_console() -> Console:
    """As wide as the terminal, without colours where there is none."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    return console


class _Waterfall:
    def __init__(self, console: Console) -> None:
        self._ascii = console.options.ascii_only
        width = console.width
        self._is_wide = width >= _WIDE
        self._service = 7 if width >= 80 else 0
        self._tree = min(40, width * 2 // 5)
        rest = width - self._tree - self._service - _NUMBERS - 2
        self._bar = max(4, rest // 2 if self._is_wide else rest)
        self._said = rest - self._bar - 2 if self._is_wide else 0
        self._width = width

    def lines(self, trace: Trace) -> Iterator[Text]:
        yield self._head()
        for row in rows(trace):
            about = ", ".join(row.about)
            if cell_len(about) < self._said:
                yield self._line(row, about)
            else:
                yield self._line(row, "")
                yield from self._below(row, about)

    def _head(self) -> Text:
        names = _fitted("span", self._tree) + _fitted("where", self._service)
        return Text(f"{names}{'at ms':>9}{'took ms':>9}", style="bold")

    def _line(self, row: Row, about: str) -> Text:
        colour = "red" if row.has_failed else _COLOURS.get(row.service, _OTHER_COLOUR)
        line = Text(_fitted(self._stem(row) + row.name, self._tree))
        line.append(_fitted(row.service, self._service), style=colour)
        line.append(f"{row.offset_ms:9.1f}{row.span.duration_ms:9.1f} ")
        line.append(self._bar_of(row), style=colour)
        if about:
            line.append(f" {about}", style="dim")
        line.rstrip()
        return line

    def _stem(self, row: Row) -> str:
        if not row.branches:
            return ""
        more, fork, last = ("| ", "|-", "`-") if self._ascii else ("│ ", "├─", "└─")
        *above, here = row.branches
        return "".join("  " if is_last else more for is_last in above) + (last if here else fork)

    def _below(self, row: Row, about: str) -> Iterator[Text]:
        """What does not fit beside a span, under its name."""
        more = "| " if self._ascii else "│ "
        margin = "".join("  " if is_last else more for is_last in row.branches) + "    "
        for line in wrap(about, max(20, self._width - len(margin))):
            yield Text(f"{margin}{line}", style="dim")

    def _bar_of(self, row: Row) -> str:
        """At least one cell, wherever it is."""
        start = min(int(row.left * self._bar), self._bar - 1)
        end = max(start + 1, round((row.left + row.width) * self._bar))
        return (" " * start + ("#" if self._ascii else "█") * (end - start)).ljust(self._bar)


def _show_summary(said: Summary, console: Console) -> None:
    wide = max(len(name) for name, _ in said.facts) + 2
    for name, value in said.facts:
        console.print(Text.assemble((name.ljust(wide), "bold"), value))
    if said.parts:
        console.print()
        console.print(Text("where the time went", style="bold"))
    for part in said.parts:
        console.print(_part_line(part, wide, is_ascii=console.options.ascii_only))
    console.print(Text(f"{said.explained:.1%} of the wall time is accounted for.", style="dim"))
    if said.sentences:
        console.print()
    for sentence in said.sentences:
        console.print(Text(sentence))
    for link in said.links:
        console.print(Text(f"link: {link}", style="dim"))


def _part_line(part: Part, wide: int, *, is_ascii: bool) -> Text:
    bar = ("#" if is_ascii else "█") * round(min(1.0, part.share) * 20)
    line = Text(f"  {part.name.ljust(wide - 2)}{part.duration_ms:9.1f} ms {part.share:6.1%}  ")
    line.append(bar, style="cyan")
    line.rstrip()
    return line


def _fitted(text: str, width: int) -> str:
    """The text in so many columns, cut off where it is longer, with one to spare."""
    if width <= 0:
        return ""
    return set_cell_size(text, width - 1) + " "

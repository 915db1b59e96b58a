"""The waterfall of a trace: a row per span with its place in time, and its table on a terminal.

Names and attributes are whatever was written in a file: unprintable characters become escapes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slipstream.telemetry.traces import Span, Status, Trace

WIDTH_OF_FILES = 140
"""Width where no terminal has one."""
_COLOURS = {"client": "blue", "router": "cyan", "draft": "magenta", "target": "green"}
_MEDIUM, _WIDE = 60, 100
"""Columns from which on there is room for services, and for attributes."""
_BAR, _NUMBER = 20, 10
"""Columns of a bar, and of a time."""
_ATTRIBUTES = {
    "gen_ai.usage.": "input_tokens output_tokens",
    "gen_ai.response.": "finish_reasons",
    "slipstream.round.": "kind drafted accepted final selected",
    "slipstream.proposal.": "fallback nodes depth stop_reason entropy score staleness kv_wait_ms"
    " waited_ms",
    "slipstream.verdict.": "nodes accepted finish_reason waited_ms",
    "slipstream.reply.": "queue_ms engine_ms",
    "slipstream.batch.": "rows sessions",
    "slipstream.kv.": "bytes layers start count snapshots",
    "db.system.": "name",
}
"""Attributes that rows have, in this order."""
_USUAL = "first"
"""Rounds are mostly selected because they are the first ones."""


@dataclass(frozen=True, slots=True)
class Row:
    """A span and its place."""

    span: Span
    name: str
    service: str
    depth: int
    offset_ms: float
    """Time from the beginning of the axis; negative for what had begun before."""
    left: float
    """Beginning of its bar, as a share of the axis from 0 to 1."""
    width: float
    about: tuple[str, ...]

    @property
    def has_failed(self) -> bool:
        """Return whether it ended in an error."""
        return self.span.status is Status.ERROR


def rows(trace: Trace) -> list[Row]:
    """Return a row per span, depth first. The two ends of a call do not repeat each other."""
    start_ns, end_ns = _axis(trace)
    length_ns, children = max(end_ns - start_ns, 1), trace.children()

    def share(at_ns: int) -> float:
        return min(max((at_ns - start_ns) / length_ns, 0.0), 1.0)

    def below(span: Span, depth: int, known: tuple[str, ...]) -> Iterator[Row]:
        about = tuple(_about(span))
        left = share(span.start_ns)
        yield Row(
            span,
            name_of(span),
            service_of(span),
            depth,
            (span.start_ns - start_ns) / 1e6,
            left,
            share(span.end_ns) - left,
            tuple(text for text in about if text not in known),
        )
        for child in children.get(span.span_id, []):
            yield from below(child, depth + 1, about if child.name == span.name else ())

    return [row for top in trace.tops() for row in below(top, 0, ())]


def axis_ms(trace: Trace) -> float:
    """Return the length of the axis."""
    start_ns, end_ns = _axis(trace)
    return (end_ns - start_ns) / 1e6


def _axis(trace: Trace) -> tuple[int, int]:
    """Return beginning and end of the request, and of the spans that it is a part of."""
    by_id, at = {span.span_id: span for span in trace.spans}, trace.request
    around = {at.span_id: at}
    while at.parent_id in by_id and at.parent_id not in around:
        at = by_id[at.parent_id]
        around[at.span_id] = at
    return min(s.start_ns for s in around.values()), max(s.end_ns for s in around.values())


def name_of(span: Span) -> str:
    """Return a span's name without its package; rounds have their number."""
    index = span.attributes.get("slipstream.round.index")
    if span.name == "round" and index is not None:
        return f"round {value_text(index)}"
    return printable(span.name.removeprefix("slipstream.rpc.v1."))


def service_of(span: Span) -> str:
    """Return the service that a span is of."""
    return printable(span.service.removeprefix("slipstream-"))


def printable(text: str) -> str:
    """Return the text with escapes for characters that a terminal might obey."""
    return "".join(at if at.isprintable() else ascii(at)[1:-1] for at in text)


def value_text(value: Any) -> str:
    """Return an attribute's value on one line."""
    match value:
        case bool():
            return str(value).lower()
        case tuple() | list():
            return ", ".join(map(value_text, value))
        case float():
            return f"{value:.4g}" if abs(value) < 1000 else f"{value:.1f}"
    return printable(str(value))


def error_text(span: Span) -> str:
    """Return the type of a failed span's error, and its message if there is one."""
    kind = value_text(span.attributes.get("error.type", "an error"))
    return f"{kind}: {printable(span.error)}" if span.error else kind


def _about(span: Span) -> Iterator[str]:
    """Return the main attributes of a span; zeros are left out."""
    if span.status is Status.ERROR:
        yield error_text(span)
    for prefix, names in _ATTRIBUTES.items():
        for name in names.split():
            value = span.attributes.get(prefix + name)
            if value and value != _USUAL:
                unit = " ms" if name.endswith("_ms") else ""
                yield f"{name.removesuffix('_ms').replace('_', ' ')} {value_text(value)}{unit}"


def trace_console() -> Console:
    """Return a console as wide as the terminal, without colours where there is none."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    return console


def waterfall(trace: Trace, console: Console) -> Table:
    """Return the table, with the columns that the console has room for."""
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

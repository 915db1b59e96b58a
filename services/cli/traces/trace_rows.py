"""The rows of a trace's page, one per span with its place in time; texts of spans.

Names and attributes are whatever was written in a file: unprintable characters become escapes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slipstream.telemetry.traces import Span, Status, Trace

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

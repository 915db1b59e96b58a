"""A trace as lines of a waterfall: which, how deep, where in time, and what to say of each.

Knows neither terminals nor pages. Names and attributes are whatever was written in a file: what
isn't printable in them is shown as an escape.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from slipstream.telemetry.traces import Span, Status, Trace

_PACKAGE = "slipstream.rpc.v1."
_SERVICE = "slipstream-"
_LAST, _MORE = True, False

# Key, words before the value, and its unit. In the order in which a line says them.
_SAID: tuple[tuple[str, str, str], ...] = (
    ("gen_ai.usage.input_tokens", "prompt", ""),
    ("gen_ai.usage.output_tokens", "output", ""),
    ("gen_ai.response.finish_reasons", "finish", ""),
    ("slipstream.round.kind", "", ""),
    ("slipstream.round.drafted", "drafted", ""),
    ("slipstream.round.accepted", "accepted", ""),
    ("slipstream.round.final", "final", ""),
    ("slipstream.round.selected", "", ""),
    ("slipstream.proposal.fallback", "no draft:", ""),
    ("slipstream.proposal.nodes", "nodes", ""),
    ("slipstream.proposal.depth", "depth", ""),
    ("slipstream.proposal.stop_reason", "stop", ""),
    ("slipstream.proposal.entropy", "entropy", ""),
    ("slipstream.proposal.score", "score", ""),
    ("slipstream.proposal.staleness", "stale", ""),
    ("slipstream.proposal.kv_wait_ms", "kv wait", "ms"),
    ("slipstream.proposal.waited_ms", "waited", "ms"),
    ("slipstream.verdict.nodes", "nodes", ""),
    ("slipstream.verdict.accepted", "accepted", ""),
    ("slipstream.verdict.finish_reason", "finish", ""),
    ("slipstream.verdict.waited_ms", "waited", "ms"),
    ("slipstream.reply.queue_ms", "queue", "ms"),
    ("slipstream.reply.engine_ms", "engine", "ms"),
    ("slipstream.batch.rows", "rows", ""),
    ("slipstream.batch.sessions", "sessions", ""),
    ("slipstream.kv.bytes", "", "B"),
    ("slipstream.kv.layers", "layers", ""),
    ("slipstream.kv.start", "from", ""),
    ("slipstream.kv.count", "positions", ""),
    ("slipstream.kv.snapshots", "snapshots", ""),
    ("db.system.name", "", ""),
)
_NOT_WORTH_SAYING = {("slipstream.round.selected", "first")}
_ACCEPTED_OF = {
    "slipstream.round.accepted": "slipstream.round.drafted",
    "slipstream.verdict.accepted": "slipstream.verdict.nodes",
}
_COUNTS = set(_ACCEPTED_OF.values())


@dataclass(frozen=True, slots=True)
class Row:
    """A line: a span and its place."""

    span: Span
    name: str
    service: str
    branches: tuple[bool, ...]
    """For each level from the top, whether the branch there is the last one; none at a top."""
    offset_ms: float
    """From the beginning of the axis; negative for what had begun before."""
    left: float
    """Where its bar begins, as a share of the axis from 0 to 1."""
    width: float
    about: tuple[str, ...]
    """What its attributes say, the most telling ones only."""

    @property
    def has_failed(self) -> bool:
        """Whether it ended in an error."""
        return self.span.status is Status.ERROR


@dataclass(frozen=True, slots=True)
class _Axis:
    start_ns: int
    end_ns: int

    def share(self, at_ns: int) -> float:
        length = max(1, self.end_ns - self.start_ns)
        return min(1.0, max(0.0, (at_ns - self.start_ns) / length))


def rows(trace: Trace) -> list[Row]:
    """Every span once, depth first; the axis is the request's, or that of whoever asked for it.

    The two ends of a call often say the same; the second one says only what is new.
    """
    axis, children = _axis(trace), trace.children()

    def below(span: Span, branches: tuple[bool, ...], told: tuple[str, ...]) -> Iterator[Row]:
        row = _row(span, branches, axis)
        yield replace(row, about=tuple(said for said in row.about if said not in told))
        own = children.get(span.span_id, [])
        for child in own:
            known = row.about if child.name == span.name else ()
            yield from below(child, (*branches, _LAST if child is own[-1] else _MORE), known)

    return [row for top in trace.tops() for row in below(top, (), ())]


def name_of(span: Span) -> str:
    """What a span is called: without what all names have in common, rounds by their number."""
    index = span.attributes.get("slipstream.round.index")
    if span.name == "round" and index is not None:
        return f"round {value_text(index)}"
    return printable(span.name.removeprefix(_PACKAGE))


def service_of(span: Span) -> str:
    """Which of our services a span is of, or whose else."""
    return printable(span.service.removeprefix(_SERVICE))


def printable(text: str) -> str:
    """The text with escapes for what a terminal might take as an order."""
    return "".join(at if at.isprintable() else ascii(at)[1:-1] for at in text)


def value_text(value: Any) -> str:
    """An attribute's value on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(value_text(item) for item in value)
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.1f}"
    return printable(str(value))


def bytes_text(count: float) -> str:
    """A number of bytes: 512 B, 1.5 KiB, 3.0 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def axis_ms(trace: Trace) -> float:
    """How long the axis is."""
    axis = _axis(trace)
    return (axis.end_ns - axis.start_ns) / 1e6


def _axis(trace: Trace) -> _Axis:
    by_id = {span.span_id: span for span in trace.spans}
    at, seen = trace.request, {trace.request.span_id}
    start_ns, end_ns = at.start_ns, at.end_ns
    while at.parent_id in by_id and at.parent_id not in seen:
        at = by_id[at.parent_id]
        seen.add(at.span_id)
        start_ns, end_ns = min(start_ns, at.start_ns), max(end_ns, at.end_ns)
    return _Axis(start_ns, end_ns)


def _row(span: Span, branches: tuple[bool, ...], axis: _Axis) -> Row:
    left = axis.share(span.start_ns)
    return Row(
        span,
        name_of(span),
        service_of(span),
        branches,
        (span.start_ns - axis.start_ns) / 1e6,
        left,
        axis.share(span.end_ns) - left,
        tuple(_about(span)),
    )


def _about(span: Span) -> Iterator[str]:
    if span.status is Status.ERROR:
        yield _error(span)
    for key, words, unit in _SAID:
        value = span.attributes.get(key)
        if value is not None and _is_worth_saying(key, value, span.attributes):
            yield f"{words} {_with_unit(value, unit)}".strip()


def _is_worth_saying(key: str, value: Any, beside: Mapping[str, Any]) -> bool:
    """That nothing was drafted says its kind, and then that nothing of it was accepted."""
    if key in _COUNTS:
        return bool(value)
    if key in _ACCEPTED_OF:
        return bool(beside.get(_ACCEPTED_OF[key]))
    return (key, value) not in _NOT_WORTH_SAYING


def _error(span: Span) -> str:
    kind = value_text(span.attributes.get("error.type", "failed"))
    return f"{kind}: {printable(span.error)}" if span.error else kind


def _with_unit(value: Any, unit: str) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if unit == "ms" and is_number:
        return f"{value:.1f} ms"
    if unit == "B" and is_number:
        return bytes_text(value)
    return value_text(value)

"""The HTML page of a trace: its summary, and a row for each span with its place in time.

Everything in a trace file is untrusted: the template escapes every value, and the page's own
policy forbids it to load or run anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader

from slipstream.cli.traces.trace_summary import (
    error_text,
    name_of,
    service_of,
    summary,
    value_text,
)
from slipstream.telemetry.traces import REQUEST_ID, Span, Trace

_SERVICES = ("client", "router", "draft", "target")
_OURS = "slipstream."


@dataclass(frozen=True, slots=True)
class Row:
    """A span and its place: its bar begins at `left`, and both shares are of the axis, 0 to 1."""

    span: Span
    name: str
    service: str
    depth: int
    offset_ms: float
    """Time from the beginning of the axis; negative for what had begun before."""
    left: float
    width: float
    about: tuple[str, ...]


def rows(trace: Trace) -> list[Row]:
    """Return a row per span. The axis is as long as the outermost span and the request."""
    start_ns, end_ns = _axis(trace)

    def share(time_ns: int) -> float:
        return min(max((time_ns - start_ns) / max(end_ns - start_ns, 1), 0.0), 1.0)

    return [
        Row(
            span,
            name_of(span),
            service_of(span),
            depth,
            (span.start_ns - start_ns) / 1e6,
            share(span.start_ns),
            share(span.end_ns) - share(span.start_ns),
            tuple(_about(span)),
        )
        for span, depth in zip(trace.spans, trace.depths, strict=True)
    ]


def page(trace: Trace) -> str:
    """Return the page, which loads and runs nothing."""
    templates = Environment(
        loader=PackageLoader("slipstream", "data"),
        autoescape=True,
        finalize=value_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found, (start_ns, end_ns) = rows(trace), _axis(trace)
    return templates.get_template("trace.html").render(
        request_id=trace.request.attributes.get(REQUEST_ID, "unknown"),
        summary=summary(trace),
        rows=found,
        services=dict.fromkeys(row.service for row in found),
        known=_SERVICES,
        ticks=[(end_ns - start_ns) / 1e6 * quarter / 4 for quarter in range(5)],
    )


def _axis(trace: Trace) -> tuple[int, int]:
    top, request = trace.spans[0], trace.request
    return min(top.start_ns, request.start_ns), max(top.end_ns, request.end_ns)


def _about(span: Span) -> Iterator[str]:
    """Yield a span's error and our own attributes, but for the totals of a request."""
    if span.has_failed:
        yield error_text(span)
    for key, value in span.attributes.items():
        if value and key.startswith(_OURS) and not span.is_request:
            unit = " ms" if key.endswith("_ms") else ""
            name = key.rpartition(".")[2].removesuffix("_ms").replace("_", " ")
            yield f"{name} {value_text(value)}{unit}"

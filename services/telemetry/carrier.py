"""Traces across processes: where a message stands in one, as W3C Trace Context has it.

Knows neither messages nor exporters. Between services, what is not sampled is carried nowhere.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

MAX_TRACESTATE = 512
"""What the recommendation asks everybody to carry; longer ones are dropped, as it says."""
_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class Carrier:
    """The two headers of the recommendation."""

    traceparent: str
    tracestate: str = ""


def carried(span: Span | None = None) -> Carrier | None:
    """What to tell a peer so that its spans are children of the span, by default the current one.

    None where the span is not sampled.
    """
    at = trace.get_current_span() if span is None else span
    return decided(at) if at.get_span_context().trace_flags.sampled else None


def decided(span: Span) -> Carrier | None:
    """The same of a span that need not be sampled: whoever is told decides as was decided here.

    None where there is no trace at all.
    """
    if not span.get_span_context().is_valid:
        return None
    headers: dict[str, str] = {}
    _PROPAGATOR.inject(headers, trace.set_span_in_context(span))
    return Carrier(headers["traceparent"], headers.get("tracestate", ""))


def parent_of(carrier: Carrier | None) -> Context | None:
    """The context in which a span is a child of what was carried.

    None where nothing was, or it is no Trace Context: the recommendation has that ignored, too.
    """
    if carrier is None:
        return None
    headers = {"traceparent": carrier.traceparent}
    if len(carrier.tracestate) <= MAX_TRACESTATE:
        headers["tracestate"] = carrier.tracestate
    context = _PROPAGATOR.extract(headers, Context())
    is_valid = trace.get_current_span(context).get_span_context().is_valid
    return context if is_valid else None


@contextmanager
def within(carrier: Carrier | None) -> Iterator[None]:
    """What is begun in here is part of the trace that was carried, if any was."""
    context = parent_of(carrier)
    if context is None:
        yield
        return
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


class Timeline:
    """Turns seconds of a clock that only measures into the nanoseconds since 1970 of spans."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._offset_ns = wall_ns() - round(clock() * 1e9)

    def ns(self, at_s: float) -> int:
        """When the clock showed this."""
        return self._offset_ns + round(at_s * 1e9)

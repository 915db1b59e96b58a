"""Trace context between processes, as the two headers of W3C Trace Context.

Between services, a span that is not sampled is not carried.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

MAX_TRACESTATE = 512
"""Length that the recommendation requires to be carried; longer ones are dropped."""
_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class Carrier:
    """The two headers of the recommendation."""

    traceparent: str
    tracestate: str = ""


def carried(span: Span | None = None) -> Carrier | None:
    """Return the carrier of a span, by default the current one; None if it is not sampled."""
    current = trace.get_current_span() if span is None else span
    return carrier_of(current) if current.get_span_context().trace_flags.sampled else None


def carrier_of(span: Span) -> Carrier | None:
    """Return the carrier of a span, sampled or not, which peers then follow; None if there is no
    trace."""
    if not span.get_span_context().is_valid:
        return None
    headers: dict[str, str] = {}
    _PROPAGATOR.inject(headers, trace.set_span_in_context(span))
    return Carrier(headers["traceparent"], headers.get("tracestate", ""))


def carrier_in(headers: Mapping[str, str]) -> Carrier | None:
    """Return the carrier that the headers of a message are, if any."""
    parent = headers.get("traceparent")
    return None if parent is None else Carrier(parent, headers.get("tracestate", ""))


def parent_of(carrier: Carrier | None) -> Context | None:
    """Return the context in which a span is a child of a carrier's.

    None without a valid carrier: the recommendation has an invalid one ignored, too.
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
    """Make what is begun inside part of the carrier's trace, if there is one."""
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
        self, clock: Callable[[], float], wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._offset_ns = wall_ns() - round(clock() * 1e9)

    def ns(self, at_s: float) -> int:
        """Return the time at which the clock showed `at_s`."""
        return self._offset_ns + round(at_s * 1e9)

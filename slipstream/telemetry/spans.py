"""Spans of calls between services, on the side of the caller and of the service, their errors, and
trace context between processes, as the two headers of W3C Trace Context.

Times are seconds of the clock that the service measures with. Between services, a span that is not
sampled is not carried.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, use_span
from opentelemetry.trace import set_span_in_context as in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from slipstream.core.errors import InvalidRequest, SlipstreamError
from slipstream.telemetry.metric import Attributes

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
    if carrier is None or not carrier.traceparent:
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


GIVEN_UP = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)
"""Errors of work that was cancelled: it has not failed."""
CANCELLED = "Cancelled"
"""The type of such an error."""


def record_error(span: Span, error: BaseException) -> None:
    """Set the error that a span ends in; cancelled work has not failed.

    Only texts of our own errors hold nothing secret, and of these not those that quote a caller.
    """
    if isinstance(error, GIVEN_UP):
        span.set_attribute("error.type", CANCELLED)
        return
    span.set_attribute("error.type", type(error).__name__)
    is_public = isinstance(error, SlipstreamError) and not isinstance(error, InvalidRequest)
    span.set_status(Status(StatusCode.ERROR, str(error) if is_public else None))


@dataclass(frozen=True, slots=True)
class Reply:
    """The span of a reply on its way."""

    span: Span
    tracer: Tracer
    timeline: Timeline

    def set(self, attributes: Attributes) -> None:
        self.span.set_attributes(attributes)

    def part(self, name: str, start_s: float, end_s: float) -> None:
        """Add a child that is over already, between two times of the clock."""
        start_ns = self.timeline.ns(start_s)
        child = self.tracer.start_span(name, in_context(self.span), start_time=start_ns)
        child.end(self.timeline.ns(max(end_s, start_s)))


@contextmanager
def answering(
    tracer: Tracer, name: str, carrier: Carrier, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Reply | None]:
    """Make the SERVER span of a reply, current meanwhile, whose status is an error that passes;
    give None where the message is not traced."""
    parent = parent_of(carrier)
    if parent is None:
        yield None
        return
    # A timeline of its own keeps parts within the span, even when the wall clock is set.
    timeline = Timeline(clock)
    start_ns = timeline.ns(clock())
    span = tracer.start_span(name, parent, SpanKind.SERVER, start_time=start_ns)
    try:
        with use_span(span, record_exception=False, set_status_on_exception=False):
            yield Reply(span, tracer, timeline)
    except BaseException as error:
        record_error(span, error)
        raise
    finally:
        span.end(timeline.ns(clock()))

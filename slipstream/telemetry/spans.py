"""Spans of calls between services, on the side of the caller and of the service, and their errors.

Times are seconds of the clock that the service measures with.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, use_span
from opentelemetry.trace import set_span_in_context as in_context

from slipstream.core.errors import InvalidRequest, SlipstreamError
from slipstream.telemetry.carrier import Carrier, Timeline, parent_of
from slipstream.telemetry.metric import Attributes

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


class Replies:
    """Makes SERVER spans of calls, for one service, where messages are traced."""

    def __init__(self, tracer: Tracer, clock: Callable[[], float] = time.perf_counter) -> None:
        self._tracer = tracer
        self._clock = clock

    @contextmanager
    def answering(self, name: str, carrier: Carrier | None) -> Iterator[Reply | None]:
        """A span around a reply, current meanwhile, whose status is an error that passes; None
        where the message is not traced."""
        parent = parent_of(carrier)
        if parent is None:
            yield None
            return
        # A timeline of its own keeps parts within the span, even when the wall clock is set.
        timeline = Timeline(self._clock)
        start_ns = timeline.ns(self._clock())
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, start_time=start_ns)
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield Reply(span, self._tracer, timeline)
        except BaseException as error:
            record_error(span, error)
            raise
        finally:
            span.end(timeline.ns(self._clock()))

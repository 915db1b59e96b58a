"""Spans of what an engine's service does for one message of a traced request.

Knows neither messages nor engines; times are seconds of the clock that the service measures with.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from opentelemetry.trace import Link, Span, SpanKind, Tracer, use_span
from opentelemetry.trace import set_span_in_context as in_context

from slipstream.telemetry.calls import Call, calling
from slipstream.telemetry.carrier import Carrier, Timeline, parent_of
from slipstream.telemetry.failures import failed
from slipstream.telemetry.metric import Attributes


class Reply:
    """The span of one answer, on its way."""

    def __init__(self, tracer: Tracer, span: Span, timeline: Timeline) -> None:
        self._tracer = tracer
        self._timeline = timeline
        self.span = span

    def say(self, attributes: Attributes) -> None:
        """Set attributes."""
        self.span.set_attributes(attributes)

    def part(
        self, name: str, start_s: float, end_s: float, attributes: Attributes | None = None
    ) -> None:
        """A child that is over already, between two times of the clock."""
        child = self._tracer.start_span(
            name,
            in_context(self.span),
            start_time=self._timeline.ns(start_s),
            attributes=attributes,
        )
        child.end(self._timeline.ns(max(end_s, start_s)))

    def calling(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        status_of: Callable[[BaseException], str] | None = None,
    ) -> AbstractContextManager[Call]:
        """A call that is made for the answer, and may outlast it. See `calls.calling`."""
        return calling(self._tracer, name, attributes, parent=self.span, status_of=status_of)


class Replies:
    """Makes spans of answers, as far as messages say that they are traced."""

    def __init__(self, tracer: Tracer, clock: Callable[[], float] = time.perf_counter) -> None:
        self._tracer = tracer
        self._clock = clock

    @contextmanager
    def answering(
        self, name: str, carrier: Carrier | None, *, links: tuple[Span, ...] = ()
    ) -> Iterator[Reply | None]:
        """A SERVER span around an answer, current meanwhile; None where the message is not traced.

        An error that passes is its status.
        """
        parent = parent_of(carrier)
        if parent is None:
            yield None
            return
        at = [Link(span.get_span_context()) for span in links]
        # By one clock and its own timeline, parts lie within, and a wall clock may be set.
        timeline = Timeline(self._clock)
        start = timeline.ns(self._clock())
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, links=at, start_time=start)
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield Reply(self._tracer, span, timeline)
        except BaseException as error:
            failed(span, error)
            raise
        finally:
            span.end(timeline.ns(self._clock()))

"""Spans of calls between services, on the side of the caller and of the service, and their errors.

Times are seconds of the clock that the service measures with.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, use_span
from opentelemetry.trace import set_span_in_context as in_context

from slipstream.core.errors import InvalidRequest, SlipstreamError
from slipstream.telemetry.carrier import Carrier, Timeline, carried, parent_of
from slipstream.telemetry.metric import Attributes

STATUS_CODE = "rpc.response.status_code"
SNAPSHOT = "kv.snapshot"
GIVEN_UP = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)
"""Errors of work that was cancelled: it has not failed."""
CANCELLED = "Cancelled"
"""The type of such an error."""
_GRPC_CANCELLED = "CANCELLED"
StatusOf = Callable[[BaseException], str]
"""Return the name of the gRPC status that an error stands for."""


def record_error(span: Span, error: BaseException) -> None:
    """Set the error that a span ends in; cancelled work has not failed."""
    if isinstance(error, GIVEN_UP):
        span.set_attribute("error.type", CANCELLED)
    else:
        record_error_as(span, type(error).__name__, error)


def record_error_as(span: Span, kind: str, error: BaseException) -> None:
    """Set the error that a span ends in, under the name `kind`.

    Only texts of our own errors hold nothing secret, and of these not those that quote a caller.
    """
    span.set_attribute("error.type", kind)
    is_public = isinstance(error, SlipstreamError) and not isinstance(error, InvalidRequest)
    span.set_status(Status(StatusCode.ERROR, str(error) if is_public else None))


@dataclass(frozen=True, slots=True)
class ClientSpan:
    """The span of a call on its way."""

    span: Span

    @property
    def carrier(self) -> Carrier | None:
        """Carrier that makes spans of the called service children; None if not sampled."""
        return carried(self.span)

    def set(self, attributes: Attributes) -> None:
        """Set attributes."""
        self.span.set_attributes(attributes)


class Reply:
    """The span of a reply on its way."""

    def __init__(self, tracer: Tracer, span: Span, timeline: Timeline) -> None:
        self._tracer = tracer
        self._timeline = timeline
        self.span = span

    def set(self, attributes: Attributes) -> None:
        """Set attributes."""
        self.span.set_attributes(attributes)

    def part(
        self,
        name: str,
        start_s: float,
        end_s: float,
        attributes: Attributes | None = None,
        *,
        link: Span | None = None,
    ) -> None:
        """Add a child that is over already, between two times of the clock."""
        child = self._tracer.start_span(
            name,
            in_context(self.span),
            links=[] if link is None else [Link(link.get_span_context())],
            start_time=self._timeline.ns(start_s),
            attributes=attributes,
        )
        child.end(self._timeline.ns(max(end_s, start_s)))

    @contextmanager
    def client_span(
        self, name: str, attributes: Attributes, *, status_of: StatusOf
    ) -> Iterator[ClientSpan]:
        """A CLIENT span around a call that is made for the reply, and may outlast it.

        It does not become the current span. An error that passes is its status, unless the call
        was cancelled.
        """
        context = in_context(self.span)
        span = self._tracer.start_span(name, context, SpanKind.CLIENT, attributes=attributes)
        status = "OK"
        try:
            yield ClientSpan(span)
        except BaseException as error:
            status = status_of(error)
            if not isinstance(error, GIVEN_UP):
                is_ours = isinstance(error, SlipstreamError)
                record_error_as(span, type(error).__name__ if is_ours else status, error)
            raise
        finally:
            span.set_attribute(STATUS_CODE, status)
            span.end()


class KvStream:
    """A stream of keys and values, which lasts as long as its request; traced or not."""

    def __init__(self, reply: Reply | None, *, first: int) -> None:
        self._reply = reply
        self._num_left = first
        self._num_snapshots = self._num_bytes = 0

    def record_snapshot(
        self,
        verified: Reply | None,
        times: tuple[float, float],
        *,
        num_bytes: int,
        about: Attributes,
    ) -> None:
        """Record a snapshot that was sent between two times of the clock.

        `verified` is the reply of the verification that made it, where that is traced: the first
        few of those get spans, which are its children and linked to the stream.
        """
        self._num_snapshots += 1
        self._num_bytes += num_bytes
        if verified is None or self._num_left <= 0:
            return
        self._num_left -= 1
        link = None if self._reply is None else self._reply.span
        verified.part(SNAPSHOT, *times, {"slipstream.kv.bytes": num_bytes, **about}, link=link)

    def end(self) -> None:
        """Set the totals."""
        if self._reply is not None:
            self._reply.set(
                {
                    "slipstream.kv.bytes": self._num_bytes,
                    "slipstream.kv.snapshots": self._num_snapshots,
                }
            )


class Replies:
    """Makes SERVER spans of calls, for one service, where messages are traced."""

    def __init__(self, tracer: Tracer, clock: Callable[[], float] = time.perf_counter) -> None:
        self._tracer = tracer
        self._clock = clock

    @contextmanager
    def answering(
        self,
        name: str,
        carrier: Carrier | None,
        attributes: Attributes | None = None,
        *,
        status_of: StatusOf | None = None,
    ) -> Iterator[Reply | None]:
        """A span around a reply, current meanwhile; None where the message is not traced.

        An error that passes is its status. With `status_of` it has the gRPC status too, and a
        call that its client cancels has no error.
        """
        parent = parent_of(carrier)
        if parent is None:
            yield None
            return
        # A timeline of its own keeps parts within the span, even when the wall clock is set.
        timeline, status = Timeline(self._clock), "OK"
        start_ns = timeline.ns(self._clock())
        span = self._tracer.start_span(
            name, parent, SpanKind.SERVER, start_time=start_ns, attributes=attributes
        )
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield Reply(self._tracer, span, timeline)
        except BaseException as error:
            status = "" if status_of is None else status_of(error)
            if status != _GRPC_CANCELLED:
                record_error(span, error)
            raise
        finally:
            if status_of is not None:
                span.set_attribute(STATUS_CODE, status)
            span.end(timeline.ns(self._clock()))

    @contextmanager
    def streaming(
        self,
        method: str,
        carrier: Carrier | None,
        attributes: Attributes,
        *,
        status_of: StatusOf,
        first: int,
    ) -> Iterator[KvStream]:
        """A span around a stream of keys and values: a call of a gRPC method.

        Up to `first` of its snapshots have spans.
        """
        about = {"rpc.system.name": "grpc", "rpc.method": method, **attributes}
        with self.answering(method, carrier, about, status_of=status_of) as reply:
            stream = KvStream(reply, first=first)
            try:
                yield stream
            finally:
                stream.end()

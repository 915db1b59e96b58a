"""Spans of calls between services, on the side of the caller and of the service, and their errors.

Times are seconds of the clock that the service measures with.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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


@contextmanager
def client_span(
    tracer: Tracer,
    name: str,
    attributes: Attributes | None = None,
    *,
    parent: Span | None = None,
    status_of: StatusOf | None = None,
) -> Iterator[ClientSpan]:
    """A CLIENT span around a call, a child of `parent`, by default of the current span.

    It does not become the current span. An error that passes is its status, unless the call was
    cancelled. With `status_of` it has the gRPC status too, OK without an error.
    """
    context = None if parent is None else in_context(parent)
    span = tracer.start_span(name, context, SpanKind.CLIENT, attributes=attributes)
    try:
        yield ClientSpan(span)
    except BaseException as error:
        kind = type(error).__name__
        if status_of is not None:
            status = status_of(error)
            span.set_attribute(STATUS_CODE, status)
            kind = kind if isinstance(error, SlipstreamError) else status
        if not isinstance(error, GIVEN_UP):
            record_error_as(span, kind, error)
        raise
    else:
        if status_of is not None:
            span.set_attribute(STATUS_CODE, "OK")
    finally:
        span.end()


def rpc_attributes(method: str, address: str) -> Attributes:
    """Return attributes of a call of a method such as slipstream.rpc.v1.TargetService/StreamKv."""
    return {"rpc.system.name": "grpc", "rpc.method": method, **server_attributes(address)}


def server_attributes(address: str) -> Attributes:
    """Return attributes of a server at HOST:PORT, or at a gRPC name such as dns:///NAME:PORT."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if address.startswith("unix:") or not (host and port.isdigit()):
        return {"server.address": address}
    return {"server.address": host.strip("[]"), "server.port": int(port)}


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

    def client_span(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        status_of: StatusOf | None = None,
    ) -> AbstractContextManager[ClientSpan]:
        """A `client_span` around a call that is made for the reply, and may outlast it."""
        parent = self.span
        return client_span(self._tracer, name, attributes, parent=parent, status_of=status_of)


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
    def answering(self, name: str, carrier: Carrier | None) -> Iterator[Reply | None]:
        """A span around a reply, current meanwhile; None where the message is not traced.

        An error that passes is its status.
        """
        with self._reply(name, carrier) as reply:
            try:
                yield reply
            except BaseException as error:
                if reply is not None:
                    record_error(reply.span, error)
                raise

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

        Up to `first` of its snapshots have spans. A reader that goes away is no error.
        """
        about = {"rpc.system.name": "grpc", "rpc.method": method, **attributes}
        status = "OK"
        with self._reply(method, carrier, about) as reply:
            stream = KvStream(reply, first=first)
            try:
                yield stream
            except BaseException as error:
                status = status_of(error)
                if reply is not None and status != _GRPC_CANCELLED:
                    record_error(reply.span, error)
                raise
            finally:
                stream.end()
                if reply is not None:
                    reply.set({STATUS_CODE: status})

    @contextmanager
    def _reply(
        self, name: str, carrier: Carrier | None, attributes: Attributes | None = None
    ) -> Iterator[Reply | None]:
        parent = parent_of(carrier)
        if parent is None:
            yield None
            return
        # A timeline of its own keeps parts within the span, even when the wall clock is set.
        timeline = Timeline(self._clock)
        start_ns = timeline.ns(self._clock())
        span = self._tracer.start_span(
            name, parent, SpanKind.SERVER, start_time=start_ns, attributes=attributes
        )
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield Reply(self._tracer, span, timeline)
        finally:
            span.end(timeline.ns(self._clock()))

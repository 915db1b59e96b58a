"""Spans of a stream of keys and values, and of what goes out on it for traced verifications.

A stream lasts as long as its request, and its span with it; a snapshot is a child of the
verification that made it, and linked to the stream. Knows neither messages nor caches.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry.trace import Link, Span, SpanKind, Tracer, use_span
from opentelemetry.trace import set_span_in_context as in_context

from slipstream.telemetry.calls import STATUS_CODE
from slipstream.telemetry.carrier import Carrier, Timeline, parent_of
from slipstream.telemetry.failures import failed
from slipstream.telemetry.metric import Attributes
from slipstream.telemetry.replies import Reply

SNAPSHOT = "kv.snapshot"
_GONE = "CANCELLED"


class KvStream:
    """What is told of one stream, traced or not."""

    def __init__(
        self, tracer: Tracer, span: Span | None, timeline: Timeline, *, first: int
    ) -> None:
        self._tracer = tracer
        self._span = span
        self._timeline = timeline
        self._num_left = first
        self._num_snapshots = self._num_bytes = 0

    def sent(
        self,
        verified: Reply | None,
        times: tuple[float, float],
        *,
        num_bytes: int,
        about: Attributes,
    ) -> None:
        """A snapshot went out between two times of the clock.

        `verified` is the verification that made it, where that is traced: the first few of those
        become spans.
        """
        self._num_snapshots += 1
        self._num_bytes += num_bytes
        if verified is None or self._num_left <= 0:
            return
        self._num_left -= 1
        start_s, end_s = times
        span = self._tracer.start_span(
            SNAPSHOT,
            in_context(verified.span),
            links=[Link(self._span.get_span_context())] if self._span else [],
            start_time=self._timeline.ns(start_s),
            attributes={"slipstream.kv.bytes": num_bytes, **about},
        )
        span.end(self._timeline.ns(end_s))

    def end(self) -> None:
        """Say how much it was."""
        if self._span is not None:
            self._span.set_attribute("slipstream.kv.bytes", self._num_bytes)
            self._span.set_attribute("slipstream.kv.snapshots", self._num_snapshots)


class KvSpans:
    """Makes them, for one service."""

    def __init__(
        self, tracer: Tracer, *, first: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """A stream has up to `first` spans of snapshots."""
        self._tracer = tracer
        self._first = first
        self._clock = clock

    @contextmanager
    def streaming(
        self,
        method: str,
        carrier: Carrier | None,
        attributes: Attributes,
        *,
        status_of: Callable[[BaseException], str],
    ) -> Iterator[KvStream]:
        """Around a stream: a SERVER span of the gRPC method, where its request is traced.

        `status_of` names the status that an error ends the call with. A reader that goes away is
        no error of the stream.
        """
        parent = parent_of(carrier)
        timeline = Timeline(self._clock)
        if parent is None:
            yield KvStream(self._tracer, None, timeline, first=self._first)
            return
        about = {"rpc.system.name": "grpc", "rpc.method": method, **attributes}
        start_ns = timeline.ns(self._clock())
        span = self._tracer.start_span(
            method, parent, SpanKind.SERVER, start_time=start_ns, attributes=about
        )
        stream = KvStream(self._tracer, span, timeline, first=self._first)
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield stream
        except BaseException as error:
            status = status_of(error)
            span.set_attribute(STATUS_CODE, status)
            if status != _GONE:
                failed(span, error)
            raise
        else:
            span.set_attribute(STATUS_CODE, "OK")
        finally:
            stream.end()
            span.end(timeline.ns(self._clock()))

"""Requests as callers of the SDK see them: one span each, which the router's continues.

Through the API of OpenTelemetry alone: nothing is set up here, and where the application sets
nothing up either, nothing is recorded. Prompts and answers are never recorded.
"""

import time
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Tracer

import slipstream
from slipstream.core.request.request import Generation
from slipstream.core.request.results import Chunk, Result
from slipstream.telemetry.attributes import (
    prompt_attributes,
    request_attributes,
    server_attributes,
    stats_attributes,
)
from slipstream.telemetry.spans import carried, carrier_of, record_error


class SdkTelemetry:
    """Spans of a client's requests."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        """Send spans to the tracer; by default to the application's, once it has set one up."""
        self._tracer = tracer or trace.get_tracer("slipstream.client", slipstream.__version__)

    def request(self, generation: Generation, *, address: str | None, is_stream: bool) -> "SdkSpan":
        """Return the span of a request to the router there, or to engines in this process."""
        about: dict[str, Any] = dict(request_attributes(generation, is_stream=is_stream))
        if address is not None:  # which of several addresses answers is not known
            several = {"server.address": address}
            about |= several if "," in address else server_attributes(address)
        return SdkSpan(self._tracer, about)


class SdkSpan:
    """One request, from its beginning to its last chunk, its error, or the moment it is left."""

    def __init__(self, tracer: Tracer, about: dict[str, Any]) -> None:
        """`about` are the attributes that are known before it begins."""
        self._tracer = tracer
        self._about = about
        self._span: Span = INVALID_SPAN
        self._began_s = 0.0
        self._num_tokens: int | None = None
        self.headers: tuple[tuple[str, str], ...] = ()
        """The W3C Trace Context for the callee: of this span or, where nothing makes any, of
        the application's current one. Whether the trace is sampled goes with it; no trace, none."""

    def begin(self) -> None:
        """Begin the request's span, a child of the current one, before it is sent."""
        self._began_s = time.perf_counter()
        kind = SpanKind.CLIENT if "server.address" in self._about else SpanKind.INTERNAL
        names = (self._about.get(f"gen_ai.{name}") for name in ("operation.name", "request.model"))
        name = " ".join(filter(None, names))
        self._span = self._tracer.start_span(name, kind=kind, attributes=self._about)
        current = trace.get_current_span()
        carrier = (
            carried(self._span) or carried(current) or carrier_of(self._span) or carrier_of(current)
        )
        if carrier is not None:
            headers = (("traceparent", carrier.traceparent), ("tracestate", carrier.tracestate))
            self.headers = tuple(header for header in headers if header[1])

    def record_chunk(self, chunk: Chunk) -> None:
        """Record a part of the answer; the last one ends the span."""
        if not self._span.is_recording():
            return
        if self._num_tokens is None:
            elapsed_s = time.perf_counter() - self._began_s
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", elapsed_s)
        self._num_tokens = (self._num_tokens or 0) + len(chunk.token_ids)
        self.record_result(chunk)

    def record_result(self, part: Chunk | Result) -> None:
        """Record all of the answer at once, which ends the span, or a part of it."""
        if part.prompt is not None:
            self._span.set_attributes(prompt_attributes(part.prompt))
        if part.finish_reason is None:
            return
        if part.stats is not None:
            self._span.set_attributes(stats_attributes(part.finish_reason, part.stats))
        self._span.end()

    def record_error(self, error: BaseException) -> None:
        """End the span with an error. A request that its caller gives up is no failure."""
        if self._span.is_recording():
            record_error(self._span, error)
            if self._num_tokens is not None:
                self._span.set_attribute("gen_ai.usage.output_tokens", self._num_tokens)
            self._span.end()

    def record_cancelled(self) -> None:
        """End the span of a stream that is read no further."""
        self.record_error(GeneratorExit())

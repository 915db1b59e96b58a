"""Requests as callers of the SDK see them: a span each, and three metrics.

Through the API of OpenTelemetry alone: nothing is set up here, and where the application sets
nothing up either, nothing is recorded. Names are those of the semantic conventions for generative
AI, and ours in the namespace `slipstream`. Prompts and answers are never recorded.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, TracerProvider

import slipstream
from slipstream.core.request.request import Generation
from slipstream.core.request.results import Chunk, PromptInfo, RequestStats, Result
from slipstream.core.types import FinishReason
from slipstream.telemetry.attributes import (
    prompt_attributes,
    request_attributes,
    server_attributes,
    stats_attributes,
)
from slipstream.telemetry.carrier import carried, carrier_of
from slipstream.telemetry.catalog import CLIENT_DURATION, CLIENT_FIRST_CHUNK, CLIENT_TOKENS
from slipstream.telemetry.metric import Instruments, Metric
from slipstream.telemetry.spans import CANCELLED, record_error_as
from slipstream.telemetry.telemetry import Telemetry

_SCOPE = "slipstream.client"

Clock = Callable[[], float]
_Attributes = dict[str, Any]


class SdkTelemetry:
    """Telemetry of a client's requests, which goes to the application's own."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Providers left out are the application's global ones, once it has set them."""
        version = slipstream.__version__
        self._tracer = trace.get_tracer(_SCOPE, version, tracer_provider)
        self._instruments = Instruments(metrics.get_meter(_SCOPE, version, meter_provider))
        self._clock = clock

    @classmethod
    def of(cls, telemetry: Telemetry) -> "SdkTelemetry":
        """Return the telemetry of a service that is a client itself, in its own telemetry."""
        watcher = cls.__new__(cls)
        watcher._tracer, watcher._instruments = telemetry.tracer, telemetry.instruments
        watcher._clock = time.perf_counter
        return watcher

    def request(self, generation: Generation, *, address: str | None, is_stream: bool) -> "SdkSpan":
        """A request that is about to be made, of the router there or of engines in this process."""
        about = _about(generation, address, is_stream=is_stream)
        return SdkSpan(self._tracer, self._instruments, self._clock, about)


class SdkSpan:
    """One request, from its beginning to its last chunk, its error, or the moment it is left."""

    def __init__(
        self, tracer: trace.Tracer, instruments: Instruments, clock: Clock, about: _Attributes
    ) -> None:
        """`about` are the attributes that are known before it begins."""
        self._tracer = tracer
        self._instruments = instruments
        self._clock = clock
        self._about = about
        self._span: Span = INVALID_SPAN
        self._began_s = 0.0
        self._has_begun = self._has_ended = False
        self._lock = threading.Lock()
        self._num_tokens: int | None = None
        self.headers: tuple[tuple[str, str], ...] = ()
        """The W3C Trace Context for the callee: of this span or, where nothing makes any, of
        the application's current one. Whether the trace is sampled goes with it; no trace, none."""

    def begin(self) -> None:
        """Begin the request's span, a child of the current one, before it is sent."""
        if self._has_begun:
            return
        self._has_begun = True
        self._began_s = self._clock()
        kind = SpanKind.CLIENT if "server.address" in self._about else SpanKind.INTERNAL
        self._span = self._tracer.start_span(_name(self._about), kind=kind, attributes=self._about)
        current = trace.get_current_span()
        at = (
            carried(self._span) or carried(current) or carrier_of(self._span) or carrier_of(current)
        )
        if at is not None:
            headers = (("traceparent", at.traceparent), ("tracestate", at.tracestate))
            self.headers = tuple(header for header in headers if header[1])

    def record_chunk(self, chunk: Chunk) -> None:
        """A part of the answer has come; the last one ends the span."""
        if self._has_ended:
            return
        if self._num_tokens is None:
            self._num_tokens = 0
            elapsed_s = self._clock() - self._began_s
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", elapsed_s)
            self._record(CLIENT_FIRST_CHUNK, elapsed_s)
        self._num_tokens += len(chunk.token_ids)
        if chunk.prompt is not None:
            self._say_prompt(chunk.prompt)
        if chunk.finish_reason is not None and self._is_last_word():
            self._finish(chunk.finish_reason, chunk.stats)

    def record_result(self, result: Result) -> None:
        """All of the answer has come at once."""
        if self._is_last_word():
            self._say_prompt(result.prompt)
            self._finish(result.finish_reason, result.stats)

    def record_resumed(self, num_received: int) -> None:
        """Record that it broke off and is sent again for what follows so many tokens."""
        if not self._has_ended:
            self._span.add_event("resumed", {"slipstream.resumed.num_received": num_received})

    def record_error(self, error: BaseException) -> None:
        """Record the error that ended it. A request that its caller gives up is no failure."""
        if not isinstance(error, Exception):
            self.record_cancelled()
        elif self._is_last_word():
            kind = type(error).__name__
            record_error_as(self._span, kind, error)
            self._say_received()
            self._end(kind)

    def record_cancelled(self) -> None:
        """End a stream that is read no further. What came until then is counted."""
        if self._is_last_word():
            self._span.set_attribute("error.type", CANCELLED)
            self._say_received()
            self._end(CANCELLED)

    def _is_last_word(self) -> bool:
        """Return whether this call ends it: one thread may read a stream, another close it."""
        with self._lock:
            is_last = self._has_begun and not self._has_ended
            self._has_ended = self._has_ended or is_last
        return is_last

    def _say_prompt(self, info: PromptInfo) -> None:
        self._span.set_attributes(prompt_attributes(info))
        self._count("input", info.num_prompt_tokens)

    def _say_received(self) -> None:
        """Record what was received of an answer that has no end."""
        if self._num_tokens is not None:
            self._span.set_attribute("gen_ai.usage.output_tokens", self._num_tokens)
            self._count("output", self._num_tokens)

    def _finish(self, reason: FinishReason, stats: RequestStats | None) -> None:
        if stats is not None:
            self._span.set_attributes(stats_attributes(reason, stats))
            self._count("output", stats.num_output_tokens)
        self._end()

    def _count(self, kind: str, num_tokens: int) -> None:
        self._record(CLIENT_TOKENS, num_tokens, {"gen_ai.token.type": kind})

    def _end(self, error: str | None = None) -> None:
        more = {} if error is None else {"error.type": error}
        self._record(CLIENT_DURATION, self._clock() - self._began_s, more)
        self._span.end()

    def _record(self, metric: Metric, value: float, more: _Attributes | None = None) -> None:
        """Record a value with the request's attributes that the metric has, and `more`."""
        common = {name: self._about[name] for name in metric.attributes if name in self._about}
        self._instruments.record(metric, value, common | (more or {}))


def _about(generation: Generation, address: str | None, *, is_stream: bool) -> _Attributes:
    """Return the attributes of a request before it is sent, without its content."""
    attributes: _Attributes = dict(request_attributes(generation, is_stream=is_stream))
    if address is not None:  # which of several addresses answers is not known
        several = {"server.address": address}
        attributes |= several if "," in address else server_attributes(address)
    return attributes


def _name(about: _Attributes) -> str:
    operation = about["gen_ai.operation.name"]
    model = about.get("gen_ai.request.model")
    return operation if model is None else f"{operation} {model}"

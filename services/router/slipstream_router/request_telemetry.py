"""Telemetry of a router: of its requests, a span each and metrics of all, and of its store."""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from slipstream.core.errors import SlipstreamError
from slipstream.core.request.request import Generation
from slipstream.core.request.results import Chunk
from slipstream.rpc.status import code_of
from slipstream.state.store import SessionStore
from slipstream.telemetry import catalog
from slipstream.telemetry.attributes import (
    operation_attributes,
    prompt_attributes,
    request_attributes,
    stats_attributes,
)
from slipstream.telemetry.logs import bind
from slipstream.telemetry.metric import Attributes, Instruments, Telemetry
from slipstream.telemetry.request_span import RequestSpan, RoundTracer
from slipstream.telemetry.round_metrics import RoundMetrics
from slipstream.telemetry.spans import CANCELLED, GIVEN_UP, carrier_in

ENTER = "enter"
"""The first stage of requests: authentication and parsing."""
_FROM_THE_START = (
    catalog.TOKENS_PROMPT,
    catalog.TOKENS_CACHED,
    catalog.TOKENS_DRAFTED,
    catalog.TOKENS_ACCEPTED,
    catalog.TOKENS_FINAL,
    catalog.ROUNDS_GRANTED,
    catalog.TOKENS_UNKEPT,
    catalog.TARGET_LOSSES,
)
"""Exported as 0 at first: an increase is one only of what was there."""
Metadata = Sequence[tuple[str, str | bytes]]


@dataclass(eq=False)
class RequestRecorder:
    """Telemetry of one request. `RouterTelemetry.request` begins and ends it."""

    span: RequestSpan
    instruments: Instruments
    rounds: RoundTracer
    _asked: Generation | None = None
    _model: str = ""
    _first_s: float | None = None
    _num_tokens: int = 0

    def __post_init__(self) -> None:
        self._began_s = self.span.clock()

    def record_request(self, asked: Generation, *, is_stream: bool) -> None:
        self._asked = asked
        if self.span.is_traced:
            self.span.set_attributes(request_attributes(asked, is_stream=is_stream))

    def record_id(self, request_id: str) -> None:
        """Record the request's id, in logs and in its span."""
        bind(request_id=request_id)
        self.span.set_attributes({"gen_ai.response.id": request_id})

    def record_session(self, session_id: str) -> None:
        """Record the session: the caller's, or one that only this request has."""
        bind(session_id=session_id)
        self.span.set_attributes({"slipstream.session.id": session_id})

    def record_chunk(self, chunk: Chunk) -> None:
        """Record a piece of the answer that is about to be sent."""
        if chunk.token_ids and self._first_s is None:
            self._first_s = self.span.clock() - self._began_s
            self.span.set_attributes({"gen_ai.response.time_to_first_chunk": self._first_s})
        self._num_tokens += len(chunk.token_ids)
        if chunk.prompt is not None:
            self._model = chunk.prompt.model
            if self.span.is_traced:
                self.span.set_attributes(prompt_attributes(chunk.prompt))
        if chunk.stats is not None and chunk.finish_reason is not None and self.span.is_traced:
            self.span.set_attributes(stats_attributes(chunk.finish_reason, chunk.stats))

    def end(self, error: BaseException | None) -> None:
        self.rounds.end()
        self.span.set_attributes({"rpc.response.status_code": _status(error)})
        self.span.end(error)
        if self.instruments.are_exported:
            self._measure(error)

    def _measure(self, error: BaseException | None) -> None:
        elapsed_s = self.span.clock() - self._began_s
        attributes = {} if self._asked is None else operation_attributes(self._asked, self._model)
        kind = CANCELLED if isinstance(error, GIVEN_UP) else type(error).__name__
        ended = attributes if error is None else {**attributes, "error.type": kind}
        self.instruments.record(catalog.REQUEST_DURATION, elapsed_s, ended)
        if self._first_s is None:
            return
        self.instruments.record(catalog.FIRST_TOKEN, self._first_s, attributes)
        if error is None and self._num_tokens > 1:
            per_token_s = (elapsed_s - self._first_s) / (self._num_tokens - 1)
            self.instruments.record(catalog.PER_TOKEN, per_token_s, attributes)


class RouterTelemetry:
    """Telemetry of one router. `export` its counts once in a while."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self.rounds = RoundMetrics(telemetry.instruments)
        for metric in _FROM_THE_START:
            self.rounds.count(metric, amount=0)

    @contextmanager
    def request(self, method: str, metadata: Metadata | None) -> Iterator[RequestRecorder]:
        """Record a request of a gRPC method, and bind its ids to what its task logs."""
        attributes: Attributes = {"rpc.system.name": "grpc", "rpc.method": method}
        headers = {name: value for name, value in metadata or () if isinstance(value, str)}
        span = RequestSpan(self._telemetry, method, carrier_in(headers), attributes)
        span.begins(ENTER)
        rounds = RoundTracer(span, self._telemetry.trace_rounds, self.rounds.record)
        recorder = RequestRecorder(span, self._telemetry.instruments, rounds)
        span.become_current()
        error: BaseException | None = None
        try:
            yield recorder
        except BaseException as passing:
            error = passing
            raise
        finally:
            if (plain_s := self.rounds.plain_s) is not None:
                span.set_attributes({"slipstream.speculation.plain_round_ms": 1000 * plain_s})
            recorder.end(error)


@dataclass(frozen=True, slots=True)
class WatchedStore:
    """A `SessionStore` whose operations on sessions are timed."""

    store: SessionStore
    instruments: Instruments
    clock: Callable[[], float] = time.perf_counter

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.store, name)
        return operation if name in ("count", "aclose") else partial(self._watched, name, operation)

    async def _watched(
        self, name: str, operation: Callable[..., Awaitable[Any]], *args: Any, **options: Any
    ) -> Any:
        start_s, outcome = self.clock(), "ok"
        try:
            return await operation(*args, **options)
        except BaseException as error:
            outcome = type(error).__name__ if isinstance(error, SlipstreamError) else "other"
            raise
        finally:
            if self.instruments.are_exported:
                about = {"operation": name, "outcome": outcome}
                self.instruments.record(catalog.STORE_DURATION, self.clock() - start_s, about)


def _status(error: BaseException | None) -> str:
    if error is None:
        return "OK"
    if isinstance(error, GIVEN_UP):
        return "CANCELLED"
    return code_of(error).name if isinstance(error, SlipstreamError) else "INTERNAL"

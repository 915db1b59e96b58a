"""The span of one request at the router, and where its time goes: stages, some with a child span,
and rounds.

Knows neither the wire nor what a request is made of. Children are made when they are over, from
the times that were taken anyway, so that a request that is not traced pays for a clock only.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry.context import Context, attach
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, use_span
from opentelemetry.trace import set_span_in_context as in_context

from slipstream.core.round import Port, Round
from slipstream.telemetry.attributes import (
    proposal_attributes,
    round_attributes,
    verdict_attributes,
)
from slipstream.telemetry.metric import Attributes, Telemetry
from slipstream.telemetry.spans import Carrier, Timeline, parent_of, record_error


class RequestSpan:
    """One request's span, which need not be sampled. `end` it."""

    def __init__(
        self,
        telemetry: Telemetry,
        name: str,
        carrier: Carrier | None,
        attributes: Attributes,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin the SERVER span of a request that has arrived, below the carrier's, if any."""
        self._tracer, self.clock, self._timeline = telemetry.tracer, clock, Timeline(clock)
        self.span = self._tracer.start_span(
            name,
            parent_of(carrier) or Context(),
            SpanKind.SERVER,
            attributes=attributes,
            start_time=self._timeline.ns(clock()),
        )
        self.is_traced = self.span.is_recording()
        self._spent: dict[str, float] = {}
        self._begun: dict[str, float] = {}

    def become_current(self) -> None:
        """Be the current span of this task and of those it starts. It ends with the task."""
        if self.is_traced:
            attach(in_context(self.span))

    def spend(self, stage: str, seconds: float) -> None:
        self._spent[stage] = self._spent.get(stage, 0.0) + seconds

    @contextmanager
    def stage(self, stage: str, span: str | None = None) -> Iterator[None]:
        """Time what is done here; with a name for it, it has a child span too."""
        start_s = self.clock()
        error: BaseException | None = None
        try:
            yield
        except BaseException as passing:
            error = passing
            raise
        finally:
            end_s = self.clock()
            self.spend(stage, end_s - start_s)
            if span is not None:
                child = self.begin(span, start_s, kind=SpanKind.INTERNAL)
                self.finish(child, end_s, {}, error)

    def begins(self, stage: str, at_s: float | None = None) -> None:
        """Begin a stage now, or at an earlier time; it `ends` elsewhere."""
        self._begun[stage] = self.clock() if at_s is None else at_s

    def ends(self, stage: str, at_s: float | None = None) -> None:
        """End a stage now, or at an earlier time, if it has begun."""
        start_s = self._begun.pop(stage, None)
        if start_s is not None:
            self.spend(stage, (self.clock() if at_s is None else at_s) - start_s)

    def begin(
        self, name: str, start_s: float, parent: Span | None = None, *, kind: SpanKind
    ) -> Span:
        """Begin a child, of the request's span if of no `parent`; `finish` it."""
        if not self.is_traced:
            return INVALID_SPAN
        context = in_context(self.span if parent is None else parent, Context())
        return self._tracer.start_span(name, context, kind, start_time=self._timeline.ns(start_s))

    def finish(
        self, span: Span, end_s: float, attributes: Attributes, error: BaseException | None
    ) -> None:
        """End a child, or the request's own span."""
        span.set_attributes(attributes)
        if error is not None:
            record_error(span, error)
        span.end(self._timeline.ns(end_s))

    def set_attributes(self, attributes: Attributes) -> None:
        self.span.set_attributes(attributes)

    def end(self, error: BaseException | None = None) -> None:
        """End the request and all that has begun."""
        for stage in tuple(self._begun):
            self.ends(stage)
        spent = {f"slipstream.stage.{name}_ms": 1000 * s for name, s in self._spent.items()}
        self.finish(self.span, self.clock(), spent, error)


class RoundTracer:
    """The `core.round.RoundObserver` of one request; `end` it. `on_round` gets each round that has
    its verdict.

    A request that is traced has spans of its first rounds, which engines elsewhere continue. All
    other rounds are in the request's totals alone.
    """

    def __init__(
        self, request: RequestSpan, num_rounds: int, on_round: Callable[[Round], None]
    ) -> None:
        self._request = request
        self._num_rounds = num_rounds
        self._on_round = on_round
        self._at: Round | None = None
        self._span: Span = INVALID_SPAN
        self._calls: dict[Port, Span] = {}
        """Spans of the round's calls; they end with the round, at the times that it has."""
        self._left_s: float | None = None

    @contextmanager
    def calling(self, round_: Round, port: Port) -> Iterator[None]:
        """Begin the round's spans, where it has any, and make that of the call the current one."""
        request = self._request
        if self._at is not round_:
            self._at, self._calls, self._span = round_, {}, INVALID_SPAN
            if round_.index < self._num_rounds:
                self._span = request.begin("round", round_.start_s, kind=SpanKind.INTERNAL)
        if not request.is_traced:
            yield
            return
        span: Span = INVALID_SPAN
        if self._span.is_recording():
            span = request.begin(port, request.clock(), self._span, kind=SpanKind.CLIENT)
            self._calls[port] = span
        # Engines must not continue the request's own span: it would have spans without end.
        with use_span(span, record_exception=False, set_status_on_exception=False):
            yield

    def record(self, round_: Round) -> None:
        self.end()
        self._on_round(round_)

    def settles(self) -> None:
        """Begin the stage after the last round, which lasts from its verdict on."""
        self._request.begins("settle", self._left_s)

    def end(self) -> None:
        """End the round, also one that broke off."""
        if self._at is not None:
            self._spend(self._at)
            if self._span.is_recording():
                self._finish(self._at)
        self._at = None

    def _spend(self, round_: Round) -> None:
        """Count the time of the round by stage: its calls, and what was between them."""
        verify = "verify" if round_.index else "prefill"
        for stage, times in (("draft", round_.proposing), (verify, round_.verifying)):
            if times is None:
                continue
            if self._left_s is None:
                self._request.ends("between", times[0])
            else:
                self._request.spend("between", times[0] - self._left_s)
            self._request.spend(stage, times[1] - times[0])
            self._left_s = times[1]

    def _finish(self, round_: Round) -> None:
        request, last = self._request, round_.verifying or round_.proposing
        for port, times, about in (
            (Port.PROPOSE, round_.proposing, proposal_attributes),
            (Port.VERIFY, round_.verifying, verdict_attributes),
        ):
            if times is not None:
                error = round_.error if times == last else None
                request.finish(self._calls[port], times[1], about(round_), error)
        end_s = round_.start_s if last is None else last[1]
        request.finish(self._span, end_s, round_attributes(round_), round_.error)

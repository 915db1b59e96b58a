"""Spans of the rounds of one request, and the time that its stages take.

A request that is traced has spans of its first rounds, which engines elsewhere continue. All
other rounds are in the request's totals alone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, use_span

from slipstream.core.round import Port, Round
from slipstream.telemetry.attributes import (
    proposal_attributes,
    round_attributes,
    verdict_attributes,
)
from slipstream.telemetry.request_span import RequestSpan

ROUND = "round"


class RoundTracer:
    """The `core.round.RoundObserver` of one request; `end` it. `on_round` gets each round that has
    its verdict."""

    def __init__(
        self, request: RequestSpan, num_rounds: int, on_round: Callable[[Round], None]
    ) -> None:
        """The first `num_rounds` rounds have spans."""
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
                self._span = request.begin(ROUND, round_.start_s, kind=SpanKind.INTERNAL)
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
        """Record a round that has its verdict."""
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

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
        """The round on its way."""
        self._span: Span = INVALID_SPAN
        self._calls: dict[Port, Span] = {}
        """Spans of the round's calls; they end with the round, at the times that it has."""
        self._left_s: float | None = None

    @contextmanager
    def calling(self, at: Round, port: Port) -> Iterator[None]:
        """Begin the round's spans, where it has any, and make that of the call the current one."""
        if self._at is not at:
            self._begin(at)
        if not self._request.is_traced:
            yield
            return
        span: Span = INVALID_SPAN
        if self._span.is_recording():
            start_s = self._request.clock()
            span = self._request.begin(port, start_s, self._span, kind=SpanKind.CLIENT)
            self._calls[port] = span
        # Engines must not continue the request's own span: it would have spans without end.
        with use_span(span, record_exception=False, set_status_on_exception=False):
            yield

    def record(self, at: Round) -> None:
        """Record a round that has its verdict."""
        self._close(at)
        self._on_round(at)

    def settles(self) -> None:
        """Begin the stage after the last round, which lasts from its verdict on."""
        self._request.begins("settle", self._left_s)

    def end(self) -> None:
        """End a round that broke off."""
        if self._at is not None:
            self._close(self._at)

    def _begin(self, at: Round) -> None:
        self._at, self._calls, self._span = at, {}, INVALID_SPAN
        if self._request.is_traced and at.index < self._num_rounds:
            self._span = self._request.begin(ROUND, at.start_s, kind=SpanKind.INTERNAL)

    def _close(self, at: Round) -> None:
        self._at = None
        self._spend(at)
        if self._span.is_recording():
            self._finish(at)
            self._span = INVALID_SPAN

    def _spend(self, at: Round) -> None:
        """Count the time of the round by stage: its calls, and what was between them."""
        verify = "verify" if at.index else "prefill"
        for stage, times in (("draft", at.proposing), (verify, at.verifying)):
            if times is None:
                continue
            if self._left_s is None:
                self._request.ends("between", times[0])
            else:
                self._request.spend("between", times[0] - self._left_s)
            self._request.spend(stage, times[1] - times[0])
            self._left_s = times[1]

    def _finish(self, at: Round) -> None:
        """End the span of a round, and those of its calls."""
        request, last = self._request, at.verifying or at.proposing
        for port in Port:
            times = at.proposing if port is Port.PROPOSE else at.verifying
            if times is None:
                continue
            about = proposal_attributes if port is Port.PROPOSE else verdict_attributes
            request.finish(
                self._calls[port], times[1], about(at), at.error if times == last else None
            )
        end_s = at.start_s if last is None else last[1]
        request.finish(self._span, end_s, round_attributes(at), at.error)

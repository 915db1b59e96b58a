"""Spans of the rounds of one request, and the time that its stages take.

A request that is traced has spans of its first rounds, which engines elsewhere continue. Of the
slowest others, and of those in which no draft token was accepted, spans are made at its end.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, use_span

from slipstream.core.round import Port, Round
from slipstream.telemetry.attributes import (
    proposal_attributes,
    round_attributes,
    verdict_attributes,
)
from slipstream.telemetry.request_span import RequestSpan
from slipstream.telemetry.telemetry import TraceBounds

FIRST, SLOWEST, REJECTED = "first", "slowest", "rejected"
ROUND = "round"


class RoundTracer:
    """The `core.round.RoundObserver` of one request; `end` it. `on_round` gets each round that has
    its verdict."""

    def __init__(
        self, request: RequestSpan, bounds: TraceBounds, on_round: Callable[[Round], None]
    ) -> None:
        self._request = request
        self._bounds = bounds
        self._on_round = on_round
        self._at: Round | None = None
        """The round on its way."""
        self._span: Span = INVALID_SPAN
        self._calls: dict[Port, Span] = {}
        """Spans of the round's calls; they end with the round, at the times that it has."""
        self._left_s: float | None = None
        self._slowest: list[tuple[float, int, Round]] = []
        self._rejected: list[Round] = []

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
        """Make the spans of chosen rounds, and end a round that broke off."""
        if self._at is not None:
            self._close(self._at)
        chosen = {at.index: (at, REJECTED) for at in self._rejected}
        chosen |= {at.index: (at, SLOWEST) for _, _, at in self._slowest}
        for index in sorted(chosen):
            at, selected = chosen[index]
            span = self._request.begin(ROUND, at.start_s, kind=SpanKind.INTERNAL)
            self._finish(at, selected, span, {})

    def _begin(self, at: Round) -> None:
        self._at, self._calls, self._span = at, {}, INVALID_SPAN
        if self._request.is_traced and at.index < self._bounds.first:
            self._span = self._request.begin(ROUND, at.start_s, kind=SpanKind.INTERNAL)

    def _close(self, at: Round) -> None:
        self._at = None
        self._spend(at)
        if self._span.is_recording():
            self._finish(at, FIRST, self._span, self._calls)
            self._span = INVALID_SPAN
        elif self._request.is_traced:
            self._consider(at)

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

    def _finish(self, at: Round, selected: str, span: Span, calls: Mapping[Port, Span]) -> None:
        """End the span of a round, and those of its calls, which are made where there are none."""
        request, last = self._request, at.verifying or at.proposing
        for port in Port:
            times = at.proposing if port is Port.PROPOSE else at.verifying
            if times is None:
                continue
            call = calls.get(port) or request.begin(port, times[0], span, kind=SpanKind.CLIENT)
            about = proposal_attributes if port is Port.PROPOSE else verdict_attributes
            request.finish(call, times[1], about(at), at.error if times == last else None)
        end_s = at.start_s if last is None else last[1]
        request.finish(span, end_s, round_attributes(at, selected), at.error)

    def _consider(self, at: Round) -> None:
        """Remember a round for the end, as far as there is room."""
        if at.is_rejected and len(self._rejected) < self._bounds.rejected:
            self._rejected.append(at)
        if self._bounds.slowest:
            push = (
                heapq.heappush if len(self._slowest) < self._bounds.slowest else heapq.heappushpop
            )
            push(self._slowest, (at.seconds, -at.index, at))

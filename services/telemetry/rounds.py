"""Spans of the rounds of one request, and the time that its stages take.

A request that is traced has spans of its first rounds, which engines elsewhere continue. Of the
slowest others, and of those in which no draft token was accepted, spans are made at its end.
"""

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, use_span

from slipstream.core.round import Port, Round
from slipstream.core.timing import Times
from slipstream.telemetry.metric import Attributes
from slipstream.telemetry.request_span import RequestSpan
from slipstream.telemetry.round_attributes import (
    proposal_attributes,
    round_attributes,
    verdict_attributes,
)
from slipstream.telemetry.spans import record_error
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
        self._calls: list[tuple[Port, Span]] = []
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
            self._calls.append((port, span))
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
            self._make(*chosen[index])

    def _begin(self, at: Round) -> None:
        self._at, self._calls, self._span = at, [], INVALID_SPAN
        if self._request.is_traced and at.index < self._bounds.first:
            self._span = self._request.begin(ROUND, at.start_s, kind=SpanKind.INTERNAL)

    def _close(self, at: Round) -> None:
        self._at = None
        self._spend(at)
        if self._span.is_recording():
            self._finish(at)
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

    def _finish(self, at: Round) -> None:
        """End the spans of a round that were begun with it."""
        for port, span in self._calls:
            times, said = _call(at, port)
            span.set_attributes(said)
            if at.error is not None and times == _last(at):
                record_error(span, at.error)
            self._request.finish(span, at.start_s if times is None else times[1])
        self._span.set_attributes(round_attributes(at, FIRST))
        if at.error is not None:
            record_error(self._span, at.error)
        last = _last(at)
        self._request.finish(self._span, at.start_s if last is None else last[1])
        self._span = INVALID_SPAN

    def _consider(self, at: Round) -> None:
        """Remember a round for the end, as far as there is room."""
        if at.is_rejected and len(self._rejected) < self._bounds.rejected:
            self._rejected.append(at)
        if self._bounds.slowest:
            push = (
                heapq.heappush if len(self._slowest) < self._bounds.slowest else heapq.heappushpop
            )
            push(self._slowest, (at.seconds, -at.index, at))

    def _make(self, at: Round, selected: str) -> None:
        """Make the spans of a round that is over."""
        request, last = self._request, _last(at)
        if last is None:
            return
        said = round_attributes(at, selected)
        span = request.child(ROUND, (at.start_s, last[1]), said, error=at.error)
        for port in Port:
            times, said = _call(at, port)
            if times is not None:
                error = at.error if times == last else None
                request.child(port, times, said, error=error, parent=span, kind=SpanKind.CLIENT)


def _call(at: Round, port: Port) -> tuple[Times | None, Attributes]:
    """Return when a call of the round began and ended, and its attributes."""
    if port is Port.PROPOSE:
        return at.proposing, proposal_attributes(at)
    return at.verifying, verdict_attributes(at)


def _last(at: Round) -> Times | None:
    """Return the times of the round's last call, which an error is of."""
    return at.verifying or at.proposing

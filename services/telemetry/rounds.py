"""Watches the rounds of one request: its two ports, wrapped. Knows neither where engines live nor
what comes of what it sees, but for spans.

A request that is traced has spans of its first rounds, which engines elsewhere are told of; of the
slowest others, and of those that kept nothing of what was drafted, it makes spans at its end.
"""

import heapq
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, use_span

from slipstream.core.ports import Draft, Target
from slipstream.core.types import Delta, Plan, Proposal, Session, Verdict
from slipstream.telemetry.request_span import RequestSpan
from slipstream.telemetry.round_seen import (
    RoundSeen,
    Times,
    proposal_attributes,
    round_attributes,
    verdict_attributes,
)
from slipstream.telemetry.spans import record_error
from slipstream.telemetry.telemetry import TraceBounds

FIRST, SLOWEST, REJECTED = "first", "slowest", "rejected"
PROPOSE, VERIFY, ROUND = "draft.propose", "target.verify", "round"


class RoundWatch:
    """Of one request; `end` it. `seen` is told of every round once it has its verdict."""

    def __init__(
        self, request: RequestSpan, bounds: TraceBounds, seen: Callable[[RoundSeen], None]
    ) -> None:
        self._request = request
        self._bounds = bounds
        self._seen = seen
        self._num_rounds = 0
        self._at: RoundSeen | None = None
        self._span: Span = INVALID_SPAN
        self._left_s: float | None = None
        self._slowest: list[tuple[float, int, RoundSeen]] = []
        self._rejected: list[RoundSeen] = []

    def watched(self, draft: Draft, target: Target) -> "tuple[WatchedDraft, WatchedTarget]":
        """The two ports of the request."""
        return WatchedDraft(draft, self), WatchedTarget(target, self)

    @contextmanager
    def proposing(self, plan: Plan) -> Iterator[RoundSeen]:
        """While a proposal is waited for, which begins a round. Set what came of it."""
        at, start_s = self._enter()
        at.plan = plan
        span = self._begin(PROPOSE, start_s)
        try:
            with self._around(span):
                yield at
        except BaseException as error:
            self._fail(at, span, error)
            raise
        finally:
            at.proposing = self._leave("draft", start_s)
            if span.is_recording():
                span.set_attributes(proposal_attributes(at))
                self._request.finish(span, at.proposing[1])

    @contextmanager
    def verifying(self, proposal: Proposal) -> Iterator[RoundSeen]:
        """While a verdict is waited for, which ends a round. Set what came of it."""
        at, start_s = self._enter()
        at.proposal = proposal
        span = self._begin(VERIFY, start_s)
        try:
            with self._around(span):
                yield at
        except BaseException as error:
            self._fail(at, span, error)
            raise
        finally:
            at.verifying = self._leave("verify" if at.index else "prefill", start_s)
            if span.is_recording():
                span.set_attributes(verdict_attributes(at))
                self._request.finish(span, at.verifying[1])
            self._close(at, at.verifying[1])

    def settles(self) -> None:
        """No round follows: what has been done since the last one is another stage."""
        self._request.begins("settle", self._left_s)

    def end(self) -> None:
        """Make the spans of rounds that have none yet, and end one that broke off."""
        if self._at is not None:
            self._close(self._at, self._request.clock())
        chosen = {at.index: (at, REJECTED) for at in self._rejected}
        chosen |= {at.index: (at, SLOWEST) for _, _, at in self._slowest}
        for index in sorted(chosen):
            self._tell(*chosen[index])

    def _enter(self) -> tuple[RoundSeen, float]:
        """The round on its way, or the next one; and when an engine begins to be waited for."""
        now_s = self._request.clock()
        if self._left_s is None:
            self._request.ends("between")
        else:
            self._request.spend("between", now_s - self._left_s)
        if self._at is None:
            self._at = RoundSeen(self._num_rounds, now_s)
            self._num_rounds += 1
            if self._request.is_traced and self._at.index < self._bounds.first:
                self._span = self._request.begin(ROUND, now_s, kind=SpanKind.INTERNAL)
        return self._at, now_s

    def _leave(self, stage: str, start_s: float) -> Times:
        self._left_s = self._request.clock()
        self._request.spend(stage, self._left_s - start_s)
        return start_s, self._left_s

    def _fail(self, at: RoundSeen, span: Span, error: BaseException) -> None:
        at.error = error
        record_error(span, error)
        record_error(self._span, error)

    def _begin(self, name: str, start_s: float) -> Span:
        """A span that goes with messages; one that says nothing where the round has none."""
        if not self._span.is_recording():
            return INVALID_SPAN
        return self._request.begin(name, start_s, self._span, kind=SpanKind.CLIENT)

    def _around(self, span: Span) -> AbstractContextManager[object]:
        """Nothing is told of the request's own span: engines would answer with spans for ever."""
        if not self._request.is_traced:
            return nullcontext()
        return use_span(span, record_exception=False, set_status_on_exception=False)

    def _close(self, at: RoundSeen, end_s: float) -> None:
        self._at = None
        span, self._span = self._span, INVALID_SPAN
        if at.verdict is not None:
            self._seen(at)
        if span.is_recording():
            span.set_attributes(round_attributes(at, FIRST))
            self._request.finish(span, end_s)
        elif self._request.is_traced:
            self._consider(at)

    def _consider(self, at: RoundSeen) -> None:
        """Remember a round for the end, as far as there is room."""
        if at.is_rejected and len(self._rejected) < self._bounds.rejected:
            self._rejected.append(at)
        if self._bounds.slowest:
            push = (
                heapq.heappush if len(self._slowest) < self._bounds.slowest else heapq.heappushpop
            )
            push(self._slowest, (at.seconds, -at.index, at))

    def _tell(self, at: RoundSeen, selected: str) -> None:
        request, verifying, error = self._request, at.verifying, at.error
        if verifying is None:
            return
        said = round_attributes(at, selected)
        span = request.child(ROUND, (at.start_s, verifying[1]), said, error=error)
        if at.proposing is not None:
            said = proposal_attributes(at)
            request.child(PROPOSE, at.proposing, said, parent=span, kind=SpanKind.CLIENT)
        said = verdict_attributes(at)
        request.child(VERIFY, verifying, said, error=error, parent=span, kind=SpanKind.CLIENT)


class WatchedDraft:
    """A draft whose proposals are watched."""

    def __init__(self, draft: Draft, watch: RoundWatch) -> None:
        self._draft = draft
        self._watch = watch

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """See `Draft.propose`."""
        with self._watch.proposing(plan) as at:
            at.proposal = await self._draft.propose(session, delta, plan)
            return at.proposal

    async def release(self, session_id: str) -> None:
        """See `Draft.release`."""
        await self._draft.release(session_id)


class WatchedTarget:
    """A target whose verdicts are watched."""

    def __init__(self, target: Target, watch: RoundWatch) -> None:
        self._target = target
        self._watch = watch

    async def verify(self, session: Session, delta: Delta, proposal: Proposal) -> Verdict:
        """See `Target.verify`."""
        with self._watch.verifying(proposal) as at:
            at.verdict = await self._target.verify(session, delta, proposal)
            return at.verdict

    async def release(self, session_id: str) -> None:
        """See `Target.release`."""
        await self._target.release(session_id)

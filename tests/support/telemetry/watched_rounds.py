"""Rounds of a request under telemetry: scripted engines, and a clock that they move."""

from dataclasses import dataclass

from hypothesis import strategies as st

from slipstream.core.inline import finished
from slipstream.core.round import Port, PortCall, Round
from slipstream.core.tree import TokenTree
from slipstream.core.types import Plan, Proposal, Verdict
from slipstream.telemetry.metric import Telemetry
from slipstream.telemetry.request_span import RequestSpan, RoundTracer
from slipstream.telemetry.round_metrics import RoundMetrics
from slipstream.telemetry.spans import Carrier, carried
from support.models.hand_clock import HandClock
from support.telemetry.listening import Listener

PLAN = Plan(max_depth=4, max_nodes=8)
UNSAMPLED = Carrier("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
"""The trace context of a caller whose trace is not sampled."""


@dataclass(frozen=True)
class Script:
    """One round: whole seconds, so that sums are exact, and what comes of it. Nothing is asked of
    the draft where `draft_s` is None; an error is what the engine says instead."""

    draft_s: int | None = 1
    verify_s: int = 1
    gap_s: int = 0
    """Seconds of the loop before each of the two calls."""
    depth: int = 2
    accepted: int = 1
    proposal: Proposal | None = None
    verdict: Verdict | None = None
    plan: Plan = PLAN
    draft_error: BaseException | None = None
    target_error: BaseException | None = None

    @property
    def seconds(self):
        """Return the time from its begin to its verdict."""
        drafting = 0 if self.draft_s is None else self.draft_s + self.gap_s
        return drafting + self.verify_s


PREFILL = Script(None, depth=0, accepted=0)


@st.composite
def scripts(draw, max_size=12):
    seconds = st.integers(0, 9)
    rounds = [Script(None, draw(seconds), draw(seconds), depth=0, accepted=0)]
    for _ in range(draw(st.integers(0, max_size))):
        depth = draw(st.integers(0, 4))
        drafts = draw(st.none() | seconds) if depth == 0 else draw(seconds)
        accepted = draw(st.integers(0, depth))
        rounds.append(Script(drafts, draw(seconds), draw(seconds), depth, accepted))
    return rounds


class Engine:
    """Both engines; remembers what messages to them would carry."""

    def __init__(self, clock):
        self._clock = clock
        self.script = Script()
        self.told = []

    async def propose(self, sequence, plan):
        self.told.append(carried())
        self._clock.passes(self.script.draft_s)
        if self.script.draft_error is not None:
            raise self.script.draft_error
        chain = Proposal(TokenTree.chain(range(self.script.depth)), stopped_by="depth")
        return self.script.proposal or chain

    async def verify(self, sequence, proposal):
        self.told.append(carried())
        self._clock.passes(self.script.verify_s)
        if self.script.target_error is not None:
            raise self.script.target_error
        tokens = tuple(range(self.script.accepted + 1))
        return self.script.verdict or Verdict(tokens, self.script.accepted)

    async def release(self, session_id):
        raise AssertionError("it was not requested")


class Watched:
    """A request whose rounds go by a script, and all that was seen of it."""

    def __init__(self, telemetry, num_rounds, carrier=None):
        self.clock = HandClock()
        self.request = RequestSpan(telemetry, "request", carrier, {}, clock=self.clock)
        self.seen = []
        self.tracer = RoundTracer(self.request, num_rounds, self.seen.append)
        self.engine = Engine(self.clock)

    def runs(self, rounds):
        error = None
        try:
            for index, script in enumerate(rounds):
                finished(self._round(index, script))
        except BaseException as passing:
            error = passing
        self.tracer.end()
        self.request.end(error)
        return error

    async def _round(self, index, script):
        self.engine.script = script
        self.clock.passes(script.gap_s)
        at = Round(index, self.clock())
        if script.draft_s is not None:
            at.plan = script.plan
            with PortCall(at, Port.PROPOSE, self.clock, self.tracer):
                at.proposal = await self.engine.propose(None, script.plan)
            self.clock.passes(script.gap_s)
        with PortCall(at, Port.VERIFY, self.clock, self.tracer):
            at.verdict = await self.engine.verify(None, at.proposal)
        self.tracer.record(at)


def watched(rounds, num_rounds, carrier=None):
    heard = Listener()
    request = Watched(heard.telemetry, num_rounds, carrier)
    request.error = request.runs(rounds)
    return heard, request


def told(rounds):
    heard = Listener()
    metrics = RoundMetrics(heard.telemetry.instruments)
    request = Watched(Telemetry(), 0)
    request.runs(rounds)
    for at in request.seen:
        metrics.record(at)
    metrics.publish()
    metrics.publish()  # totals are told again, and stay
    return heard

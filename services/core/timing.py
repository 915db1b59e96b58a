"""Ports that keep the time they take. The clock is an argument."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from slipstream.core.ports import Draft, Target
from slipstream.core.types import Delta, Plan, Proposal, ReplyTiming, Session, Verdict

Clock = Callable[[], float]


@dataclass(slots=True)
class Spent:
    """Seconds added up over replies: all of the wait, and what the engine's side says of it."""

    elapsed_s: float = 0.0
    service_s: float = 0.0
    engine_s: float = 0.0
    kv_wait_s: float = 0.0
    serialisation_s: float = 0.0

    def add(self, elapsed_s: float, timing: ReplyTiming | None) -> None:
        """Count one reply; an engine in this process says nothing."""
        self.elapsed_s += elapsed_s
        if timing is not None:
            self.service_s += timing.service_s
            self.engine_s += timing.engine_s
            self.kv_wait_s += timing.kv_wait_s
            self.serialisation_s += timing.serialisation_s


class TimedDraft:
    """A draft that adds up the seconds of its proposals."""

    def __init__(self, draft: Draft, clock: Clock) -> None:
        self._draft = draft
        self._clock = clock
        self.spent = Spent()

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """See `Draft.propose`."""
        start = self._clock()
        proposal = await self._draft.propose(session, delta, plan)
        waited_s = self._clock() - start
        self.spent.add(waited_s, proposal.timing)
        return replace(proposal, waited_s=waited_s)

    async def release(self, session_id: str) -> None:
        """See `Draft.release`."""
        await self._draft.release(session_id)


class TimedTarget:
    """A target that adds up the seconds of its verifications."""

    def __init__(self, target: Target, clock: Clock) -> None:
        self._target = target
        self._clock = clock
        self.spent = Spent()

    async def verify(self, session: Session, delta: Delta, proposal: Proposal) -> Verdict:
        """See `Target.verify`."""
        start = self._clock()
        verdict = await self._target.verify(session, delta, proposal)
        self.spent.add(self._clock() - start, verdict.timing)
        return verdict

    async def release(self, session_id: str) -> None:
        """See `Target.release`."""
        await self._target.release(session_id)

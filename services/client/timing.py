"""Ports that keep the time they take. The clock is an argument."""

from collections.abc import Callable

from slipstream.core.ports import Draft, Target
from slipstream.core.types import Delta, Plan, Proposal, Session, Verdict

Clock = Callable[[], float]


class TimedDraft:
    """A draft that adds up the seconds of its proposals."""

    def __init__(self, draft: Draft, clock: Clock) -> None:
        self._draft = draft
        self._clock = clock
        self.elapsed_s = 0.0

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """See `Draft.propose`."""
        start = self._clock()
        proposal = await self._draft.propose(session, delta, plan)
        self.elapsed_s += self._clock() - start
        return proposal

    async def release(self, session_id: str) -> None:
        """See `Draft.release`."""
        await self._draft.release(session_id)


class TimedTarget:
    """A target that adds up the seconds of its verifications."""

    def __init__(self, target: Target, clock: Clock) -> None:
        self._target = target
        self._clock = clock
        self.elapsed_s = 0.0

    async def verify(self, session: Session, delta: Delta, proposal: Proposal) -> Verdict:
        """See `Target.verify`."""
        start = self._clock()
        verdict = await self._target.verify(session, delta, proposal)
        self.elapsed_s += self._clock() - start
        return verdict

    async def release(self, session_id: str) -> None:
        """See `Target.release`."""
        await self._target.release(session_id)

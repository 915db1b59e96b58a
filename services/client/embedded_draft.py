"""The draft of this process as requests use it: whatever it raises makes a round a plain one.

Knows the draft by its port only.
"""

import logging
import time
from collections.abc import Collection

from slipstream.core.ports import Draft
from slipstream.core.timing import Clock
from slipstream.core.types import Delta, Plan, Proposal, Session
from slipstream.router.breaker import BreakerLimits, Breakers
from slipstream.router.seat import DraftSeat, Failures

_LOG = logging.getLogger("slipstream.client")
_AT_ONCE = BreakerLimits(failures=1)
"""After a failure a session is decoded plainly for a while, then the draft may try again."""


class EmbeddedDraft:
    """`router.seat.HeldDraft` over the draft of this process, for one session."""

    def __init__(self, draft: Draft, name: str, session_id: str) -> None:
        self.name = name
        self._draft = draft
        self._session_id = session_id

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`."""
        return await self._draft.propose(session, delta, plan)

    async def park(self, ttl_s: float) -> None:
        """Keep what is held: it gives way when others need the memory."""

    async def drop(self) -> None:
        """Free everything held for the session."""
        try:
            await self._draft.release(self._session_id)
        except Exception:
            _LOG.exception("the draft %s did not free session %s", self.name, self._session_id)


def draft_seat(
    draft: Draft, name: str, session_id: str, *, vocab_size: int, clock: Clock = time.perf_counter
) -> DraftSeat:
    """Return the draft of a session, which never raises; `name` is what logs call it."""

    def choose(excluded: Collection[str]) -> EmbeddedDraft | None:
        return None if name in excluded else EmbeddedDraft(draft, name, session_id)

    failures = Failures(Breakers(clock, _AT_ONCE), Breakers(clock))
    return DraftSeat(choose, failures, vocab_size=vocab_size)

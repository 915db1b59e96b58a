"""Drafts that sit on a request's seat: a replica, or the n-gram lookup, which needs none."""

from contextlib import ExitStack

from slipstream.core.ngram_draft import NgramDraft
from slipstream.core.ngram_sources import NgramSources
from slipstream.core.types import Delta, Plan, Proposal, Session
from slipstream.router.probes import DraftModel
from slipstream.router.replica import Replica
from slipstream.rpc.remote_draft import RemoteDraft


class HeldReplica:
    """A draft replica. It counts the request for as long as it is held."""

    def __init__(self, replica: Replica[DraftModel], draft: RemoteDraft) -> None:
        self.name = replica.address
        self._draft = draft
        self._use = ExitStack()
        self._use.enter_context(replica.used())

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`."""
        return await self._draft.propose(session, delta, plan)

    async def park(self, ttl_s: float) -> None:
        """Have the session kept for its next turn."""
        await self._draft.park(ttl_s)

    async def drop(self) -> None:
        """End the stream, which frees the session. Again, or after parking, is fine."""
        self._draft.end()
        self._use.close()


class HeldLookup:
    """Prompt lookup in this process, for one request."""

    name = "router"

    def __init__(self, sources: NgramSources) -> None:
        self._draft = NgramDraft(sources)

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`."""
        return await self._draft.propose(session, delta, plan)

    async def park(self, ttl_s: float) -> None:
        """Nothing needs keeping: the next turn looks its tokens up anew."""

    async def drop(self) -> None:
        """Nothing is held but by this object."""

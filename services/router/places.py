"""The two sides of one request: a target for it alone, and a seat for whatever draft there is.

Knows replicas and the wire; not what is asked of them.
"""

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from slipstream.core.errors import SlipstreamError
from slipstream.core.lookup_draft import LookupDraft
from slipstream.core.ngram import NGRAM
from slipstream.core.types import Session
from slipstream.router.breaker import BreakerLimits, Breakers
from slipstream.router.conversations import Conversation
from slipstream.router.fleet import Fleet, Placed
from slipstream.router.held import HeldLookup, HeldReplica
from slipstream.router.probes import DraftModel
from slipstream.router.replica import Replica
from slipstream.router.seat import DraftSeat, Failures, HeldDraft
from slipstream.rpc.exchange import Peer, Terms
from slipstream.rpc.remote_draft import RemoteDraft, TargetSide
from slipstream.rpc.remote_target import RemoteTarget
from slipstream.rpc.v1 import draft_pb2

_LOG = logging.getLogger("slipstream.router")
_AT_ONCE = BreakerLimits(failures=1)
"""A request that was failed by a draft is not the next to try it."""


@dataclass(frozen=True, slots=True)
class SeatTerms:
    """What a request asks of its two sides."""

    target: Terms
    draft: Terms
    kind: str
    """Kind of drafter."""
    sticky: str | None = None
    """Address of the draft that may hold the session's keys."""


class Pair:
    """A target and a seat for a draft, for one request. Park or release them in the end."""

    def __init__(self, fleet: Fleet, placed: Placed, terms: SeatTerms) -> None:
        self._fleet = fleet
        self._placed = placed
        self._terms = terms
        replica, model = placed.replica, placed.model
        self.target = RemoteTarget(_peer(replica), model.description.identity, terms.target)
        failures = Failures(Breakers(time.monotonic, _AT_ONCE), fleet.breakers)
        self._seat = DraftSeat(
            self._choose,
            failures,
            vocab_size=model.facts.vocab_size,
            remaining=terms.draft.remaining,
        )
        self.draft = LookupDraft(self._seat)

    async def park(self, ttl_s: float) -> tuple[str | None, str | None]:
        """Have the session kept on both sides; the addresses where it is."""
        draft = await self._seat.park(ttl_s)
        try:
            await self.target.park(ttl_s)
        except SlipstreamError as error:
            _LOG.warning("%s did not park a session: %s", self._placed.replica.name, error)
            return None, draft
        return self._placed.replica.address, draft

    async def release(self, session_id: str) -> None:
        """End both streams, which frees the session. Again, or after parking, is fine."""
        await self.draft.release(session_id)
        await self.target.release(session_id)

    def _choose(self, excluded: Collection[str]) -> HeldDraft | None:
        if self._terms.kind == NGRAM.kind:
            return HeldLookup()
        sticky = self._terms.sticky
        found = self._fleet.draft(self._placed, self._terms.kind, sticky=sticky, excluded=excluded)
        return None if found is None else self._held(*found)

    def _held(self, replica: Replica[DraftModel], model: DraftModel) -> HeldDraft:
        description = self._placed.model.description
        side = TargetSide(
            description.identity,
            description.layout,
            self._feed if model.reads_keys else lambda: None,
        )
        return HeldReplica(replica, RemoteDraft(_peer(replica), side, self._terms.draft))

    def _feed(self) -> draft_pb2.KvFeed | None:
        replica, description = self._placed.replica, self._placed.model.description
        return self.target.feed(description.advertised_address or replica.address)


async def free_parked(
    fleet: Fleet, placed: Placed, conversation: Conversation, terms: Terms
) -> None:
    """Have both sides free what they keep for a session: opening it takes it over, ending frees."""
    session = Session(conversation.session_id, num_prompt_tokens=1, max_tokens=1)
    identity, layout = placed.model.description.identity, placed.model.description.layout
    sides: list[RemoteTarget | RemoteDraft] = [RemoteTarget(_peer(placed.replica), identity, terms)]
    draft = fleet.draft_at(conversation.draft)
    if draft is not None:
        sides.append(RemoteDraft(_peer(draft), TargetSide(identity, layout), terms))
    for side in sides:
        try:
            await side.open(session)
        except SlipstreamError as error:
            _LOG.warning("a session's keys stay until their time is up: %s", error)
        finally:
            side.end()


def _peer(replica: Replica[Any]) -> Peer:
    return Peer(replica.name, replica.channel)

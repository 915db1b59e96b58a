"""The two sides of one request: a seat for its target, and one for whatever draft there is.

Knows replicas and the wire; not what is asked of them.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from slipstream.core.errors import SlipstreamError, Unavailable
from slipstream.core.lookup_draft import LookupDraft
from slipstream.core.ngram_draft import NGRAM
from slipstream.core.ngram_sources import NgramSources
from slipstream.core.types import Session
from slipstream.router.breaker import BreakerLimits, Breakers
from slipstream.router.fleet import Fleet, Placed, Wanted
from slipstream.router.held import HeldLookup, HeldReplica
from slipstream.router.held_target import HeldTargetReplica
from slipstream.router.probes import DraftModel
from slipstream.router.replica import Replica
from slipstream.router.seat import DraftSeat, Failures, HeldDraft
from slipstream.router.target_seat import Search, TargetSeat
from slipstream.router.upkeep import Whereabouts
from slipstream.rpc.exchange import Peer, Terms
from slipstream.rpc.remote_draft import RemoteDraft, TargetSide
from slipstream.rpc.remote_target import RemoteTarget
from slipstream.rpc.v1 import draft_pb2
from slipstream.state.record import Record

SEARCH_S = 0.1
"""How often a request without a target looks for one."""
_LOG = logging.getLogger("slipstream.router")
_AT_ONCE = BreakerLimits(failures=1)
"""A request that was failed by a replica is not the next to try it."""
_FENCE_BITS = 16


@dataclass(frozen=True, slots=True)
class SeatTerms:
    """What a request asks of its two sides. `target.fence` is that of its session."""

    target: Terms
    draft: Terms
    kind: str
    """Kind of drafter."""
    sticky: str | None = None
    """Address of the draft that may hold the session's keys."""
    target_wait_s: float = 30.0
    """How long to wait for a target when all are lost."""
    sources: NgramSources = field(default_factory=NgramSources)
    """What may be copied from, beside the request's own text."""


class Pair:
    """Seats for a target and for a draft, for one request. Park or release them in the end."""

    def __init__(
        self, fleet: Fleet, placed: Placed, terms: SeatTerms, *, on_loss: Callable[[], None]
    ) -> None:
        """`on_loss` is called for every target that is lost."""
        self._fleet = fleet
        self._placed = placed
        self._terms = terms
        self._attempts = count()
        self._held_target = self._hold(placed)
        search = Search(
            self._choose_target,
            lambda: asyncio.sleep(SEARCH_S),
            terms.target.remaining,
            terms.target_wait_s,
        )
        self.target = TargetSeat(self._held_target, search, self._failures(), on_loss=on_loss)
        self._seat = DraftSeat(
            self._choose_draft,
            self._failures(),
            vocab_size=placed.model.facts.vocab_size,
            remaining=terms.draft.remaining,
        )
        self.draft = LookupDraft(self._seat, terms.sources)

    async def park(self, ttl_s: float, where: Whereabouts) -> None:
        """Have the session kept on both sides; `where` learns the addresses."""
        where.draft = await self._seat.park(ttl_s)
        where.target = await self.target.park(ttl_s)

    async def release(self, session_id: str) -> None:
        """End both streams, which frees the session. Again, or after parking, is fine."""
        await self.draft.release(session_id)
        await self.target.release(session_id)

    def _failures(self) -> Failures:
        return Failures(Breakers(time.monotonic, _AT_ONCE), self._fleet.breakers)

    def _fenced(self, terms: Terms) -> Terms:
        """A stream that follows another one of the same request must be able to take over."""
        return replace(terms, fence=(terms.fence << _FENCE_BITS) + next(self._attempts))

    def _hold(self, placed: Placed) -> HeldTargetReplica:
        return HeldTargetReplica(placed, self._fenced(self._terms.target))

    def _choose_target(self, excluded: Collection[str]) -> HeldTargetReplica | None:
        model = self._placed.model
        wanted = Wanted(model.name, model.tokenizer_hash, arithmetic=model.arithmetic)
        try:
            placed = self._fleet.target(wanted, excluded=excluded)
        except Unavailable:
            return None
        self._held_target = self._hold(placed)
        return self._held_target

    def _choose_draft(self, excluded: Collection[str]) -> HeldDraft | None:
        if self._terms.kind == NGRAM.kind:
            return HeldLookup(self._terms.sources)
        sticky = self._terms.sticky
        found = self._fleet.draft(self._placed, self._terms.kind, sticky=sticky, excluded=excluded)
        return None if found is None else self._held_draft(*found)

    def _held_draft(self, replica: Replica[DraftModel], model: DraftModel) -> HeldDraft:
        description = self._placed.model.description
        side = TargetSide(
            description.identity,
            description.layout,
            self._feed if model.reads_keys else lambda: None,
        )
        terms = self._fenced(self._terms.draft)
        return HeldReplica(replica, RemoteDraft(_peer(replica), side, terms))

    def _feed(self) -> draft_pb2.KvFeed | None:
        return self._held_target.feed()


async def free_parked(fleet: Fleet, record: Record, terms: Terms) -> None:
    """Have both sides free what they keep for a session: opening it takes it over, ending frees."""
    placed = fleet.at(record.target)
    if placed is None:
        return
    terms = replace(terms, fence=terms.fence << _FENCE_BITS)
    session = Session(record.session_id, num_prompt_tokens=1, max_tokens=1)
    identity, layout = placed.model.description.identity, placed.model.description.layout
    sides: list[RemoteTarget | RemoteDraft] = [RemoteTarget(_peer(placed.replica), identity, terms)]
    draft = fleet.draft_at(record.draft)
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

"""The replicas of one request: the target and the draft in use, which may be replaced, and the
rounds that the target is granted, so that none of them waits for the router."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import count

from slipstream.core.breaker import BreakerLimits, Breakers, InUse
from slipstream.core.draft.ngram import NgramStore
from slipstream.core.draft.ngram_draft import LookupDraft, NgramDraft
from slipstream.core.errors import SlipstreamError, Unavailable
from slipstream.core.failover import FailoverDraft, FailoverTarget
from slipstream.core.policy.profile import NGRAM
from slipstream.core.ports import Draft, Target
from slipstream.core.round import NO_PLAN
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Proposal, Session, Verdict, Verification
from slipstream.rpc.exchange import CallOptions
from slipstream.rpc.remote_draft import RemoteDraft, TargetSide
from slipstream.rpc.remote_target import RemoteTarget
from slipstream.rpc.v1 import draft_pb2
from slipstream.state.store import Record
from slipstream.telemetry.spans import carried
from slipstream_router.lease_keeper import KvLocation
from slipstream_router.replicas.fleet import ChosenTarget, Fleet

SEARCH_S = 0.1
"""Interval of searches for a target by a request without one."""
_LOG = logging.getLogger("slipstream.router")
_AT_ONCE = BreakerLimits(failures=1)
"""A request that was failed by a replica is not the next to try it."""
_FENCE_BITS = 16


class GrantingPorts(LookupDraft):
    """Both ports of a request whose target may go on by itself: plainly, or by asking the draft.

    A run of rounds begins with one that the router asks for. It ends where the planner changes
    between drafting and not, where a round has no proposal, and after `LONGEST_RUN`.
    """

    LONGEST_RUN = 32
    """Drafted rounds that are granted in a row."""
    LONGEST_REST = 256
    """Proposals of the router's own after granted rounds that failed, at most."""

    def __init__(
        self,
        draft: Draft,
        store: NgramStore | None,
        target: Target,
        in_use: Callable[[], RemoteTarget],
    ) -> None:
        """`in_use` returns the replica behind `target`."""
        super().__init__(draft, store)
        self._target, self._in_use = target, in_use
        self._num_left = self._rest = self._num_failed = self._num_plain = 0
        self._is_asked = self._is_drafted = False

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`; empty where the target goes on by itself."""
        target = self._in_use()
        self._is_asked = True
        if target.num_due:
            count = min(target.window - target.num_due, self._num_left)
            if count > 0 and self._is_drafted and plan.may_ask:
                self._num_left -= count
                await target.grant(plan, count)
            return Proposal()
        proposal = await super().propose(sequence, plan)
        self._is_drafted = self._can_ask(target, sequence.session, proposal)
        if self._is_drafted:
            self._num_left = self.LONGEST_RUN
            await target.grant(plan, target.window)
        if plan.may_ask or len(proposal.tree):
            self._num_plain = 0
        else:
            self._is_asked = False  # a plain round, as it turned out
        return proposal

    async def verify(self, sequence: TokenSequence, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`. After a plain round more of them are granted."""
        target = self._in_use()
        is_asked, self._is_asked = self._is_asked, False
        self._is_drafted = self._is_drafted and (is_asked or target.num_due > 0)
        if not is_asked and not self._is_drafted:
            self._num_plain += 1
            count = min(target.window, self._num_plain) - target.num_due
            if self._num_plain > 1 and count > 0 and self._fits(sequence.session):
                await target.grant(NO_PLAN, count)
        verdict = await self._target.verify(sequence, proposal)
        if is_asked or verdict.proposal is None or verdict.proposal.fallback is None:
            return verdict
        # The draft was left while a round that asks it was under way, which is plain now.
        self._num_failed = target.num_failed
        return replace(verdict, proposal=replace(verdict.proposal, fallback=None))

    def _can_ask(self, target: RemoteTarget, session: Session, proposal: Proposal) -> bool:
        """Return whether the target can ask the draft: it reads keys there, and has answered."""
        if target.num_failed > self._num_failed:
            self._num_failed = target.num_failed
            self._rest = min(2**self._num_failed, self.LONGEST_REST)
        self._rest -= self._rest > 0
        has_keys = proposal.staleness is not None and proposal.fallback is None
        return has_keys and not self._rest and self._fits(session)

    def _fits(self, session: Session) -> bool:
        """Return whether rounds may be granted. Those with spans of their own are the router's, so
        that each has its parts."""
        is_exact = session.verification is Verification.EXACT and session.grammar is None
        return is_exact and carried() is None


@dataclass(eq=False, kw_only=True)
class RequestReplicas:
    """Both ports of one request, over replicas. Park or release them in the end."""

    fleet: Fleet
    placed: ChosenTarget
    to_target: CallOptions
    """Options of calls to targets, with the session's fence."""
    to_draft: CallOptions
    kind: str
    sticky: str | None
    """Address of the draft that may hold the session's keys and values."""
    target_wait_s: float
    """Longest wait for a target when all are lost."""
    store: NgramStore | None
    """Sources of copies beside the request's own text."""
    on_loss: Callable[[], None]
    """Called for every target that is lost."""
    _failover: FailoverDraft | None = None

    def __post_init__(self) -> None:
        self._attempts = count()
        self._replaced = FailoverTarget(
            choose=self._choose_target,
            own=Breakers(time.monotonic, _AT_ONCE),
            shared=self.fleet.breakers,
            remaining=self.to_target.remaining,
            first=self._use_target(self.placed),
            pause=lambda: asyncio.sleep(SEARCH_S),
            on_loss=self.on_loss,
            wait_s=self.target_wait_s,
        )
        sides = self._drafter(), self.store, self._replaced
        self.draft = self.target = GrantingPorts(*sides, lambda: self._at[1])

    async def park(self, ttl_s: float, location: KvLocation) -> None:
        """Park the session on draft and target; record where."""
        if self._failover is not None:
            location.draft = await self._failover.park(ttl_s)
        location.target = await self._replaced.park(ttl_s)

    async def release(self, session_id: str) -> None:
        """End both streams, which frees the session. Again, or after parking, is fine."""
        await self._replaced.release(session_id)
        await self.draft.release(session_id)

    def _drafter(self) -> Draft:
        if self.kind == NGRAM.kind:
            return NgramDraft(self.store)
        self._failover = FailoverDraft(
            choose=self._choose_draft,
            own=Breakers(time.monotonic, _AT_ONCE),
            shared=self.fleet.breakers,
            vocab_size=self.placed.model.facts.vocab_size,
            remaining=self.to_draft.remaining,
            leave=lambda address, excluded: self.fleet.relieve(
                address, self.placed, self.kind, excluded=excluded
            ),
        )
        return self._failover

    def _fenced(self, options: CallOptions) -> CallOptions:
        """A stream that follows another one of the same request must be able to take over."""
        return replace(options, fence=(options.fence << _FENCE_BITS) + next(self._attempts))

    def _use_target(self, placed: ChosenTarget) -> InUse[Target]:
        options = self._fenced(self.to_target)
        target = RemoteTarget(placed.peer, placed.model.description.identity, options)
        self._at = placed, target
        return InUse(placed.replica.address, target, target.park)

    def _choose_target(self, excluded: Collection[str]) -> InUse[Target] | None:
        model = self.placed.model
        needs = {"tokenizer_hash": model.tokenizer_hash, "arithmetic": model.arithmetic}
        try:
            return self._use_target(self.fleet.target(model.name, **needs, excluded=excluded))
        except Unavailable:
            return None

    def _choose_draft(self, excluded: Collection[str]) -> InUse[Draft] | None:
        description = self.placed.model.description
        found = self.fleet.draft(self.placed, self.kind, sticky=self.sticky, excluded=excluded)
        if found is None:
            return None
        replica, model = found
        side = TargetSide(
            description.identity,
            description.layout,
            self._feed if model.description.target_layers else lambda: None,
        )
        draft = RemoteDraft(replica.peer, side, self._fenced(self.to_draft))
        return InUse(replica.address, draft, draft.park)

    def _feed(self) -> draft_pb2.KvFeed | None:
        """Return where the draft reads keys and values: the address for drafts may be another."""
        placed, target = self._at
        described = placed.model.description.advertised_address
        return target.feed(described or placed.replica.address)


async def free_parked(fleet: Fleet, record: Record, options: CallOptions) -> None:
    """Free a session on both sides: opening it takes it over, and ending it frees it."""
    placed = fleet.at(record.target)
    if placed is None:
        return
    options = replace(options, fence=options.fence << _FENCE_BITS)
    session = Session(record.session_id, num_prompt_tokens=1, max_tokens=1)
    identity, layout = placed.model.description.identity, placed.model.description.layout
    sides: list[RemoteTarget | RemoteDraft] = [RemoteTarget(placed.peer, identity, options)]
    draft = fleet.draft_at(record.draft)
    if draft is not None:
        sides.append(RemoteDraft(draft.peer, TargetSide(identity, layout), options))
    for side in sides:
        try:
            await side.open(session)
        except SlipstreamError as error:
            _LOG.warning("a session's keys stay until their time is up: %s", error)
        finally:
            side.end()

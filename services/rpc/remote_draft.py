"""A draft elsewhere, behind the same port as one in this process. For one request of a session.

Knows the wire; not how the replica was chosen, and trusts nothing it says: form is checked here,
whether a proposal can be verified by `core.proposal_check`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from slipstream.core.errors import InternalError
from slipstream.core.types import Delta, Plan, Proposal, Session
from slipstream.rpc.convert import (
    delta_to_pb,
    plan_to_pb,
    proposal_from_pb,
    session_to_pb,
    timing_from_pb,
)
from slipstream.rpc.exchange import Exchange, Peer, Terms, parsed
from slipstream.rpc.tracing import trace_to_pb
from slipstream.rpc.v1 import common_pb2, draft_pb2
from slipstream.telemetry.carrier import carried

SPECULATE = "/slipstream.rpc.v1.DraftService/Speculate"


@dataclass(frozen=True, slots=True)
class TargetSide:
    """The target that a draft is to guess: what it is, and where its keys and values are read.

    `feed` gives None for a draft that reads none.
    """

    identity: common_pb2.ModelIdentity
    layout: common_pb2.KvLayout
    feed: Callable[[], draft_pb2.KvFeed | None] = lambda: None


class RemoteDraft:
    """`core.ports.Draft` over one stream, which the first call opens."""

    def __init__(self, peer: Peer, target: TargetSide, terms: Terms) -> None:
        self._peer = peer
        self._target = target
        self._terms = terms
        self._exchange = Exchange(peer, SPECULATE, terms)

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`; `timing` says where the time went."""
        clock = self._terms.clock
        began = clock()
        feed = self._target.feed()
        propose = draft_pb2.Propose(delta=delta_to_pb(delta), plan=plan_to_pb(plan, feed))
        trace = trace_to_pb(carried())
        message = draft_pb2.SpeculateRequest(propose=propose, trace=trace).SerializeToString()
        packed_s = clock() - began
        answer = await self._ask(session, message, num_tokens=len(delta.tokens))
        began = clock()
        proposed = self._part(answer, "proposed").proposed
        proposal = proposal_from_pb(proposed.proposal)
        serialisation_s = packed_s + clock() - began
        return replace(
            proposal,
            staleness=None if feed is None else proposed.staleness,
            timing=timing_from_pb(proposed.timing, serialisation_s=serialisation_s),
        )

    async def release(self, session_id: str) -> None:
        """End the stream, which frees its session. Again, or before the first call, is fine."""
        self.end()

    def end(self) -> None:
        """The same at once, whatever the session."""
        self._exchange.cancel()

    async def park(self, ttl_s: float) -> None:
        """End the stream, but have the session kept for its next turn."""
        if not self._exchange.is_open:
            return
        park = draft_pb2.Park(ttl_ms=round(ttl_s * 1000))
        message = draft_pb2.SpeculateRequest(park=park).SerializeToString()
        await self._exchange.finish(message)

    async def open(self, session: Session) -> None:
        """Take the session over. Ending it without more frees what was parked."""
        opened = await self._exchange.ask(self._opening(session).SerializeToString())
        self._part(opened, "opened")

    async def _ask(self, session: Session, message: bytes, *, num_tokens: int) -> bytes:
        if not self._exchange.is_open:
            await self.open(session)
        return await self._exchange.ask(message, num_tokens=num_tokens)

    def _opening(self, session: Session) -> draft_pb2.SpeculateRequest:
        return draft_pb2.SpeculateRequest(
            open=draft_pb2.OpenDraft(
                session=session_to_pb(session, fence=self._terms.fence),
                target=self._target.identity,
                target_layout=self._target.layout,
            )
        )

    def _part(self, answer: bytes, part: str) -> draft_pb2.SpeculateResponse:
        message = parsed(draft_pb2.SpeculateResponse, answer, self._peer.name)
        got = message.WhichOneof("message")
        if got != part:
            raise InternalError(f"{self._peer.name} answered {got}, but {part} was due")
        return message

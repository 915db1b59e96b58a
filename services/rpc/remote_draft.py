"""A draft elsewhere, behind the same port as one in this process, for one request of a session.

Its answers are untrusted: their form is checked here, and by `core.verify.port_checks` whether a
proposal can be verified.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Proposal, Session
from slipstream.rpc.conversion.convert import (
    delta_to_pb,
    plan_to_pb,
    proposal_from_pb,
    session_to_pb,
    timing_from_pb,
)
from slipstream.rpc.exchange import CallOptions, Peer
from slipstream.rpc.remote_engine import RemoteEngine
from slipstream.rpc.tracing import trace_to_pb
from slipstream.rpc.v1 import common_pb2, draft_pb2
from slipstream.telemetry.carrier import carried

SPECULATE = "/slipstream.rpc.v1.DraftService/Speculate"


@dataclass(frozen=True, slots=True)
class TargetSide:
    """The target that a draft drafts for, and where its keys and values are read.

    `feed` returns None for a draft that reads none.
    """

    identity: common_pb2.ModelIdentity
    layout: common_pb2.KvLayout
    feed: Callable[[], draft_pb2.KvFeed | None] = lambda: None


class RemoteDraft(RemoteEngine[draft_pb2.SpeculateResponse]):
    """`core.ports.Draft` over one stream, which the first call opens."""

    def __init__(self, peer: Peer, target: TargetSide, options: CallOptions) -> None:
        super().__init__(peer, SPECULATE, options, draft_pb2.SpeculateResponse)
        self._target = target

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`; `timing` has the parts of the time that it took."""
        clock = self._options.clock
        began = clock()
        feed, delta = self._target.feed(), self._news(sequence)
        propose = draft_pb2.Propose(delta=delta_to_pb(delta), plan=plan_to_pb(plan, feed))
        trace = trace_to_pb(carried())
        message = draft_pb2.SpeculateRequest(propose=propose, trace=trace).SerializeToString()
        packed_s = clock() - began
        answer = await self._ask(sequence.session, message, num_tokens=len(delta.tokens))
        self._num_sent = len(sequence)
        began = clock()
        proposed = self._part(answer, "proposed").proposed
        proposal = proposal_from_pb(proposed.proposal)
        serialisation_s = packed_s + clock() - began
        return replace(
            proposal,
            staleness=None if feed is None else proposed.staleness,
            timing=timing_from_pb(proposed.timing, serialisation_s=serialisation_s),
        )

    async def open(self, session: Session) -> None:
        """See `RemoteEngine.open`."""
        opened = await self._exchange.ask(self._opening(session).SerializeToString())
        self._part(opened, "opened")

    def _parking(self, park: draft_pb2.Park) -> bytes:
        return draft_pb2.SpeculateRequest(park=park).SerializeToString()

    def _opening(self, session: Session) -> draft_pb2.SpeculateRequest:
        return draft_pb2.SpeculateRequest(
            open=draft_pb2.OpenDraft(
                session=session_to_pb(session, fence=self._options.fence),
                target=self._target.identity,
                target_layout=self._target.layout,
            )
        )

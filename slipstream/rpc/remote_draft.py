"""A draft elsewhere, behind the same port as one in this process, for one request of a session.

Its answers are untrusted: their form is checked here, and by `core.verify.port_checks` whether a
proposal can be verified.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from slipstream.core.draft.ahead import MAX_TREES, AheadTree, AheadTrees
from slipstream.core.errors import InternalError
from slipstream.core.sequence import TokenSequence
from slipstream.core.stop_reasons import LATE, PENDING
from slipstream.core.types import Plan, Proposal, Session
from slipstream.rpc.conversion.convert import timing_from_pb
from slipstream.rpc.conversion.convert_common import ahead_from_pb, message_of, proposal_from_pb
from slipstream.rpc.exchange import CallOptions, Peer
from slipstream.rpc.remote_engine import RemoteEngine
from slipstream.rpc.tracing import trace_to_pb
from slipstream.rpc.v1 import common_pb2, draft_pb2
from slipstream.telemetry.spans import carried

SPECULATE = "/slipstream.rpc.v1.DraftService/Speculate"


@dataclass(frozen=True, slots=True)
class TargetSide:
    """The target that a draft drafts for, and where its keys and values are read.

    `feed` returns None for a draft that reads none.
    """

    identity: common_pb2.ModelIdentity
    layout: common_pb2.KvLayout
    feed: Callable[[], draft_pb2.KvFeed | None] = lambda: None


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request for a proposal that was sent: when, the length of its sequence, how many nodes the
    draft may go on with, whether it reads keys, and the seconds that packing it took."""

    sent_s: float
    start: int
    ahead: int
    reads_keys: bool
    packed_s: float


@dataclass(frozen=True, slots=True)
class _Wait:
    """A wait for a proposal: when it began, and how long it may take, in seconds."""

    began: float
    limit_s: float


class RemoteDraft(RemoteEngine[draft_pb2.SpeculateResponse]):
    """`core.ports.Draft` over one stream, which the first call opens.

    Where a plan lets the draft go on while its proposal is verified, the rest of that tree below
    what became final may be the next proposal, without a wait. The request for one is sent all the
    same, so that the draft goes on from there.
    """

    _method = SPECULATE
    _request, _response = draft_pb2.SpeculateRequest, draft_pb2.SpeculateResponse

    def __init__(self, peer: Peer, target: TargetSide, options: CallOptions) -> None:
        super().__init__(peer, options)
        self._target = target
        self._due: deque[_Sent] = deque()
        """Requests whose proposals have not come, the oldest first."""
        self._last: _Sent | None = None
        """The request whose trees may still come, and how many."""
        self._num_trees = 0
        self._trees = AheadTrees()
        self._late: _Wait | None = None

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`; `timing` has the parts of the time that it took.

        Where the draft takes longer than `plan.worth_s`, its `fallback` is `LATE`, or `PENDING`
        with overlap, and so it is until the draft has answered; one whose last answer took longer
        is not waited for at all. What it answers serves as far as it fits what came meanwhile.
        """
        began = self._options.clock()
        while (answer := await self._exchange.arrived()) is not None:
            self._take(answer)
        if self._late is not None and self._due:
            return self._still_late(began, plan)
        self._late = None
        limit_s = await self._send(sequence, plan)
        proposal = self._trees.rest(sequence.tokens, plan)
        return proposal or await self._awaited(sequence, plan, _Wait(began, limit_s))

    async def open(self, session: Session) -> None:
        options, target = self._options, self._target
        opening = draft_pb2.OpenDraft(
            session=message_of(
                common_pb2.SessionParams, session, fence=options.fence, owner=options.owner
            ),
            target=target.identity,
            target_layout=target.layout,
        )
        await self._opened(opening)

    async def _send(self, sequence: TokenSequence, plan: Plan) -> float:
        if not self._exchange.is_open:
            await self.open(sequence.session)
        if plan.ahead or plan.worth_s is not None:
            self._exchange.read_ahead()
        if sequence is not self._sequence:
            self._trees = AheadTrees()
        began = self._options.clock()
        feed, delta = self._target.feed(), self._news(sequence)
        propose = draft_pb2.Propose(
            delta=message_of(common_pb2.Delta, delta),
            plan=message_of(draft_pb2.Plan, plan, feed=feed),
        )
        trace = trace_to_pb(carried())
        message = draft_pb2.SpeculateRequest(propose=propose, trace=trace).SerializeToString()
        packed_s = self._options.clock() - began
        self._due.append(_Sent(began, len(sequence), plan.ahead, feed is not None, packed_s))
        self._num_sent = len(sequence)
        self._exchange.post(message)
        return self._options.limit_s(len(delta.tokens))

    async def _awaited(self, sequence: TokenSequence, plan: Plan, wait: _Wait) -> Proposal:
        """Return the newest proposal, or the rest of a tree that comes before it and will do."""
        clock = self._options.clock
        while True:
            if plan.worth_s is None:
                answer = await self._exchange.more(wait.limit_s)
            else:
                worth_s = 0.0 if self._trees.is_far(plan) else min(plan.worth_s, wait.limit_s)
                found = await self._exchange.arrived(wait.began + worth_s - clock())
                if found is None:
                    self._late = wait
                    return self._still_late(clock(), plan)
                answer = found
            proposal = self._take(answer)
            if proposal is not None and not self._due:
                return proposal
            rest = self._trees.rest(sequence.tokens, plan)
            if rest is not None:
                return rest

    def _still_late(self, now: float, plan: Plan) -> Proposal:
        """Return an empty proposal. Raises `DeadlineExceeded` once the limit is over."""
        if self._late is not None and now - self._late.began > self._late.limit_s:
            raise self._exchange.expired(self._late.limit_s)
        return Proposal(fallback=PENDING if plan.ahead else LATE)

    def _take(self, answer: bytes) -> Proposal | None:
        began = self._options.clock()
        message = self._parsed(answer)
        if message.HasField("ahead"):
            self._hold(message.ahead)
            return None
        proposed = self._require(message, "proposed").proposed
        if not self._due:
            raise InternalError(f"{self._peer.name} answered proposed, but nothing was due")
        sent = self._last = self._due.popleft()
        self._num_trees = MAX_TREES if sent.ahead else 0
        proposal = proposal_from_pb(proposed.proposal)
        self._trees.answered(self._exchange.read_s - sent.sent_s)
        if proposal.stats and (sent.ahead or self._late is not None):
            self._trees.hold(sent.start, AheadTree(proposal.tree, proposal.stats))
        serialisation_s = sent.packed_s + self._options.clock() - began
        return replace(
            proposal,
            staleness=proposed.staleness if sent.reads_keys else None,
            timing=timing_from_pb(proposed.timing, serialisation_s=serialisation_s),
        )

    def _hold(self, message: draft_pb2.DraftedAhead) -> None:
        """Hold a tree that the draft went on with. Raises `InternalError` for more nodes."""
        num_nodes, sent = len(message.tree.tree.tokens), self._last
        most = sent.ahead if sent is not None and self._num_trees else 0
        if sent is None or num_nodes > most:
            raise InternalError(
                f"{self._peer.name} went on with {num_nodes} nodes, but up to {most} were allowed"
                " for"
            )
        self._num_trees -= 1
        self._trees.hold(sent.start, ahead_from_pb(message.tree))

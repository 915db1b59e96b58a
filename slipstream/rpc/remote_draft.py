"""A draft elsewhere, behind the same port as one in this process, for one request of a session.

Its answers are untrusted: their form is checked here, and by `core.verify.port_checks` whether a
proposal can be verified.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from slipstream.core.policy.options import READING
from slipstream.core.round import LATE
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Proposal, ReplyTiming, Session
from slipstream.rpc.conversion.convert_common import message_of, proposal_from_pb, value_from_pb
from slipstream.rpc.exchange import CallOptions, Peer, RemoteEngine
from slipstream.rpc.protocol import PROTOCOL_VERSION, Expectation, identity_expectations
from slipstream.rpc.v1 import common_pb2, draft_pb2
from slipstream.telemetry.spans import carried
from slipstream.text.token_bytes import same_numbering

SPECULATE = "/slipstream.rpc.v1.DraftService/Speculate"
LAYOUT = ("num_layers", "num_kv_heads", "head_dim", "hidden_size")


def draft_expectations(
    about: draft_pb2.DescribeDraftResponse,
    target: common_pb2.ModelIdentity,
    layout: common_pb2.KvLayout,
) -> list[Expectation]:
    """Return what a draft requires of a target: of a plain draft, the same numbering of tokens."""
    is_same = same_numbering(about.identity.numbering, target.numbering)
    needed = common_pb2.ModelIdentity(
        protocol_version=PROTOCOL_VERSION,
        model_id=about.target_model_id,
        tokenizer_hash="" if is_same else about.identity.tokenizer_hash,
        vocab_size=about.identity.vocab_size if about.kind in READING else 0,
    )
    expected = identity_expectations(needed, target)
    if about.HasField("target_layout"):
        has_states = max(about.target_layers, default=0) >= about.target_layout.num_layers
        names = LAYOUT if has_states else LAYOUT[:-1]
        expected += [(it, getattr(about.target_layout, it), getattr(layout, it)) for it in names]
    return expected


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

    _method = SPECULATE
    _request, _response = draft_pb2.SpeculateRequest, draft_pb2.SpeculateResponse

    def __init__(self, peer: Peer, target: TargetSide, options: CallOptions) -> None:
        super().__init__(peer, options)
        self._target = target
        self._late: asyncio.Task[bytes] | None = None
        """Request whose answer was not waited for to the end."""

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`; `timing` has the parts of the time that it took.

        Where the draft takes longer than `plan.worth_s`, its `fallback` is `LATE`, and so it is
        until the draft has answered. That answer is dropped.
        """
        if self._late is not None:
            if not self._late.done():
                return Proposal(fallback=LATE)
            late, self._late = self._late, None
            self._proposed(late.result())
        if not self._exchange.is_open:
            await self.open(sequence.session)
        clock = self._options.clock
        began = clock()
        feed, delta = self._target.feed(), self._news(sequence)
        propose = draft_pb2.Propose(
            delta=message_of(common_pb2.Delta, delta),
            plan=message_of(draft_pb2.Plan, plan, feed=feed),
        )
        trace = message_of(common_pb2.TraceContext, carried())
        message = self._request(propose=propose, trace=trace).SerializeToString()
        packed_s = clock() - began
        self._num_sent = len(sequence)
        answer = await self._answer(message, len(delta.tokens), plan.worth_s)
        if answer is None:
            return Proposal(fallback=LATE)
        began = clock()
        proposed = self._proposed(answer)
        proposal = proposal_from_pb(proposed.proposal)
        serialisation_s = packed_s + clock() - began
        return replace(
            proposal,
            staleness=None if feed is None else proposed.staleness,
            timing=value_from_pb(ReplyTiming, proposed.timing, serialisation_s=serialisation_s),
        )

    async def park(self, ttl_s: float) -> None:
        if self._late is not None:
            await self._late
        await super().park(ttl_s)

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

    async def _answer(self, message: bytes, num_tokens: int, wait_s: float | None) -> bytes | None:
        """Return the answer if it comes within so many seconds. Raises as `Exchange.ask`."""
        ask = self._exchange.ask(message, num_tokens=num_tokens)
        asked = asyncio.get_running_loop().create_task(ask)
        asked.add_done_callback(_see)
        try:
            await asyncio.wait({asked}, timeout=wait_s)
        except asyncio.CancelledError:
            self._exchange.cancel()
            raise
        if asked.done():
            return asked.result()
        self._late = asked
        return None

    def _proposed(self, answer: bytes) -> draft_pb2.Proposed:
        return self._require(self._parsed(answer), "proposed").proposed


def _see(asked: asyncio.Task[bytes]) -> None:
    """Count an error as seen: the next round raises that of a late answer, if there is one."""
    if not asked.cancelled():
        asked.exception()

"""The draft's gRPC service: messages are unpacked, checked, and computed on the engine's thread.

A `Speculate` stream is a lease on its session: when it ends, for whatever reason, everything held
for the session is freed, unless it was parked.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import grpc

from slipstream.core.draft.ngram_draft import NgramDraft, with_copies
from slipstream.core.errors import HandshakeError, SessionTaken
from slipstream.core.inline import finished
from slipstream.core.sequence import Delta, TokenSequence
from slipstream.core.types import Plan, Proposal, ReplyTiming, Verification
from slipstream.drafting.batcher import BatchedDraft
from slipstream.drafting.build import Drafter
from slipstream.drafting.checks import check_delta, check_plan, check_session
from slipstream.drafting.engine import LocalDraft
from slipstream.engine.thread import Done, EngineThread
from slipstream.rpc.conversion import convert
from slipstream.rpc.conversion.convert_common import message_of, proposal_to_pb, value_from_pb
from slipstream.rpc.kv import KvFormat
from slipstream.rpc.leases import Lease, Leases, kind_of
from slipstream.rpc.protocol import require_agreement
from slipstream.rpc.remote_draft import draft_expectations
from slipstream.rpc.server import Register
from slipstream.rpc.v1 import common_pb2, draft_pb2, draft_pb2_grpc
from slipstream.telemetry import catalog
from slipstream.telemetry.attributes import proposed_attributes
from slipstream.telemetry.logs import bind
from slipstream.telemetry.metric import Instruments, Telemetry
from slipstream.telemetry.spans import Carrier, Reply, answering
from slipstream_draft.config import DraftConfig
from slipstream_draft.kv_receivers import KvCatchUp, KvReceivers

SERVICE = "slipstream.rpc.v1.DraftService"

Context = grpc.aio.ServicerContext[Any, Any]
_COPIED = Done(Proposal(), 0.0, 0.0)
"""Work of the engine for a proposal that is copied: none."""
_clock = time.perf_counter  # that of the engine's thread, and of spans


@dataclass(slots=True)
class SpeculateStream:
    """A running request: its sequence, which a stream keeps by the deltas that it gets."""

    sequence: TokenSequence
    lease: Lease
    vocab_size: int
    form: KvFormat | None
    """Format of the keys and values that it reads, if any."""
    ngrams: NgramDraft = field(default_factory=NgramDraft)
    """Copies of its text, for granted rounds."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a proposal is made: router and target may ask at once."""


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """`DraftService` over an engine in this process. Made on the event loop; close it."""

    def __init__(
        self,
        drafter: Drafter,
        receivers: KvReceivers,
        about: draft_pb2.DescribeDraftResponse,
        config: DraftConfig,
        *,
        thread: EngineThread | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """`about` is the response of `DescribeDraft`; `receivers` and `thread` are closed here; the
        draft was made on `thread`, by default one of its own."""
        self._drafter = drafter
        self._receivers = receivers
        self.about = about
        self._catch_up = KvCatchUp(drafter, receivers, config)
        telemetry = telemetry or Telemetry()
        self._tracer, self._instruments = telemetry.tracer, telemetry.instruments
        self._local = drafter.draft if isinstance(drafter.draft, LocalDraft) else None
        self._thread = thread or EngineThread("draft")
        self._batched = None if self._local is None else BatchedDraft(self._local, self._thread)
        self._leases = Leases(self._release, self._kv_bytes, config.sessions)
        self._num_rounds = 0

    async def broken(self) -> str | None:
        """Wait until too many steps have failed in a row; the sentence. None without a model."""
        return None if self._batched is None else await self._batched.failed_steps.too_many()

    async def close(self) -> None:
        """Free parked sessions, and end readers and thread. The calls must have ended."""
        await self._leases.clear()
        await self._receivers.aclose()
        self._thread.close()

    async def Speculate(
        self, request_iterator: AsyncIterator[draft_pb2.SpeculateRequest], context: Context
    ) -> AsyncIterator[draft_pb2.SpeculateResponse]:
        opening = await anext(request_iterator, None)
        if opening is None:
            return
        stream = await self._open(opening)
        try:
            opened = draft_pb2.DraftOpened(incarnation=self.about.identity.incarnation)
            yield draft_pb2.SpeculateResponse(opened=opened)
            while (message := await stream.lease.next(request_iterator)) is not None:
                yield await self._answer(message, stream)
                if message.HasField("park"):
                    return
        finally:
            await self._leases.close(stream.lease)

    async def DescribeDraft(
        self, request: draft_pb2.DescribeDraftRequest, context: Context
    ) -> draft_pb2.DescribeDraftResponse:
        return self.about

    async def GetDraftLoad(
        self, request: draft_pb2.GetDraftLoadRequest, context: Context
    ) -> draft_pb2.GetDraftLoadResponse:
        return draft_pb2.GetDraftLoadResponse(load=self.load())

    def load(self) -> common_pb2.Load:
        """Return the sessions and memory at the moment, and the counts since the start."""
        own_bytes = 0 if self._local is None else self._local.num_kv_bytes
        load = common_pb2.Load(
            num_sessions=self._leases.num_active,
            num_parked=self._leases.num_parked,
            kv_bytes=own_bytes + self._receivers.num_kv_bytes,
            num_kv_streams=self._receivers.num_reading,
            kv_streamed_bytes=self._receivers.num_received_bytes,
            num_waiting=self._thread.num_waiting,
            num_rounds=self._num_rounds,
        )
        if self._drafter.memory is not None:
            load.kv_capacity_bytes = self._drafter.memory.kv_bytes
        if self._batched is not None:
            load.num_waiting += self._batched.num_waiting
            load.num_steps, load.num_rows = self._batched.num_steps, self._batched.num_rows
        return load

    def sample(self, instruments: Instruments) -> None:
        """Record the sessions, the memory, and the bytes received. On the event loop."""
        load, put = self.load(), instruments.put
        put(catalog.SESSIONS, load.num_sessions, {"state": "active"})
        put(catalog.SESSIONS, load.num_parked, {"state": "parked"})
        put(catalog.WAITING, load.num_waiting)
        put(catalog.KV_USED, load.kv_bytes)
        if load.kv_capacity_bytes:
            put(catalog.KV_CAPACITY, load.kv_capacity_bytes)
        put(catalog.KV_STREAMS, load.num_kv_streams)
        instruments.total(catalog.KV_RECEIVED, load.kv_streamed_bytes)

    async def _open(self, message: draft_pb2.SpeculateRequest) -> SpeculateStream:
        kind_of(message, ("open",), "a stream opens a session first")
        asked = message.open
        needed = draft_expectations(self.about, asked.target, asked.target_layout)
        require_agreement("the target of this draft", needed)
        if not (vocab_size := asked.target.vocab_size):
            raise HandshakeError("the caller says nothing of the target's vocabulary")
        params = asked.session
        session = replace(convert.session_from_pb(params), vocab_size=vocab_size)
        bind(session_id=session.session_id)
        check_session(session, self._drafter.context_length)
        form = self._catch_up.form(asked.target_layout)
        lease = await self._leases.open(session.session_id, params.fence, params.owner)
        self._receivers.park(session.session_id)  # this request names a feed of its own
        if isinstance(self._drafter.draft, NgramDraft) and self._drafter.stores is not None:
            store = self._drafter.stores.of(asked.target.tokenizer_hash, vocab_size=vocab_size)
            self._drafter.draft.begin(session, store)
        stream = SpeculateStream(TokenSequence(session), lease, vocab_size, form)
        if form is not None and session.verification is Verification.EXACT:
            propose = partial(self._propose, stream=stream, reply=None, is_granted=True)
            self._receivers.proposers[session.session_id] = propose
        return stream

    async def _answer(
        self, message: draft_pb2.SpeculateRequest, stream: SpeculateStream
    ) -> draft_pb2.SpeculateResponse:
        kind = kind_of(message, ("propose", "park"), "an open stream proposes or parks")
        if kind == "propose":
            carrier = value_from_pb(Carrier, message.trace)
            with answering(self._tracer, "draft.propose", carrier) as reply:
                proposed = await self._propose(message.propose, stream, reply)
            return draft_pb2.SpeculateResponse(proposed=proposed)
        if self._batched is not None and not stream.lease.is_revoked:
            await self._batched.park(stream.lease.session_id)
        await self._leases.park(stream.lease, message.park.ttl_ms / 1000)
        self._receivers.park(stream.lease.session_id)
        return draft_pb2.SpeculateResponse(parked=draft_pb2.Parked())

    async def _propose(
        self,
        message: draft_pb2.Propose,
        stream: SpeculateStream,
        reply: Reply | None,
        *,
        is_granted: bool = False,
    ) -> draft_pb2.Proposed:
        """Return a proposal. The request of a granted round comes behind its keys and values."""
        arrived = _clock()
        async with stream.turn:
            delta, plan = value_from_pb(Delta, message.delta), value_from_pb(Plan, message.plan)
            check_delta(delta, stream.sequence.session, stream.vocab_size)
            stream.sequence = delta.applied(stream.sequence)
            check_plan(plan, stream.sequence.session, self._drafter.facts, stream.vocab_size)
            began, has_waited = _clock(), False
            if not is_granted:
                has_waited = await self._catch_up.ready(stream.sequence, stream.form, message.plan)
            asked = _clock()
            if has_waited and reply is not None:
                reply.part("kv.wait", began, asked)
            proposal, done = await self._proposal(stream, plan)
        self._num_rounds += 1
        self._record(reply, done, asked_s=asked, kv_wait_s=asked - began)
        timing = ReplyTiming(_clock() - arrived, done.queue_s, done.engine_s, asked - began)
        return draft_pb2.Proposed(
            proposal=proposal_to_pb(proposal),
            staleness=proposal.staleness or 0,
            timing=message_of(common_pb2.ReplyTiming, timing),
            num_copied=len(proposal.sources),
        )

    def _record(
        self, reply: Reply | None, done: Done[Proposal], *, asked_s: float, kv_wait_s: float
    ) -> None:
        """Record a proposal, which the engine was asked for at `asked_s`."""
        if reply is not None:
            began_s = asked_s + done.queue_s
            reply.part("engine.queue", asked_s, began_s)
            reply.part("engine.run", began_s, began_s + done.engine_s)
            reply.set(proposed_attributes(done.value))
            if done.value.staleness is not None:
                reply.set({"slipstream.proposal.kv_wait_ms": kv_wait_s * 1000})
        if self._instruments.are_exported:  # takes as long as a small step: after the response
            asyncio.get_running_loop().call_soon(self._measure, done, kv_wait_s)

    def _measure(self, done: Done[Proposal], kv_wait_s: float) -> None:
        proposal, record = done.value, self._instruments.record
        record(catalog.DRAFT_QUEUE, done.queue_s)
        record(catalog.DRAFT_ENGINE, done.engine_s)
        record(catalog.DRAFT_DEPTH, max(proposal.tree.depths(), default=0))
        record(catalog.DRAFT_NODES, len(proposal.tree))
        if proposal.staleness is not None:
            record(catalog.STALENESS, proposal.staleness)
            record(catalog.KV_WAIT, kv_wait_s)

    async def _proposal(
        self, stream: SpeculateStream, plan: Plan
    ) -> tuple[Proposal, Done[Proposal]]:
        """Return the proposal, copies included, and what the engine did for it."""
        done = _COPIED

        async def propose(sequence: TokenSequence, plan: Plan) -> Proposal:
            nonlocal done
            done = await self._draft(stream, plan)
            return done.value

        return await with_copies(stream.ngrams, stream.sequence, plan, propose), done

    async def _draft(self, stream: SpeculateStream, plan: Plan) -> Done[Proposal]:
        """Propose on the engine's thread, unless another request takes the session over first."""

        def check() -> None:
            if stream.lease.is_revoked:
                raise SessionTaken(f"session {stream.lease.session_id} was taken over")

        def propose() -> Proposal:
            check()
            return finished(self._drafter.draft.propose(stream.sequence, plan))

        if self._batched is None:
            return await self._thread.run(propose)
        return await self._batched.run(stream.sequence, plan, check=check)

    def _kv_bytes(self, session_id: str) -> int:
        own_bytes = 0 if self._local is None else self._local.kv_bytes(session_id)
        return own_bytes + self._receivers.kv_bytes(session_id)

    async def _release(self, session_id: str) -> None:
        # Before anything that waits: the receiver of a successor must stay.
        self._receivers.proposers.pop(session_id, None)
        reader = self._receivers.close(session_id)
        if self._batched is None:
            await self._thread.run(lambda: finished(self._drafter.draft.release(session_id)))
        else:
            await self._batched.release(session_id)
        if reader is not None:
            await asyncio.wait({reader})


def register(servicer: DraftServicer) -> Register:
    """Return the function that adds the service to a server."""
    return lambda server: draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server)

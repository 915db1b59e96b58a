"""The draft's side of the wire: unpacks, checks, hands to the engine's thread, packs.

A `Speculate` stream is a lease on its session: when it ends, for whatever reason, everything held
for the session is freed, unless it was parked. Knows no models.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from slipstream.core.draft.ngram_draft import NgramDraft
from slipstream.core.draft.ngram_sources import NgramSources
from slipstream.core.errors import HandshakeError, InvalidRequest, SessionTaken
from slipstream.core.inline import finished
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Proposal, ReplyTiming, Session
from slipstream.draft.batcher import BatchedDraft
from slipstream.draft.build import Drafter
from slipstream.draft.checks import check_delta, check_plan, check_session
from slipstream.draft.describe import target_expectations
from slipstream.draft.engine import LocalDraft
from slipstream.draft.feeds import KvFeeds
from slipstream.draft.supply import KvSupply
from slipstream.draft.telemetry import Telling, tell, tell_load
from slipstream.engine.thread import Done, EngineThread
from slipstream.rpc.conversion.convert import (
    delta_from_pb,
    plan_from_pb,
    proposal_to_pb,
    session_from_pb,
    timing_to_pb,
)
from slipstream.rpc.inbox import Inbox
from slipstream.rpc.kv import KvEncoding, KvFormat
from slipstream.rpc.leases import Lease, LeaseLimits, Leases
from slipstream.rpc.protocol import require_agreement
from slipstream.rpc.server import Register
from slipstream.rpc.v1 import common_pb2, draft_pb2, draft_pb2_grpc
from slipstream.telemetry.logs import bind
from slipstream.telemetry.metric import Instruments
from slipstream.telemetry.spans import Reply
from slipstream.telemetry.telemetry import Telemetry

SERVICE = "slipstream.rpc.v1.DraftService"

Context = grpc.aio.ServicerContext[Any, Any]
_clock = time.perf_counter  # that of the engine's thread, and of spans


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """How a draft serves: its limits, and how it reads keys and values."""

    limits: LeaseLimits = field(default_factory=LeaseLimits)
    kv_wait_s: float = 0.01
    """Longest wait for the newest keys and values before a proposal."""
    kv_catch_up_s: float = 0.05
    """Longest wait at the start of a request for those without which nothing can be drafted."""
    kv_encoding: KvEncoding = KvEncoding.RAW


@dataclass(slots=True)
class _Open:
    """One running request; `form` is that of the keys and values it reads, if it reads any."""

    sequence: TokenSequence
    lease: Lease
    vocab_size: int
    form: KvFormat | None

    @property
    def session(self) -> Session:
        """Return the request's parameters."""
        return self.sequence.session


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """`DraftService` over an engine in this process. Made on the event loop; close it."""

    def __init__(
        self,
        drafter: Drafter,
        feeds: KvFeeds,
        about: draft_pb2.DescribeDraftResponse,
        settings: DraftSettings,
        *,
        thread: EngineThread | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """`about` is what `DescribeDraft` answers; `feeds`, closed here, is what is read; `thread`,
        closed here too, is where the draft was made, None being one of its own."""
        self._drafter = drafter
        self._feeds = feeds
        self.about = about
        self._supply = KvSupply(
            drafter,
            feeds,
            wait_s=settings.kv_wait_s,
            catch_up_s=settings.kv_catch_up_s,
            encoding=settings.kv_encoding,
        )
        self._telling = Telling(telemetry or Telemetry())
        self._local = drafter.draft if isinstance(drafter.draft, LocalDraft) else None
        self._thread = thread or EngineThread("draft")
        self._batched = None if self._local is None else BatchedDraft(self._local, self._thread)
        self._leases = Leases(self._release, self._kv_bytes, settings.limits)
        self._num_rounds = 0
        self._running: set[Lease] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def broken(self) -> str | None:
        """Wait until steps fail again and again; return a sentence that says so.

        None where there are no steps of a model.
        """
        return None if self._batched is None else await self._batched.failed_steps.too_many()

    async def close(self) -> None:
        """Wait for calls that are ending, then free what is parked and end readers and thread."""
        await self._is_idle.wait()
        await self._leases.clear()
        await self._feeds.aclose()
        self._thread.close()

    async def Speculate(
        self, request_iterator: AsyncIterator[draft_pb2.SpeculateRequest], context: Context
    ) -> AsyncIterator[draft_pb2.SpeculateResponse]:
        """See draft.proto."""
        opening = await anext(request_iterator, None)
        if opening is None:
            return
        at = await self._open(opening)
        self._begin(at.lease)
        inbox = Inbox(request_iterator, at.lease)
        try:
            opened = draft_pb2.DraftOpened(incarnation=self.about.identity.incarnation)
            yield draft_pb2.SpeculateResponse(opened=opened)
            while (message := await inbox.next()) is not None:
                yield await self._answer(message, at)
                if message.HasField("park"):
                    return
        finally:
            try:
                await self._leases.close(at.lease)
            finally:
                self._end(at.lease)

    async def DescribeDraft(
        self, request: draft_pb2.DescribeDraftRequest, context: Context
    ) -> draft_pb2.DescribeDraftResponse:
        """See draft.proto."""
        return self.about

    async def GetDraftLoad(
        self, request: draft_pb2.GetDraftLoadRequest, context: Context
    ) -> draft_pb2.GetDraftLoadResponse:
        """See draft.proto."""
        return draft_pb2.GetDraftLoadResponse(load=self.load())

    def load(self) -> common_pb2.Load:
        """What is held at the moment, and was done since the start."""
        own_bytes = 0 if self._local is None else self._local.num_kv_bytes
        load = common_pb2.Load(
            num_sessions=self._leases.num_active,
            num_parked=self._leases.num_parked,
            kv_bytes=own_bytes + self._feeds.num_kv_bytes,
            num_kv_streams=self._feeds.num_reading,
            kv_streamed_bytes=self._feeds.num_received_bytes,
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
        """Tell that. On the event loop, from time to time."""
        tell_load(instruments, self.load())

    def _begin(self, lease: Lease) -> None:
        self._running.add(lease)
        self._is_idle.clear()

    def _end(self, lease: Lease) -> None:
        self._running.discard(lease)
        if not self._running:
            self._is_idle.set()

    async def _open(self, message: draft_pb2.SpeculateRequest) -> _Open:
        if message.WhichOneof("message") != "open":
            raise InvalidRequest(f"a stream opens a session first, but got {_kind(message)}")
        asked = message.open
        require_agreement("the target of this draft", target_expectations(self.about, asked))
        if not asked.target.vocab_size:
            raise HandshakeError("the caller says nothing of the target's vocabulary")
        session = session_from_pb(asked.session)
        bind(session_id=session.session_id)
        check_session(session, self._drafter.context_length)
        form = self._supply.form(asked.target_layout)
        vocab_size = asked.target.vocab_size
        lease = await self._leases.open(session.session_id, asked.session.fence)
        self._feeds.rest(session.session_id)  # this request brings a feed of its own
        if isinstance(self._drafter.draft, NgramDraft) and self._drafter.stores is not None:
            numbering = asked.target.tokenizer_hash
            store = self._drafter.stores.of(numbering, vocab_size=vocab_size)
            self._drafter.draft.begin(session, NgramSources(store))
        return _Open(TokenSequence(session), lease, vocab_size, form)

    async def _answer(
        self, message: draft_pb2.SpeculateRequest, at: _Open
    ) -> draft_pb2.SpeculateResponse:
        match message.WhichOneof("message"):
            case "propose":
                with self._telling.answering(message) as reply:
                    proposed = await self._propose(message.propose, at, reply)
                return draft_pb2.SpeculateResponse(proposed=proposed)
            case "park":
                if self._batched is not None and not at.lease.is_revoked:
                    await self._batched.park(at.session.session_id)
                await self._leases.park(at.lease, message.park.ttl_ms / 1000)
                self._feeds.rest(at.session.session_id)
                return draft_pb2.SpeculateResponse(parked=draft_pb2.Parked())
            case _:
                raise InvalidRequest(f"an open stream proposes or parks, but got {_kind(message)}")

    async def _propose(
        self, message: draft_pb2.Propose, at: _Open, reply: Reply | None
    ) -> draft_pb2.Proposed:
        arrived = _clock()
        delta, plan = delta_from_pb(message.delta), plan_from_pb(message.plan)
        check_delta(delta, at.session, at.vocab_size)
        at.sequence = delta.applied(at.sequence)
        check_plan(plan, at.session, self._drafter.facts, at.vocab_size)
        began = _clock()
        ready = self._supply.ready(at.sequence, at.form, message.plan, begun_by=reply)
        has_waited, asked = await ready, _clock()
        if has_waited and reply is not None:
            reply.part("kv.wait", began, asked)
        done = await self._draft(at, plan)
        self._num_rounds += 1
        if reply is not None:
            tell(reply, done, asked_s=asked, kv_wait_s=asked - began)
        if self._telling.is_measured:  # once the answer is on its way
            asyncio.get_running_loop().call_soon(self._telling.measure, done, asked - began)
        proposal = done.value
        timing = ReplyTiming(_clock() - arrived, done.queue_s, done.engine_s, asked - began)
        return draft_pb2.Proposed(
            proposal=proposal_to_pb(proposal),
            staleness=proposal.staleness or 0,
            timing=timing_to_pb(timing),
        )

    async def _draft(self, at: _Open, plan: Plan) -> Done[Proposal]:
        """Propose on the engine's thread; a request that took the session over may come first."""

        def check() -> None:
            if at.lease.is_revoked:
                raise SessionTaken(f"session {at.session.session_id} was taken over")

        def propose() -> Proposal:
            check()
            return finished(self._drafter.draft.propose(at.sequence, plan))

        if self._batched is None:
            return await self._thread.run(propose)
        return await self._batched.run(at.sequence, plan, check=check)

    def _kv_bytes(self, session_id: str) -> int:
        own_bytes = 0 if self._local is None else self._local.kv_bytes(session_id)
        return own_bytes + self._feeds.kv_bytes(session_id)

    async def _release(self, session_id: str) -> None:
        # Forgotten before anything is waited for: what a successor reads must stay.
        reader = self._feeds.close(session_id)
        await self._thread.run(lambda: finished(self._drafter.draft.release(session_id)))
        if reader is not None:
            await asyncio.wait({reader})


def register(servicer: DraftServicer) -> Register:
    """What adds it to a server."""
    return lambda server: draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server)


def _kind(message: draft_pb2.SpeculateRequest) -> str:
    return message.WhichOneof("message") or "an empty message"

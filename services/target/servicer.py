"""The target's side of the wire: unpacks, hands to the engine, packs.

A `Verify` stream is a lease on its session: when it ends, for whatever reason, the engine frees
what it held, unless the session was parked. Knows no models.
"""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from slipstream.core.errors import InvalidRequest, SessionOutOfSync
from slipstream.core.types import Proposal, ReplyTiming, Session
from slipstream.engine.thread import EngineThread
from slipstream.rpc.convert import session_from_pb, verdict_to_pb, verify_from_pb
from slipstream.rpc.inbox import Inbox
from slipstream.rpc.leases import LeaseLimits, Leases
from slipstream.rpc.protocol import identity_expectations, require_agreement
from slipstream.rpc.server import Register
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2, target_pb2_grpc
from slipstream.target.batcher import BatchedTarget, BatchLimits
from slipstream.target.engine import LocalTarget
from slipstream.target.kv_streams import KvStreams
from slipstream.target.pending import Verified
from slipstream.target.served import Served, ServedSessions
from slipstream.target.telling import Telling, tell_load
from slipstream.telemetry.logs import bind
from slipstream.telemetry.metric import Instruments
from slipstream.telemetry.spans import Reply
from slipstream.telemetry.telemetry import Telemetry

SERVICE = "slipstream.rpc.v1.TargetService"
MAX_ID_LENGTH = 256

_LOG = logging.getLogger("slipstream.target")

Context = grpc.aio.ServicerContext[Any, Any]


class TargetServicer(target_pb2_grpc.TargetServiceServicer):
    """`TargetService` over an engine in this process. Made on the event loop; close it."""

    def __init__(
        self,
        target: LocalTarget,
        about: target_pb2.DescribeTargetResponse,
        limits: LeaseLimits,
        *,
        thread: EngineThread | None = None,
        batch: BatchLimits | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """`about` is what `DescribeTarget` answers, its tokenizer included; `thread`, closed here,
        is where the engine was made, None being one of its own."""
        self._target = target
        self.about = about
        self._telling = Telling(telemetry or Telemetry())
        self._thread = thread or EngineThread("target")
        self._batched = BatchedTarget(target, self._thread, batch, on_step=self._telling.on_step)
        self._leases = Leases(self._batched.release, target.kv_bytes, limits)
        self._sessions = ServedSessions()
        self._kv = KvStreams(target, self._thread, self._sessions, about.identity.incarnation)
        self._num_rounds = self._num_cached_tokens = 0

    def advertise(self, address: str) -> None:
        """Where drafts reach this target; known once it listens."""
        self.about.advertised_address = address

    async def broken(self) -> str:
        """Wait until steps fail again and again; return a sentence that says so."""
        return await self._batched.failed_steps.too_many()

    async def close(self) -> None:
        """Free what is parked and end the engine's thread. The calls must have ended."""
        await self._leases.clear()
        await self._batched.close()
        self._thread.close()

    async def Verify(
        self,
        request_iterator: AsyncIterator[target_pb2.VerifyRequest],
        context: Context,
    ) -> AsyncIterator[target_pb2.VerifyResponse]:
        """See target.proto."""
        opening = await anext(request_iterator, None)
        if opening is None:
            return
        session, served = await self._open(opening)
        inbox = Inbox(request_iterator, served.lease)
        try:
            opened = target_pb2.TargetOpened(kv_credential=served.credential)
            yield target_pb2.VerifyResponse(opened=opened)
            async with aclosing(self._answers(inbox, session, served)) as answers:
                async for answer in answers:
                    yield answer
        finally:
            self._sessions.end(served)
            await self._leases.close(served.lease)

    async def StreamKv(  # type: ignore[override]  # a coroutine that writes, rather than yields
        self,
        request: target_pb2.StreamKvRequest,
        context: grpc.aio.ServicerContext[target_pb2.StreamKvRequest, target_pb2.StreamKvResponse],
    ) -> None:
        """See target.proto."""
        bind(session_id=request.session_id)
        try:
            with self._telling.streaming(request) as sent:
                await self._kv.serve(request, context.write, sent)
        except SessionOutOfSync as error:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, str(error))
        except grpc.aio.InternalError as error:
            # A write meets the reader's end before the call's cancellation does.
            _LOG.debug("a reader of session %s has left: %s", request.session_id, error)

    async def DescribeTarget(
        self,
        request: target_pb2.DescribeTargetRequest,
        context: Context,
    ) -> target_pb2.DescribeTargetResponse:
        """See target.proto."""
        if request.with_tokenizer:
            return self.about
        answer = target_pb2.DescribeTargetResponse()
        answer.CopyFrom(self.about)
        answer.ClearField("tokenizer")
        return answer

    async def GetTargetLoad(
        self,
        request: target_pb2.GetTargetLoadRequest,
        context: Context,
    ) -> target_pb2.GetTargetLoadResponse:
        """See target.proto."""
        return target_pb2.GetTargetLoadResponse(load=self.load())

    def load(self) -> common_pb2.Load:
        """What is held at the moment, and was done since the start."""
        memory = self._target.memory
        return common_pb2.Load(
            num_sessions=self._leases.num_active,
            num_parked=self._leases.num_parked,
            kv_bytes=self._leases.held_bytes,
            num_kv_streams=self._kv.num_open,
            kv_streamed_bytes=self._kv.num_bytes,
            num_waiting=self._batched.num_waiting,
            num_rounds=self._num_rounds,
            num_steps=self._batched.num_steps,
            num_rows=self._batched.num_rows,
            kv_capacity_bytes=memory.pool.num_pages * memory.pool.layout.bytes_per_page,
            kv_cached_bytes=memory.num_cached_bytes,
            num_cached_tokens=self._num_cached_tokens,
        )

    def sample(self, instruments: Instruments) -> None:
        """Tell how things are at the moment."""
        tell_load(instruments, self.load(), self._batched)

    async def _open(self, message: target_pb2.VerifyRequest) -> tuple[Session, Served]:
        if message.WhichOneof("message") != "open":
            raise InvalidRequest(f"a stream opens a session first, but got {_kind(message)}")
        asked = message.open
        require_agreement("this target", identity_expectations(self.about.identity, asked.expected))
        if len(asked.session.session_id) > MAX_ID_LENGTH:
            raise InvalidRequest(
                f"the session id has {len(asked.session.session_id)} characters, but may have up"
                f" to {MAX_ID_LENGTH}"
            )
        session = session_from_pb(asked.session)
        bind(session_id=session.session_id)
        grammar = await self._batched.prepare(session)
        lease = await self._leases.open(session.session_id, asked.session.fence)
        served = self._sessions.begin(lease)
        served.grammar = grammar
        if asked.HasField("max_queue_ms"):
            served.max_queue_s = asked.max_queue_ms / 1000
        return session, served

    async def _answers(
        self, inbox: Inbox[target_pb2.VerifyRequest], session: Session, served: Served
    ) -> AsyncGenerator[target_pb2.VerifyResponse, None]:
        """Answer message after message; nothing comes after a session is parked."""
        while (message := await inbox.next()) is not None:
            match message.WhichOneof("message"):
                case "verify":
                    arrived = time.perf_counter()
                    with self._telling.answering(message) as reply:
                        delta, proposal = verify_from_pb(message.verify)
                        limit_s = served.max_queue_s
                        pending = self._batched.begin(session, delta, proposal, max_queue_s=limit_s)
                        if limit_s is not None and await pending.is_queued():
                            yield target_pb2.VerifyResponse(queued=target_pb2.Queued())
                        done = await pending.verified()
                        self._record(done, proposal, served, reply)
                    timing = ReplyTiming(time.perf_counter() - arrived, done.queue_s, done.engine_s)
                    yield target_pb2.VerifyResponse(verdict=verdict_to_pb(done.value, timing))
                case "park":
                    yield await self._park(message.park, served)
                    return
                case _:
                    kind = _kind(message)
                    raise InvalidRequest(f"an open stream verifies or parks, but got {kind}")

    async def _park(self, message: draft_pb2.Park, served: Served) -> target_pb2.VerifyResponse:
        self._sessions.end(served)
        if not served.lease.is_revoked:
            await self._batched.park(served.session_id)
        await self._leases.park(served.lease, message.ttl_ms / 1000)
        return target_pb2.VerifyResponse(parked=draft_pb2.Parked())

    def _record(
        self, done: Verified, proposal: Proposal, served: Served, reply: Reply | None
    ) -> None:
        is_first, served.has_begun = not served.has_begun, True
        if is_first:
            self._num_cached_tokens += done.value.num_cached
        self._num_rounds += 1
        self._telling.verified(reply, done, num_nodes=len(proposal.tree), is_first=is_first)
        served.tell(reply)


def register(servicer: TargetServicer) -> Register:
    """How a server is told of it."""
    return lambda server: target_pb2_grpc.add_TargetServiceServicer_to_server(servicer, server)


def _kind(message: target_pb2.VerifyRequest) -> str:
    return message.WhichOneof("message") or "an empty message"

"""`TargetService`: unpacks messages, hands them to the engine, packs its answers.

A `Verify` stream is a lease on its session: when it ends, for whatever reason, the engine frees
what it held, unless the session was parked.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc

from slipstream.core.errors import Cancelled, SessionOutOfSync, SessionTaken, check_fits
from slipstream.core.sequence import Delta
from slipstream.core.types import ReplyTiming
from slipstream.rpc.conversion.convert import session_from_pb
from slipstream.rpc.conversion.convert_common import message_of, proposal_from_pb, value_from_pb
from slipstream.rpc.leases import Leases, kind_of
from slipstream.rpc.protocol import identity_expectations, require_agreement
from slipstream.rpc.server import Register
from slipstream.rpc.service_options import SessionOptions
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2, target_pb2_grpc
from slipstream.telemetry import catalog
from slipstream.telemetry.attributes import decided_attributes
from slipstream.telemetry.logs import bind
from slipstream.telemetry.metric import Telemetry
from slipstream.telemetry.spans import Carrier, Reply, answering
from slipstream.verifying.batcher import BatchedTarget
from slipstream.verifying.request import PendingRequest, TargetRequest, TargetStep
from slipstream_target.granted import Inbox
from slipstream_target.kv_streams import KvStreams
from slipstream_target.verify_stream import VerifyStream

SERVICE = "slipstream.rpc.v1.TargetService"
MAX_ID_LENGTH = 256

_LOG = logging.getLogger("slipstream.target")

Answers = AsyncGenerator[target_pb2.VerifyResponse, None]
Context = grpc.aio.ServicerContext[Any, Any]


class TargetServicer(target_pb2_grpc.TargetServiceServicer):
    """`TargetService` over a target in this process. Made on the event loop; close it."""

    def __init__(
        self,
        target: BatchedTarget,
        about: target_pb2.DescribeTargetResponse,
        limits: SessionOptions,
        telemetry: Telemetry | None = None,
    ) -> None:
        """`about` answers `DescribeTarget`, its tokenizer included. `target` and its thread are
        closed with the servicer."""
        self.target = target
        self.about = about
        telemetry = telemetry or Telemetry()
        self._tracer = telemetry.tracer
        self._instruments = telemetry.instruments
        self._is_measured = telemetry.instruments.are_exported
        target.on_step = self._record_step if self._is_measured else None
        self._leases = Leases(target.release, target.engine.kv_bytes, limits)
        self._streams: dict[str, VerifyStream] = {}
        incarnation = about.identity.incarnation
        self._kv = KvStreams(target.engine, target.thread, self._streams, incarnation)
        self._num_rounds = self._num_cached_tokens = 0

    async def close(self) -> None:
        """Free what is parked and end the engine's thread. The calls must have ended."""
        await self._leases.clear()
        await self.target.close()
        self.target.thread.close()

    async def Verify(
        self, request_iterator: AsyncIterator[target_pb2.VerifyRequest], context: Context
    ) -> AsyncIterator[target_pb2.VerifyResponse]:
        opening = await anext(request_iterator, None)
        if opening is None:
            return
        stream = await self._open(opening)
        inbox = Inbox(stream.lease, request_iterator)
        try:
            opened = target_pb2.TargetOpened(kv_credential=stream.credential)
            yield target_pb2.VerifyResponse(opened=opened)
            async with aclosing(self._answers(inbox, stream)) as answers:
                async for answer in answers:
                    yield answer
        finally:
            inbox.close()
            self._end(stream)
            await self._leases.close(stream.lease)

    async def StreamKv(  # type: ignore[override]  # a coroutine that writes, rather than yields
        self,
        request_iterator: AsyncIterator[target_pb2.StreamKvRequest],
        context: grpc.aio.ServicerContext[target_pb2.StreamKvRequest, bytes],
    ) -> None:
        try:
            await self._kv.serve(request_iterator, context.write, self._record_sent)
        except SessionOutOfSync as error:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, str(error))
        except Cancelled as error:
            _LOG.debug("a reader of keys and values has left: %s", error)

    async def DescribeTarget(
        self, request: target_pb2.DescribeTargetRequest, context: Context
    ) -> target_pb2.DescribeTargetResponse:
        if request.with_tokenizer:
            return self.about
        answer = target_pb2.DescribeTargetResponse()
        answer.CopyFrom(self.about)
        answer.ClearField("tokenizer")
        return answer

    async def GetTargetLoad(
        self, request: target_pb2.GetTargetLoadRequest, context: Context
    ) -> target_pb2.GetTargetLoadResponse:
        return target_pb2.GetTargetLoadResponse(load=self.load())

    def load(self) -> common_pb2.Load:
        """Return what is held at the moment, and was done since the start."""
        memory = self.target.engine.memory
        return common_pb2.Load(
            num_sessions=self._leases.num_active,
            num_parked=self._leases.num_parked,
            kv_bytes=self._leases.held_bytes,
            num_kv_streams=self._kv.num_open,
            kv_streamed_bytes=self._kv.num_bytes,
            num_waiting=self.target.num_waiting,
            num_rounds=self._num_rounds,
            num_steps=self.target.num_steps,
            num_rows=self.target.num_tokens,
            kv_capacity_bytes=memory.pool.num_pages * memory.pool.layout.bytes_per_page,
            kv_cached_bytes=memory.num_cached_bytes,
            num_cached_tokens=self._num_cached_tokens,
        )

    async def _open(self, message: target_pb2.VerifyRequest) -> VerifyStream:
        kind_of(message, ("open",), "a stream opens a session first")
        opening = message.open
        require_agreement(
            "this target", identity_expectations(self.about.identity, opening.expected)
        )
        length = len(opening.session.session_id)
        check_fits("the session id has", length, "characters", MAX_ID_LENGTH)
        session = session_from_pb(opening.session)
        bind(session_id=session.session_id)
        grammar = await self.target.prepare(session)
        params = opening.session
        lease = await self._leases.open(session.session_id, params.fence, params.owner)
        before = self._streams.get(session.session_id)
        if before is not None:  # its lease was taken over
            before.end()
        stream = self._streams[session.session_id] = VerifyStream(lease, session)
        stream.grammar = grammar
        if opening.HasField("max_queue_ms"):
            stream.max_queue_s = opening.max_queue_ms / 1000
        return stream

    async def _answers(self, inbox: Inbox, stream: VerifyStream) -> Answers:
        """Answer round after round until the session is parked, requested or granted: the draft is
        asked for the next one before the verdict goes to the router."""
        rounds = {"verify": self._requested, "grant": self._granted}
        while (message := await inbox.next()) is not None:
            kind = kind_of(message, (*rounds, "park"), "an open stream verifies or parks")
            if kind == "park":
                yield await self._park(message.park, stream)
                return
            async for answer in rounds[kind](message, stream):
                verdict = answer.verdict
                inbox.is_granting = not (verdict.finish_reason or verdict.proposed.fallback)
                if answer.HasField("verdict") and (grant := inbox.granted()) is not None:
                    stream.granted.request(grant, stream.sequence)
                    await asyncio.sleep(0)  # the request goes out first
                yield answer
            stream.notify()  # once it is on its way: nothing waits for the readers

    async def _requested(self, message: target_pb2.VerifyRequest, stream: VerifyStream) -> Answers:
        """Yield that the round waits for memory, if it does, and its verdict."""
        arrived = time.perf_counter()
        carrier = value_from_pb(Carrier, message.trace)
        with answering(self._tracer, "target.verify", carrier) as reply:
            pending = self._begin(message.verify, stream)
            if stream.max_queue_s is not None and await pending.is_queued():
                yield target_pb2.VerifyResponse(queued=target_pb2.Queued())
            done = await pending.done()
            self._record(done, stream, reply)
        yield target_pb2.VerifyResponse(verdict=_verdict(done, arrived))

    async def _granted(self, message: target_pb2.VerifyRequest, stream: VerifyStream) -> Answers:
        """Yield the verdict of a round that the draft is asked for here, or of a plain one."""
        size = self.about.identity.vocab_size
        found = await stream.granted.proposal(message.grant, stream.sequence, vocab_size=size)
        if stream.is_ended:
            raise SessionTaken(f"session {stream.lease.session_id} was taken over")
        arrived, max_queue_s = time.perf_counter(), stream.max_queue_s
        pending = self.target.begin(stream.sequence, found.proposal, max_queue_s=max_queue_s)
        if max_queue_s is not None and await pending.is_queued():
            yield target_pb2.VerifyResponse(queued=target_pb2.Queued())
        done = await pending.done()
        self._record(done, stream, None)
        verdict = _verdict(done, arrived)
        verdict.proposed.CopyFrom(found.proposed)
        verdict.proposing_s = found.seconds
        yield target_pb2.VerifyResponse(verdict=verdict)

    def _begin(self, message: target_pb2.VerifyProposal, stream: VerifyStream) -> PendingRequest:
        """Begin a round. The engine checks its tokens; a round that it refuses ends the stream."""
        delta, proposal = value_from_pb(Delta, message.delta), proposal_from_pb(message.proposal)
        stream.sequence = delta.applied(stream.sequence)
        stream.granted.asked(len(stream.sequence))
        return self.target.begin(stream.sequence, proposal, max_queue_s=stream.max_queue_s)

    def _end(self, stream: VerifyStream) -> None:
        stream.end()
        if self._streams.get(stream.lease.session_id) is stream:
            del self._streams[stream.lease.session_id]

    async def _park(
        self, message: draft_pb2.Park, stream: VerifyStream
    ) -> target_pb2.VerifyResponse:
        self._end(stream)
        if not stream.lease.is_revoked:
            await self.target.park(stream.lease.session_id)
        await self._leases.park(stream.lease, message.ttl_ms / 1000)
        return target_pb2.VerifyResponse(parked=draft_pb2.Parked())

    def _record(self, done: TargetRequest, stream: VerifyStream, reply: Reply | None) -> None:
        stream.sequence.append(done.result().tokens)  # the next delta comes behind them
        stream.granted.decided(done.result())
        is_first, stream.has_begun = not stream.has_begun, True
        if is_first:
            self._num_cached_tokens += done.num_cached
        self._num_rounds += 1
        if self._is_measured:
            self._instruments.record(catalog.TARGET_QUEUE, done.queue_s)
        if reply is not None and done.step is not None:
            began = done.arrived + done.queue_s
            reply.part("engine.queue", done.arrived, began)
            reply.part("engine.run", began, done.step.ended)
            reply.set(decided_attributes(done.result()))
            reply.set(
                {
                    "slipstream.verdict.nodes": done.num_nodes,
                    "slipstream.batch.rows": done.step.num_tokens,
                    "slipstream.batch.sessions": done.step.num_sessions,
                }
            )
            if is_first:
                reply.set({"slipstream.verdict.num_cached": done.num_cached})

    def _record_sent(self, num_bytes: int) -> None:
        if self._is_measured:
            self._instruments.record(catalog.SNAPSHOT_SIZE, num_bytes)

    def _record_step(self, step: TargetStep) -> None:
        self._instruments.record(catalog.STEP_DURATION, step.seconds)
        self._instruments.record(catalog.STEP_ROWS, step.num_tokens)
        self._instruments.record(catalog.STEP_SESSIONS, step.num_sessions)


def _verdict(done: TargetRequest, arrived: float) -> target_pb2.Verdict:
    """Return the verdict of a round that arrived then, with the times of the reply."""
    timing = ReplyTiming(time.perf_counter() - arrived, done.queue_s, done.engine_s)
    return message_of(target_pb2.Verdict, replace(done.result(), timing=timing))


def register(servicer: TargetServicer) -> Register:
    """Return what adds the service to a server."""

    def add(server: Any) -> None:
        target_pb2_grpc.add_TargetServiceServicer_to_server(servicer, server)
        stream_kv: Any = grpc.stream_stream_rpc_method_handler(
            servicer.StreamKv, request_deserializer=target_pb2.StreamKvRequest.FromString
        )  # writes bytes: a message of keys and values would be copied twice more
        server.add_registered_method_handlers(SERVICE, {"StreamKv": stream_kv})

    return add

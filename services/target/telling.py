"""What a target tells of itself: spans of what is traced, and metrics of everything.

Knows the words of both, not who listens.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import cast

import grpc

from slipstream.core.errors import SessionOutOfSync, SlipstreamError
from slipstream.rpc.kv import ENCODING, KvEncoding
from slipstream.rpc.status import code_of
from slipstream.rpc.tracing import trace_from_pb
from slipstream.rpc.v1 import common_pb2, target_pb2
from slipstream.target.batcher import BatchedTarget
from slipstream.target.kv_streams import Snapshot
from slipstream.target.pending import Verified
from slipstream.target.works import Step
from slipstream.telemetry import catalog
from slipstream.telemetry.metric import Attributes, Instruments, Value
from slipstream.telemetry.round_seen import decided_attributes
from slipstream.telemetry.spans import Replies, Reply
from slipstream.telemetry.telemetry import Telemetry

VERIFY = "target.verify"
STREAM_KV = "slipstream.rpc.v1.TargetService/StreamKv"


class Telling:
    """Of one target."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._replies = Replies(telemetry.tracer)
        self._num_first = telemetry.bounds.first
        self._instruments = telemetry.instruments
        self._is_measured = telemetry.instruments.are_exported

    @property
    def on_step(self) -> Callable[[Step], None] | None:
        """To be called with every forward; None where nobody wants to know."""
        return self._stepped if self._is_measured else None

    def answering(self, message: target_pb2.VerifyRequest) -> AbstractContextManager[Reply | None]:
        """The span around a verification; None where the message is not traced."""
        return self._replies.answering(VERIFY, trace_from_pb(message.trace))

    def verified(
        self, reply: Reply | None, done: Verified, *, num_nodes: int, is_first: bool
    ) -> None:
        """There is a verdict on a proposal of so many nodes; `is_first` of its request."""
        if self._is_measured:
            self._instruments.record(catalog.TARGET_QUEUE, done.queue_s)
        if reply is not None:
            reply.part("engine.queue", done.began - done.queue_s, done.began)
            reply.part("engine.run", done.began, done.step.ended)
            reply.set(_attributes(done, num_nodes, is_first))

    @contextmanager
    def streaming(
        self, request: target_pb2.StreamKvRequest
    ) -> Iterator[Callable[[Snapshot], None]]:
        """Around a stream of keys and values; what it yields is to be told of every snapshot."""
        layers = len(request.layers)
        said: Attributes = {
            "slipstream.kv.layers": layers,
            "slipstream.kv.encoding": _encoding(request),
        }
        carrier = trace_from_pb(request.trace)
        with self._replies.streaming(
            STREAM_KV, carrier, said, status_of=_status_name, first=self._num_first
        ) as stream:

            def sent(snapshot: Snapshot) -> None:
                if self._is_measured:
                    self._instruments.record(catalog.SNAPSHOT_SIZE, snapshot.num_bytes)
                stream.record_snapshot(
                    cast(Reply | None, snapshot.verified),
                    (snapshot.began, snapshot.ended),
                    num_bytes=snapshot.num_bytes,
                    about={
                        "slipstream.kv.layers": layers,
                        "slipstream.kv.start": snapshot.start,
                        "slipstream.kv.count": snapshot.count,
                    },
                )

            yield sent

    def _stepped(self, step: Step) -> None:
        record = self._instruments.record
        record(catalog.STEP_DURATION, step.seconds)
        record(catalog.STEP_ROWS, step.num_rows)
        record(catalog.STEP_SESSIONS, step.num_sessions)


def tell_load(instruments: Instruments, load: common_pb2.Load, batched: BatchedTarget) -> None:
    """How things are at the moment, and what came of them since the start. About once a second."""
    put, total = instruments.put, instruments.total
    put(catalog.KV_USED, load.kv_bytes)
    put(catalog.KV_CAPACITY, load.kv_capacity_bytes)
    put(catalog.KV_CACHED, load.kv_cached_bytes)
    put(catalog.KV_STREAMS, load.num_kv_streams)
    put(catalog.SESSIONS, load.num_sessions, {"state": "active"})
    put(catalog.SESSIONS, load.num_parked, {"state": "parked"})
    put(catalog.WAITING, load.num_waiting)
    put(catalog.ROWS_IN_FLIGHT, batched.rows_in_flight)
    put(catalog.ROWS_FREE, batched.rows_free)
    put(catalog.DRAFT_WAIT_SHARE, batched.spent.waiting_share())
    for state, seconds in batched.spent.totals().items():
        total(catalog.TARGET_TIME, seconds, {"state": state.value})
    total(catalog.KV_SENT, load.kv_streamed_bytes)


def _attributes(done: Verified, num_nodes: int, is_first: bool) -> Attributes:
    said: dict[str, Value] = {
        **decided_attributes(done.value),
        "slipstream.verdict.nodes": num_nodes,
        "slipstream.batch.rows": done.step.num_rows,
        "slipstream.batch.sessions": done.step.num_sessions,
    }
    if is_first:
        said["slipstream.verdict.num_cached"] = done.value.num_cached
    return said


def _encoding(request: target_pb2.StreamKvRequest) -> str:
    """An unknown one is about to be refused."""
    is_small = request.encoding == ENCODING.to_pb(KvEncoding.INT8)
    return (KvEncoding.INT8 if is_small else KvEncoding.RAW).value


def _status_name(error: BaseException) -> str:
    """The status that `StreamKv` ends with."""
    if isinstance(error, SessionOutOfSync):
        return grpc.StatusCode.OUT_OF_RANGE.name
    if isinstance(error, (asyncio.CancelledError, grpc.aio.InternalError)):  # the reader has left
        return grpc.StatusCode.CANCELLED.name
    if isinstance(error, SlipstreamError):
        return code_of(error).name
    return grpc.StatusCode.INTERNAL.name

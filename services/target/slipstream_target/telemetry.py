"""Telemetry of the target service: spans of what is traced, and metrics of everything."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import grpc

from slipstream.core.errors import SessionOutOfSync, SlipstreamError
from slipstream.rpc.kv import ENCODING, KvEncoding
from slipstream.rpc.status import code_of
from slipstream.rpc.tracing import trace_from_pb
from slipstream.rpc.v1 import common_pb2, target_pb2
from slipstream.telemetry import catalog
from slipstream.telemetry.attributes import decided_attributes
from slipstream.telemetry.metric import Attributes, Instruments, Value
from slipstream.telemetry.spans import Replies, Reply
from slipstream.telemetry.telemetry import Telemetry
from slipstream.verifying.batcher import BatchedTarget
from slipstream.verifying.request import TargetRequest, TargetStep
from slipstream_target.kv_streams import OnSent, Snapshot

VERIFY = "target.verify"
STREAM_KV = "slipstream.rpc.v1.TargetService/StreamKv"


class TargetTelemetry:
    """Spans and metrics of one target."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._replies = Replies(telemetry.tracer)
        self._num_first = telemetry.trace_rounds
        self._instruments = telemetry.instruments
        self._is_measured = telemetry.instruments.are_exported

    @property
    def on_step(self) -> Callable[[TargetStep], None] | None:
        """Return what records every forward; None where no metrics are exported."""
        return self._record_step if self._is_measured else None

    def answering(self, message: target_pb2.VerifyRequest) -> AbstractContextManager[Reply | None]:
        """Return the span around a verification; None where the message is not traced."""
        return self._replies.answering(VERIFY, trace_from_pb(message.trace))

    def record_verdict(
        self, reply: Reply | None, request: TargetRequest, *, is_first: bool
    ) -> None:
        """Record a request that has its verdict; `is_first` says that its stream had none yet."""
        if self._is_measured:
            self._instruments.record(catalog.TARGET_QUEUE, request.queue_s)
        if reply is not None and request.step is not None:
            began = request.arrived + request.queue_s
            reply.part("engine.queue", request.arrived, began)
            reply.part("engine.run", began, request.step.ended)
            reply.set(_attributes(request, request.step, is_first))

    @contextmanager
    def streaming(self, request: target_pb2.StreamKvRequest) -> Iterator[OnSent]:
        """Trace a stream of keys and values; what it yields is called with every snapshot."""
        num_layers = len(request.layers)
        # An unknown encoding is about to be refused.
        is_small = request.encoding == ENCODING.to_pb(KvEncoding.INT8)
        attributes: Attributes = {
            "slipstream.kv.layers": num_layers,
            "slipstream.kv.encoding": (KvEncoding.INT8 if is_small else KvEncoding.RAW).value,
        }
        carrier = trace_from_pb(request.trace)
        with self._replies.streaming(
            STREAM_KV, carrier, attributes, status_of=_status_name, first=self._num_first
        ) as stream:

            def on_sent(snapshot: Snapshot) -> None:
                if self._is_measured:
                    self._instruments.record(catalog.SNAPSHOT_SIZE, snapshot.num_bytes)
                stream.record_snapshot(
                    snapshot.reply,
                    (snapshot.began, snapshot.ended),
                    num_bytes=snapshot.num_bytes,
                    about={
                        "slipstream.kv.layers": num_layers,
                        "slipstream.kv.start": snapshot.start,
                        "slipstream.kv.count": snapshot.count,
                    },
                )

            yield on_sent

    def _record_step(self, step: TargetStep) -> None:
        record = self._instruments.record
        record(catalog.STEP_DURATION, step.seconds)
        record(catalog.STEP_ROWS, step.num_tokens)
        record(catalog.STEP_SESSIONS, step.num_sessions)


def record_load(instruments: Instruments, load: common_pb2.Load, batched: BatchedTarget) -> None:
    """Record the present load, and the totals since the start. About once a second."""
    put, total = instruments.put, instruments.total
    put(catalog.KV_USED, load.kv_bytes)
    put(catalog.KV_CAPACITY, load.kv_capacity_bytes)
    put(catalog.KV_CACHED, load.kv_cached_bytes)
    put(catalog.KV_STREAMS, load.num_kv_streams)
    put(catalog.SESSIONS, load.num_sessions, {"state": "active"})
    put(catalog.SESSIONS, load.num_parked, {"state": "parked"})
    put(catalog.WAITING, load.num_waiting)
    put(catalog.ROWS_IN_FLIGHT, batched.tokens_in_flight)
    put(catalog.ROWS_FREE, batched.tokens_free)
    put(catalog.DRAFT_WAIT_SHARE, batched.spent.waiting_share())
    for activity, seconds in batched.spent.totals().items():
        total(catalog.TARGET_TIME, seconds, {"state": activity.value})
    total(catalog.KV_SENT, load.kv_streamed_bytes)


def _attributes(request: TargetRequest, step: TargetStep, is_first: bool) -> Attributes:
    attributes: dict[str, Value] = {
        **decided_attributes(request.result()),
        "slipstream.verdict.nodes": request.num_nodes,
        "slipstream.batch.rows": step.num_tokens,
        "slipstream.batch.sessions": step.num_sessions,
    }
    if is_first:
        attributes["slipstream.verdict.num_cached"] = request.num_cached
    return attributes


def _status_name(error: BaseException) -> str:
    """Return the status that `StreamKv` ends with."""
    if isinstance(error, SessionOutOfSync):
        return grpc.StatusCode.OUT_OF_RANGE.name
    if isinstance(error, (asyncio.CancelledError, grpc.aio.InternalError)):  # the reader has left
        return grpc.StatusCode.CANCELLED.name
    if isinstance(error, SlipstreamError):
        return code_of(error).name
    return grpc.StatusCode.INTERNAL.name

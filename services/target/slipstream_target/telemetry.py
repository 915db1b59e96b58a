"""Telemetry of the target service: spans of what is traced, and metrics of everything."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from slipstream.rpc.conversion.convert import trace_from_pb
from slipstream.rpc.v1 import common_pb2, target_pb2
from slipstream.telemetry import catalog
from slipstream.telemetry.attributes import decided_attributes
from slipstream.telemetry.metric import Attributes, Instruments, Telemetry, Value
from slipstream.telemetry.spans import Replies, Reply
from slipstream.verifying.batcher import BatchedTarget
from slipstream.verifying.request import TargetRequest, TargetStep

VERIFY = "target.verify"


class TargetTelemetry:
    """Spans and metrics of one target."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._replies = Replies(telemetry.tracer)
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
        """Record a request that has its verdict; `is_first` if its stream had none yet."""
        if self._is_measured:
            self._instruments.record(catalog.TARGET_QUEUE, request.queue_s)
        if reply is not None and request.step is not None:
            began = request.arrived + request.queue_s
            reply.part("engine.queue", request.arrived, began)
            reply.part("engine.run", began, request.step.ended)
            reply.set(_attributes(request, request.step, is_first))

    def record_sent(self, num_bytes: int) -> None:
        """Record a snapshot of keys and values that was sent."""
        if self._is_measured:
            self._instruments.record(catalog.SNAPSHOT_SIZE, num_bytes)

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

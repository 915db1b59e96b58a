"""Telemetry of the draft service: spans of traced proposals, and metrics of all."""

import asyncio
from contextlib import AbstractContextManager

from slipstream.core.types import Proposal
from slipstream.engine.thread import Done
from slipstream.rpc.tracing import trace_from_pb
from slipstream.rpc.v1 import draft_pb2
from slipstream.telemetry import catalog
from slipstream.telemetry.attributes import proposed_attributes
from slipstream.telemetry.metric import Telemetry
from slipstream.telemetry.spans import Replies, Reply

PROPOSE = "draft.propose"


class DraftTelemetry:
    """Spans and metrics of one draft."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._replies = Replies(telemetry.tracer)
        self._instruments = telemetry.instruments
        self._is_measured = telemetry.instruments.are_exported

    def answering(
        self, message: draft_pb2.SpeculateRequest
    ) -> AbstractContextManager[Reply | None]:
        """Return the span around a proposal; None where the message is not traced."""
        return self._replies.answering(PROPOSE, trace_from_pb(message.trace))

    def record_proposal(
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
        if self._is_measured:  # takes as long as a small step: after the response
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

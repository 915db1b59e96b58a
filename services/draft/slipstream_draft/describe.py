"""Description of a draft on the wire, its requirements of a target, and its telemetry."""

import asyncio
from contextlib import AbstractContextManager

from slipstream.core.types import Proposal
from slipstream.drafting.build import Drafter
from slipstream.engine.thread import Done
from slipstream.models.glide.target_parts import LoadedParts
from slipstream.rpc.conversion.convert_common import message_of, value_from_pb
from slipstream.rpc.protocol import PROTOCOL_VERSION
from slipstream.rpc.remote_draft import LAYOUT
from slipstream.rpc.v1 import common_pb2, draft_pb2
from slipstream.telemetry import catalog
from slipstream.telemetry.attributes import proposed_attributes
from slipstream.telemetry.metric import Telemetry
from slipstream.telemetry.spans import Carrier, Replies, Reply


def describe(
    drafter: Drafter, name: str, *, target: LoadedParts | None, incarnation: str, max_sessions: int
) -> draft_pb2.DescribeDraftResponse:
    """Return a description; `target` is None for a draft that reads no keys and values."""
    about = message_of(
        draft_pb2.DescribeDraftResponse,
        drafter.facts,
        identity=common_pb2.ModelIdentity(
            protocol_version=PROTOCOL_VERSION,
            model_id=name,
            tokenizer_hash=drafter.tokenizer_hash or "",
            vocab_size=drafter.vocab_size or 0,
            incarnation=incarnation,
            numbering=drafter.numbering,
        ),
        target_layers=drafter.layers,
        max_sessions=max_sessions,
        memory=drafter.memory and common_pb2.Memory(**drafter.memory.account()),
        dtype=drafter.dtype,
    )
    if target is not None:
        about.target_model_id = target.model_id
        for field in LAYOUT:
            setattr(about.target_layout, field, getattr(target.parts, field))
    return about


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
        return self._replies.answering(PROPOSE, value_from_pb(Carrier, message.trace))

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

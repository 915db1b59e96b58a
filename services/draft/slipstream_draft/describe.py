"""Description of a draft on the wire."""

from slipstream.drafting.build import Drafter
from slipstream.models.glide.target_parts import LoadedParts
from slipstream.rpc.conversion.convert_common import message_of
from slipstream.rpc.protocol import PROTOCOL_VERSION
from slipstream.rpc.remote_draft import LAYOUT
from slipstream.rpc.v1 import common_pb2, draft_pb2


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

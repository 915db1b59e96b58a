"""A draft's description on the wire, and what it requires of a target."""

from slipstream.core.policy.options import READING
from slipstream.drafting.build import Drafter
from slipstream.models.glide.target_parts import LoadedParts
from slipstream.rpc.conversion.convert_common import message_of
from slipstream.rpc.protocol import PROTOCOL_VERSION, Expectation, identity_expectations
from slipstream.rpc.v1 import common_pb2, draft_pb2
from slipstream.text.token_bytes import same_numbering

_LAYOUT = ("num_layers", "num_kv_heads", "head_dim", "hidden_size")


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
        for field in _LAYOUT:
            setattr(about.target_layout, field, getattr(target.parts, field))
    return about


def target_expectations(
    about: draft_pb2.DescribeDraftResponse, asked: draft_pb2.OpenDraft
) -> list[Expectation]:
    """Return the requirements of the caller's target: for a plain draft, the same numbering
    of tokens."""
    reads = bool(about.target_layers)
    is_same = same_numbering(about.identity.numbering, asked.target.numbering)
    ours = common_pb2.ModelIdentity(
        protocol_version=PROTOCOL_VERSION,
        model_id=about.target_model_id,
        tokenizer_hash="" if is_same else about.identity.tokenizer_hash,
        vocab_size=about.identity.vocab_size if about.kind in READING else 0,
    )
    has_states = reads and max(about.target_layers) >= about.target_layout.num_layers
    layout: list[Expectation] = [
        (name, getattr(about.target_layout, name), getattr(asked.target_layout, name))
        for name in (_LAYOUT if has_states else _LAYOUT[:-1])
    ]
    return identity_expectations(ours, asked.target) + (layout if reads else [])

"""Descriptions of models, routers, targets and drafts; those of replicas are checked here."""

import math
from typing import Any

from slipstream.core.errors import HandshakeError, refused_as
from slipstream.core.policy.options import DRAFTERS
from slipstream.core.policy.profile import DraftFacts, Profile
from slipstream.core.request.model_info import ModelInfo
from slipstream.core.request.request import MODEL_DEFAULTS, ModelFacts
from slipstream.core.types import SamplingParams
from slipstream.rpc.conversion.convert_common import TOOL_FORMAT, message_of, value_from_pb
from slipstream.rpc.protocol import PROTOCOL_VERSION
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2
from slipstream.rpc.v1 import generation_pb2 as pb

MAX_NAME_CHARS = 256
MAX_STOP_TOKENS = 4096
"""Most stop tokens of a model, which has a handful."""


def model_info_to_pb(info: ModelInfo) -> pb.ModelInfo:
    defaults = common_pb2.SamplingParams(**info.sampling_defaults)  # type: ignore[arg-type]
    return message_of(pb.ModelInfo, info, sampling_defaults=defaults)


def model_info_from_pb(message: pb.ModelInfo) -> ModelInfo:
    defaults = _defaults_from_pb(message.sampling_defaults)
    return value_from_pb(ModelInfo, message, sampling_defaults=defaults)


def _defaults_from_pb(message: common_pb2.SamplingParams) -> dict[str, float]:
    found = {name: getattr(message, name) for name in MODEL_DEFAULTS if message.HasField(name)}  # type: ignore[arg-type]
    SamplingParams(**found)
    return found


def check_identity(identity: common_pb2.ModelIdentity) -> None:
    """Raise `HandshakeError` for another version of the protocol, and for names that are none."""
    if identity.protocol_version != PROTOCOL_VERSION:
        raise HandshakeError(
            f"it speaks version {identity.protocol_version} of the protocol, but this router"
            f" version {PROTOCOL_VERSION}"
        )
    names = ("model_id", "tokenizer_hash", "incarnation", "weights_digest", "revision")
    _check_names(identity, *names)


def _check_names(message: Any, *names: str) -> None:
    """Raise `HandshakeError` for a name that does not fit into logs, answers and metrics."""
    for name in names:
        value = getattr(message, name)
        if len(value) > MAX_NAME_CHARS or not value.isprintable():
            raise HandshakeError(
                f"its {name} is {value[:40]!r}, but must be up to {MAX_NAME_CHARS} printable"
                " characters"
            )


def model_facts_from_pb(message: target_pb2.DescribeTargetResponse) -> ModelFacts:
    """Convert facts to check requests with. Raises `HandshakeError` for impossible ones."""
    identity = message.identity
    for name, value in (
        ("model id", identity.model_id),
        ("tokenizer hash", identity.tokenizer_hash),
        ("vocabulary", identity.vocab_size),
        ("context", message.context_length),
    ):
        if not value:
            raise HandshakeError(f"it says nothing of its {name}")
    _check_names(message, "numerics", "engine", "dtype", "advertised_address")
    if len(message.stop_token_ids) > MAX_STOP_TOKENS:
        raise HandshakeError(
            f"it has {len(message.stop_token_ids)} stop tokens, above {MAX_STOP_TOKENS}"
        )
    with refused_as("its sampling defaults can't be used:", HandshakeError):
        defaults = _defaults_from_pb(message.sampling_defaults)
    with refused_as("its tool format can't be used:", HandshakeError):
        tool_format = TOOL_FORMAT.from_pb(message.tool_format)
    return value_from_pb(
        ModelFacts,
        message,
        model_id=identity.model_id,
        vocab_size=identity.vocab_size,
        stop_token_ids=frozenset(message.stop_token_ids),
        tool_format=tool_format,
        is_fallback=message.engine == "torch",
        sampling_defaults=defaults,
    )


def draft_facts_from_pb(message: draft_pb2.DescribeDraftResponse) -> DraftFacts:
    """Convert facts to check requests with. Raises `HandshakeError` for impossible ones."""
    _check_names(message, "kind", "target_model_id", "dtype")
    if message.kind not in DRAFTERS:
        known = ", ".join(DRAFTERS)
        raise HandshakeError(f"it is a draft of kind {message.kind!r}, but known are {known}")
    with refused_as("its profile can't be used:", HandshakeError):
        profile = _profile_from_pb(message.profile)
    step_s = message.step_s if 0 < message.step_s < math.inf else None
    return value_from_pb(DraftFacts, message, profile=profile, step_s=step_s)


def _profile_from_pb(message: draft_pb2.DraftProfile) -> Profile:
    defaults = Profile()
    return value_from_pb(
        Profile,
        message,
        max_depth=message.max_depth or defaults.max_depth,
        max_nodes=message.max_nodes or defaults.max_nodes,
        step_cost=message.step_cost or None,
        row_cost=message.row_cost or None,
    )

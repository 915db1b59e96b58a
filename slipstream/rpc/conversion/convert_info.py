"""Conversion of descriptions of models and routers, both ways.

`x_from_pb` raises `InvalidRequest` for what is no such value.
"""

from dataclasses import asdict, fields
from enum import StrEnum
from typing import TypeVar

from slipstream.core.errors import InvalidRequest
from slipstream.core.request.model_info import DrafterInfo, Limits, ModelInfo, VerificationInfo
from slipstream.core.request.server_info import ReplicaInfo, ServerInfo
from slipstream.rpc.conversion.convert_common import ROLE, SHAPE, STATE, STOP, VERIFICATION
from slipstream.rpc.v1 import generation_pb2 as pb

E = TypeVar("E", bound=StrEnum)


def model_info_to_pb(info: ModelInfo) -> pb.ModelInfo:
    """A model and what it can be asked for."""
    limits = pb.Limits(**asdict(info.limits))
    return pb.ModelInfo(
        model=info.model,
        vocab_size=info.vocab_size,
        tokenizer_hash=info.tokenizer_hash,
        stop_token_ids=info.stop_token_ids,
        has_chat_template=info.has_chat_template,
        numerics=info.numerics,
        dtype=info.dtype,
        limits=limits,
        verifications=[_verification_to_pb(item) for item in info.verifications],
        drafters=[_drafter_to_pb(item) for item in info.drafters],
        num_targets=info.num_targets,
    )


def model_info_from_pb(message: pb.ModelInfo) -> ModelInfo:
    """A model and what it can be asked for."""
    return ModelInfo(
        model=message.model,
        vocab_size=message.vocab_size,
        tokenizer_hash=message.tokenizer_hash,
        stop_token_ids=tuple(message.stop_token_ids),
        has_chat_template=message.has_chat_template,
        numerics=message.numerics,
        dtype=message.dtype,
        limits=_limits_from_pb(message.limits),
        verifications=tuple(_verification_from_pb(item) for item in message.verifications),
        drafters=tuple(_drafter_from_pb(item) for item in message.drafters),
        num_targets=message.num_targets,
    )


def _limits_from_pb(message: pb.Limits) -> Limits:
    values = {field.name: getattr(message, field.name) for field in fields(Limits)}
    if not message.HasField("max_logprobs"):
        values["max_logprobs"] = None
    return Limits(**values)


def server_info_to_pb(info: ServerInfo) -> pb.GetServerInfoResponse:
    """A router and its replicas."""
    return pb.GetServerInfoResponse(
        version=info.version,
        protocol_version=info.protocol_version,
        uptime_s=info.uptime_s,
        num_requests=info.num_requests,
        num_sessions=info.num_sessions,
        replicas=[_replica_to_pb(item) for item in info.replicas],
    )


def server_info_from_pb(message: pb.GetServerInfoResponse) -> ServerInfo:
    """A router and its replicas."""
    return ServerInfo(
        version=message.version,
        protocol_version=message.protocol_version,
        uptime_s=message.uptime_s,
        num_requests=message.num_requests,
        num_sessions=message.num_sessions,
        replicas=tuple(_replica_from_pb(item) for item in message.replicas),
    )


def _verification_to_pb(info: VerificationInfo) -> pb.VerificationCapability:
    return pb.VerificationCapability(
        verification=VERIFICATION.to_pb(info.verification),  # type: ignore[arg-type]
        shapes=[SHAPE.to_pb(shape) for shape in info.shapes],  # type: ignore[misc]
        drafters=info.drafters,
        lossless=info.lossless,
        note=info.note,
    )


def _verification_from_pb(message: pb.VerificationCapability) -> VerificationInfo:
    return VerificationInfo(
        _named(VERIFICATION.from_pb(message.verification), "verification"),
        tuple(_named(SHAPE.from_pb(number), "shape") for number in message.shapes),
        tuple(message.drafters),
        message.lossless,
        message.note,
    )


def _drafter_to_pb(info: DrafterInfo) -> pb.DrafterCapability:
    return pb.DrafterCapability(
        kind=info.kind,
        shapes=[SHAPE.to_pb(shape) for shape in info.shapes],  # type: ignore[misc]
        stops=[STOP.to_pb(stop) for stop in info.stops],  # type: ignore[misc]
        max_draft_tokens=info.max_draft_tokens,
        num_replicas=info.num_replicas,
        lookup=info.lookup,
    )


def _drafter_from_pb(message: pb.DrafterCapability) -> DrafterInfo:
    has_limit = message.HasField("max_draft_tokens")
    return DrafterInfo(
        message.kind,
        tuple(_named(SHAPE.from_pb(number), "shape") for number in message.shapes),
        tuple(_named(STOP.from_pb(number), "stop policy") for number in message.stops),
        message.max_draft_tokens if has_limit else None,
        message.num_replicas,
        message.lookup,
    )


def _replica_to_pb(info: ReplicaInfo) -> pb.ReplicaInfo:
    return pb.ReplicaInfo(
        role=ROLE.to_pb(info.role),  # type: ignore[arg-type]
        address=info.address,
        state=STATE.to_pb(info.state),  # type: ignore[arg-type]
        reason=info.reason,
        model=info.model,
        num_requests=info.num_requests,
        incarnation=info.incarnation,
        dtype=info.dtype,
        weights_digest=info.weights_digest,
        engine=info.engine,
    )


def _replica_from_pb(message: pb.ReplicaInfo) -> ReplicaInfo:
    return ReplicaInfo(
        role=_named(ROLE.from_pb(message.role), "role"),
        address=message.address,
        state=_named(STATE.from_pb(message.state), "state"),
        reason=message.reason,
        model=message.model,
        num_requests=message.num_requests,
        incarnation=message.incarnation,
        dtype=message.dtype,
        weights_digest=message.weights_digest,
        engine=message.engine,
    )


def _named(member: E | None, name: str) -> E:
    if member is None:
        raise InvalidRequest(f"the {name} is not said")
    return member

"""Values of the ports, and descriptions of models, targets and drafts, on the wire, both ways.

Whatever comes in is checked at birth; replicas are not trusted.
"""

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

from slipstream.core.errors import HandshakeError, InvalidRequest, refused_as
from slipstream.core.logprobs import MAX_LOGPROBS
from slipstream.core.policy.options import DRAFTERS
from slipstream.core.policy.profile import DraftFacts, Profile
from slipstream.core.request.model_info import ModelInfo
from slipstream.core.request.request import MODEL_DEFAULTS, ModelFacts
from slipstream.core.row_costs import Offer
from slipstream.core.tree import MAX_NODES, CopySource
from slipstream.core.types import Proposal, ReplyTiming, SamplingParams, Session, Verdict
from slipstream.rpc.conversion.convert_common import (
    TOOL_FORMAT,
    check_count,
    message_of,
    proposal_from_pb,
    value_from_pb,
)
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


def session_from_pb(message: common_pb2.SessionParams) -> Session:
    """The request's parameters; the fence stays on the wire."""
    if not message.session_id:
        raise InvalidRequest("the session has no id")
    return value_from_pb(Session, message)


def proposed_from_pb(message: draft_pb2.Proposed) -> Proposal:
    """Convert a draft's answer, copies and times included; raises what `proposal_from_pb` does."""
    fallback = message.fallback[:40] or None
    if not message.HasField("proposal"):
        return Proposal(fallback=fallback)
    proposal = proposal_from_pb(message.proposal)
    check_count("copies among the nodes", message.num_copied, len(proposal.tree))
    return replace(
        proposal,
        fallback=fallback,
        staleness=message.staleness,
        timing=value_from_pb(ReplyTiming, message.timing),
        sources=(CopySource.LOOKUP,) * message.num_copied,
    )


def verdict_from_pb(message: target_pb2.Verdict) -> Verdict:
    """Convert a verdict, with what was proposed for it where that was granted."""
    _check_counts(message)
    proposal = proposed_from_pb(message.proposed) if message.HasField("proposed") else None
    offer = _offer_from_pb(message)
    verdict = value_from_pb(Verdict, message, offer=offer, proposal=proposal)
    if len(verdict.logprobs) not in (0, len(verdict.tokens)):
        raise InvalidRequest(
            f"{len(verdict.logprobs)} log-probabilities are of {len(verdict.tokens)} tokens"
        )
    return verdict


def _check_counts(message: target_pb2.Verdict) -> None:
    """Raise `InvalidRequest` for more of anything than a verdict on any proposal has."""
    for name in ("tokens", "roots", "forced", "logprobs"):
        check_count(f"{name} of a verdict", len(getattr(message, name)), MAX_NODES + 1)
    for item in message.logprobs:
        check_count("likeliest tokens of a position", len(item.top), MAX_LOGPROBS)


def _offer_from_pb(message: target_pb2.Verdict) -> Offer | None:
    """The offer; None for one that can't be, as a hint must not fail a round."""
    with suppress(InvalidRequest):
        return value_from_pb(Offer, message.offer) if message.HasField("offer") else None
    return None

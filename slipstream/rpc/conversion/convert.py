"""Values of the ports on the wire, both ways. Whatever comes in is checked at birth."""

from contextlib import suppress
from dataclasses import replace

from slipstream.core.errors import InvalidRequest
from slipstream.core.logprobs import MAX_LOGPROBS
from slipstream.core.row_costs import Offer
from slipstream.core.tree import MAX_NODES, CopySource
from slipstream.core.types import Proposal, ReplyTiming, Session, Verdict
from slipstream.rpc.conversion.convert_common import (
    check_count,
    message_of,
    proposal_from_pb,
    value_from_pb,
)
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2
from slipstream.telemetry.spans import Carrier


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


def trace_to_pb(carrier: Carrier | None) -> common_pb2.TraceContext | None:
    """Return a trace's context; None for what is not traced."""
    return None if carrier is None else message_of(common_pb2.TraceContext, carrier)


def trace_from_pb(message: common_pb2.TraceContext) -> Carrier | None:
    """Return a trace's context; None where nothing is said."""
    return Carrier(message.traceparent, message.tracestate) if message.traceparent else None

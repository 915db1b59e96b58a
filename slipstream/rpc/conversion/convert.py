"""Values of the ports on the wire, both ways. Whatever comes in is checked at birth."""

from dataclasses import replace
from typing import Any

from slipstream.core.errors import InvalidRequest
from slipstream.core.logprobs import MAX_LOGPROBS
from slipstream.core.row_costs import MAX_POINTS, Offer, RowCosts
from slipstream.core.sequence import Delta
from slipstream.core.tree import MAX_NODES, CopySource
from slipstream.core.types import Proposal, ReplyTiming, Session, Verdict
from slipstream.rpc.conversion.convert_common import (
    check_count,
    message_of,
    proposal_from_pb,
    proposal_to_pb,
    value_from_pb,
)
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2
from slipstream.telemetry.spans import Carrier


def session_from_pb(message: common_pb2.SessionParams) -> Session:
    """The request's parameters; the fence stays on the wire."""
    if not message.session_id:
        raise InvalidRequest("the session has no id")
    return value_from_pb(Session, message)


def delta_from_pb(message: common_pb2.Delta) -> Delta:
    return Delta(message.start, tuple(message.tokens))


def verify_to_pb(delta: Delta, proposal: Proposal) -> target_pb2.VerifyProposal:
    """A round that is asked for; targets need no statistics. Raises what `proposal_to_pb` does."""
    return target_pb2.VerifyProposal(
        delta=message_of(common_pb2.Delta, delta),
        proposal=proposal_to_pb(proposal, with_stats=False),
    )


def verify_from_pb(message: target_pb2.VerifyProposal) -> tuple[Delta, Proposal]:
    return delta_from_pb(message.delta), proposal_from_pb(message.proposal)


def proposed_from_pb(message: draft_pb2.Proposed) -> Proposal:
    """Convert a draft's answer, copies and times included; raises what `proposal_from_pb` does."""
    proposal = proposal_from_pb(message.proposal)
    check_count("copies among the nodes", message.num_copied, len(proposal.tree))
    return replace(
        proposal,
        staleness=message.staleness,
        timing=timing_from_pb(message.timing, serialisation_s=0.0),
        sources=(CopySource.LOOKUP,) * message.num_copied,
    )


def verdict_to_pb(verdict: Verdict, timing: ReplyTiming) -> target_pb2.Verdict:
    """See `core.types.Verdict`; the service adds where its time went."""
    offer = _offer_to_pb(verdict.offer)
    return message_of(target_pb2.Verdict, verdict, timing=timing_to_pb(timing), **offer)


def _offer_to_pb(offer: Offer | None) -> dict[str, Any]:
    if offer is None:
        return {}
    given: dict[str, Any] = {"free_rows": offer.rows, "round_s": offer.round_s}
    if offer.costs is not None:
        given["cost_tokens"] = [rows for rows, _ in offer.costs.points[1:]]
        given["costs"] = [cost for _, cost in offer.costs.points[1:]]
    return given


def verdict_from_pb(message: target_pb2.Verdict, timing: ReplyTiming) -> Verdict:
    """`timing` is the message's own with the caller's part added."""
    _check_counts(message)
    own = {"offer": _offer_from_pb(message), "timing": timing} | _granted_from_pb(message)
    verdict = value_from_pb(Verdict, message, **own)
    if len(verdict.logprobs) not in (0, len(verdict.tokens)):
        raise InvalidRequest(
            f"{len(verdict.logprobs)} log-probabilities are of {len(verdict.tokens)} tokens"
        )
    return verdict


def _granted_from_pb(message: target_pb2.Verdict) -> dict[str, Any]:
    if not message.HasField("proposed"):
        return {}
    proposed = message.proposed
    proposal = proposed_from_pb(proposed) if proposed.HasField("proposal") else Proposal()
    if message.fallback:
        proposal = replace(proposal, fallback=message.fallback[:40])
    return {"proposal": proposal, "proposing_s": message.proposing_us / 1e6}


def _check_counts(message: target_pb2.Verdict) -> None:
    """Raise `InvalidRequest` for more of anything than a verdict on any proposal has."""
    for name in ("tokens", "roots", "forced", "logprobs"):
        check_count(f"{name} of a verdict", len(getattr(message, name)), MAX_NODES + 1)
    for item in message.logprobs:
        check_count("likeliest tokens of a position", len(item.top), MAX_LOGPROBS)


def _offer_from_pb(message: target_pb2.Verdict) -> Offer | None:
    """The offer; None for one that can't be, as a hint must not fail a round."""
    if not message.HasField("free_rows"):
        return None
    points = [*zip(message.cost_tokens[:MAX_POINTS], message.costs[:MAX_POINTS], strict=False)]
    round_s = message.round_s if message.HasField("round_s") else None
    try:
        costs = RowCosts(((1, 1.0), *points)) if points else None
        return Offer(message.free_rows, round_s, costs)
    except InvalidRequest:
        return None


_TIMES = {f"{name}_us": f"{name}_s" for name in ("queue", "engine", "kv_wait")}
_TIMES |= {"total_us": "service_s"}


def timing_to_pb(timing: ReplyTiming) -> common_pb2.ReplyTiming:
    """Whole microseconds."""
    times = {wire: round(getattr(timing, own) * 1e6) for wire, own in _TIMES.items()}
    return common_pb2.ReplyTiming(**times)


def timing_from_pb(message: common_pb2.ReplyTiming, *, serialisation_s: float) -> ReplyTiming:
    """Seconds, with the caller's own part."""
    times = {own: getattr(message, wire) / 1e6 for wire, own in _TIMES.items()}
    return ReplyTiming(**times, serialisation_s=serialisation_s)


def trace_to_pb(carrier: Carrier | None) -> common_pb2.TraceContext | None:
    """Return a trace's context; None for what is not traced."""
    return None if carrier is None else message_of(common_pb2.TraceContext, carrier)


def trace_from_pb(message: common_pb2.TraceContext) -> Carrier | None:
    """Return a trace's context; None where nothing is said."""
    return Carrier(message.traceparent, message.tracestate) if message.traceparent else None

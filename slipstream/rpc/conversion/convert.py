"""Values of the ports on the wire, both ways. Whatever comes in is checked at birth."""

from collections.abc import Iterable
from typing import Any

from slipstream.core.errors import InvalidRequest
from slipstream.core.logprobs import TokenLogprob
from slipstream.core.row_costs import MAX_POINTS, Offer, RowCosts
from slipstream.core.sequence import Delta
from slipstream.core.types import Plan, Proposal, ReplyTiming, SamplingParams, Session, Verdict
from slipstream.rpc.conversion.convert_common import (
    check_verdict_counts,
    logprobs_from_pb,
    message_of,
    proposal_from_pb,
    proposal_to_pb,
    value_from_pb,
)
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2


def sampling_to_pb(sampling: SamplingParams) -> common_pb2.SamplingParams:
    """Convert what differs from the defaults, and the seed in any case."""
    return message_of(common_pb2.SamplingParams, sampling, logit_bias=dict(sampling.logit_bias))


def sampling_from_pb(message: common_pb2.SamplingParams) -> SamplingParams:
    """Convert sampling parameters; what is unset takes the default."""
    bias = tuple(sorted(message.logit_bias.items()))
    return value_from_pb(SamplingParams, message, logit_bias=bias)


def session_to_pb(session: Session, *, fence: int, owner: str = "") -> common_pb2.SessionParams:
    """`fence` grows from request to request of the session; `owner` stands for the API key."""
    return message_of(
        common_pb2.SessionParams,
        session,
        sampling=sampling_to_pb(session.sampling),
        stop_token_ids=sorted(session.stop_token_ids),
        fence=fence,
        owner=owner,
    )


def session_from_pb(message: common_pb2.SessionParams) -> Session:
    """The request's parameters; the fence stays on the wire."""
    if not message.session_id:
        raise InvalidRequest("the session has no id")
    return value_from_pb(
        Session,
        message,
        sampling=sampling_from_pb(message.sampling),
        stop_token_ids=frozenset(message.stop_token_ids),
    )


def delta_to_pb(delta: Delta) -> common_pb2.Delta:
    return common_pb2.Delta(start=delta.start, tokens=delta.tokens)


def delta_from_pb(message: common_pb2.Delta) -> Delta:
    return Delta(message.start, tuple(message.tokens))


def plan_to_pb(plan: Plan, feed: draft_pb2.KvFeed | None) -> draft_pb2.Plan:
    """`feed` names where the draft reads keys and values, if any."""
    return message_of(draft_pb2.Plan, plan, feed=feed)


def verify_to_pb(delta: Delta, proposal: Proposal) -> target_pb2.VerifyProposal:
    """A round that is asked for; targets need no statistics. Raises what `proposal_to_pb` does."""
    return target_pb2.VerifyProposal(
        delta=delta_to_pb(delta), proposal=proposal_to_pb(proposal, with_stats=False)
    )


def verify_from_pb(message: target_pb2.VerifyProposal) -> tuple[Delta, Proposal]:
    """A round that is asked for."""
    if message.rivals:
        raise InvalidRequest("rivals are given, but targets compare no tokens with others any more")
    return delta_from_pb(message.delta), proposal_from_pb(message.proposal)


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
    check_verdict_counts(message)
    num_tokens, num_told = len(message.tokens), len(message.prompt_logprobs)
    return value_from_pb(
        Verdict,
        message,
        offer=_offer_from_pb(message),
        timing=timing,
        logprobs=_known_logprobs_from_pb(message.logprobs, num_tokens=num_tokens),
        prompt_logprobs=_known_logprobs_from_pb(message.prompt_logprobs, num_tokens=num_told),
    )


def _known_logprobs_from_pb(
    messages: Iterable[common_pb2.TokenLogprob], *, num_tokens: int
) -> tuple[TokenLogprob, ...]:
    """Convert the log-probabilities of a verdict: of each token, or of none."""
    known = tuple(item for item in logprobs_from_pb(messages) if item is not None)
    if len(known) not in (0, num_tokens):
        raise InvalidRequest(f"{len(known)} log-probabilities are of {num_tokens} tokens")
    return known


def _offer_from_pb(message: target_pb2.Verdict) -> Offer | None:
    """The offer; None for one that can't be, as a hint must not fail a round."""
    if not message.HasField("free_rows"):
        return None
    try:
        return Offer(
            message.free_rows,
            message.round_s if message.HasField("round_s") else None,
            _costs_from_pb(message),
        )
    except InvalidRequest:
        return None


def _costs_from_pb(message: target_pb2.Verdict) -> RowCosts | None:
    points = [*zip(message.cost_tokens[:MAX_POINTS], message.costs[:MAX_POINTS], strict=False)]
    return RowCosts(((1, 1.0), *points)) if points else None


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

"""Attributes of a round's spans."""

from collections import Counter

from slipstream.core.round import Round
from slipstream.core.types import Proposal, ReplyTiming, Verdict
from slipstream.telemetry.metric import Attributes, Value


def round_attributes(at: Round, selected: str) -> Attributes:
    """Return attributes of the round's span; `selected` says why it has one."""
    return {
        "slipstream.round.index": at.index,
        "slipstream.round.kind": at.kind,
        "slipstream.round.drafted": at.num_nodes,
        "slipstream.round.accepted": at.num_accepted,
        "slipstream.round.final": len(at.verdict.tokens),
        "slipstream.round.selected": selected,
    }


def proposal_attributes(at: Round) -> Attributes:
    """Return attributes of the span of a proposal: the plan, what came, and why no more."""
    proposal, plan = at.proposal, at.plan
    said: dict[str, Value] = {
        "slipstream.proposal.waited_ms": 1000 * at.proposing_s,
        "slipstream.plan.shape": plan.shape.value,
        "slipstream.plan.stop_policy": plan.stop.value,
        "slipstream.plan.max_depth": plan.max_depth,
        "slipstream.plan.max_nodes": plan.max_nodes,
    }
    if at.error is not None and at.verifying is None:  # no proposal came
        return said
    said.update(proposed_attributes(proposal))
    said["slipstream.proposal.copied"] = proposal.num_copied
    for source, count in Counter(proposal.sources).items():
        said[f"slipstream.proposal.sources.{source.value}"] = count
    if proposal.fallback is not None:
        said["slipstream.proposal.fallback"] = proposal.fallback
    if proposal.timing is not None:
        said["slipstream.proposal.kv_wait_ms"] = 1000 * proposal.timing.kv_wait_s
        said.update(_reply(proposal.timing))
    return said


def proposed_attributes(proposal: Proposal) -> Attributes:
    """Return attributes of a proposal, at the draft and at its caller.

    What the draft knew where it stopped is that of the last node of the longest path that it
    drafted. Entropy in nats; the score is the decision model's, where there is one.
    """
    depths = proposal.tree.depths()
    said: dict[str, Value] = {
        "slipstream.proposal.nodes": len(depths),
        "slipstream.proposal.depth": max(depths, default=0),
        "slipstream.proposal.stop_reason": proposal.stopped_by,
    }
    if proposal.staleness is not None:
        said["slipstream.proposal.staleness"] = proposal.staleness
    if proposal.stats:
        drafted = depths[: len(proposal.stats)]
        last = proposal.stats[drafted.index(max(drafted))]
        said["slipstream.proposal.entropy"] = last.entropy
        if last.score is not None:
            said["slipstream.proposal.score"] = last.score
    return said


def verdict_attributes(at: Round) -> Attributes:
    """Return attributes of the span of a verdict."""
    verdict = at.verdict
    said: dict[str, Value] = {
        "slipstream.verdict.waited_ms": 1000 * at.verifying_s,
        "slipstream.verdict.nodes": len(at.proposal.tree),
    }
    if at.error is not None:  # no verdict came
        return said
    said.update(decided_attributes(verdict))
    if verdict.timing is not None:
        said.update(_reply(verdict.timing))
    return said


def decided_attributes(verdict: Verdict) -> Attributes:
    """Return attributes of a verdict, at the target and at its caller."""
    said: dict[str, Value] = {
        "slipstream.verdict.accepted": verdict.num_accepted,
        "slipstream.verdict.final": len(verdict.tokens),
    }
    if verdict.finish_reason is not None:
        said["slipstream.verdict.finish_reason"] = verdict.finish_reason.value
    return said


def _reply(timing: ReplyTiming) -> Attributes:
    return {
        "slipstream.reply.service_ms": 1000 * timing.service_s,
        "slipstream.reply.queue_ms": 1000 * timing.queue_s,
        "slipstream.reply.engine_ms": 1000 * timing.engine_s,
    }

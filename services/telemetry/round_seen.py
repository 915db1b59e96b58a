"""One round as its request saw it: when, what was proposed, what came of it; and as attributes."""

from collections import Counter
from dataclasses import dataclass

from slipstream.core.types import Plan, Proposal, ReplyTiming, Verdict
from slipstream.telemetry.metric import Attributes, Value

PREFILL, SPECULATIVE, PLAIN = "prefill", "speculative", "plain"

Times = tuple[float, float]
"""Start and end, in seconds of a clock."""


@dataclass(slots=True)
class RoundSeen:
    """A round on its way; whole once it has a verdict. The first one has index 0: prefill."""

    index: int
    start_s: float
    plan: Plan | None = None
    proposal: Proposal | None = None
    proposing: Times | None = None
    verdict: Verdict | None = None
    verifying: Times | None = None
    error: BaseException | None = None
    """What broke it off."""

    @property
    def depth(self) -> int:
        """The longest path of draft tokens that could have been accepted."""
        if self.proposal is None:
            return 0
        return max(self.proposal.tree.depths(), default=0) - min(self._num_roots, 1)

    @property
    def num_nodes(self) -> int:
        """Draft tokens to verify."""
        return 0 if self.proposal is None else len(self.proposal.tree) - self._num_roots

    @property
    def num_accepted(self) -> int:
        """Those of them that became final."""
        if self.verdict is None:
            return 0
        return max(self.verdict.num_accepted - min(self._num_roots, 1), 0)

    @property
    def num_final(self) -> int:
        """Tokens that became final."""
        return 0 if self.verdict is None else len(self.verdict.tokens)

    @property
    def seconds(self) -> float:
        """From its beginning to its verdict."""
        return 0.0 if self.verifying is None else self.verifying[1] - self.start_s

    @property
    def kind(self) -> str:
        """What it was there for."""
        if self.index == 0:
            return PREFILL
        return SPECULATIVE if self.num_nodes else PLAIN

    @property
    def is_rejected(self) -> bool:
        """Whether nothing was kept of what was drafted."""
        return self.verdict is not None and self.num_nodes > 0 and self.num_accepted == 0

    @property
    def _num_roots(self) -> int:
        """Nodes of the tree that the target has drawn itself."""
        if self.plan is None or self.proposal is None or not len(self.proposal.tree):
            return 0
        return len(self.plan.roots)


def round_attributes(at: RoundSeen, selected: str) -> Attributes:
    """Return attributes of the round's span; `selected` says why it has one."""
    return {
        "slipstream.round.index": at.index,
        "slipstream.round.kind": at.kind,
        "slipstream.round.drafted": at.num_nodes,
        "slipstream.round.accepted": at.num_accepted,
        "slipstream.round.final": at.num_final,
        "slipstream.round.selected": selected,
    }


def proposal_attributes(at: RoundSeen) -> Attributes:
    """Return attributes of the span of a proposal: the plan, what came, and why no more."""
    proposal, plan = at.proposal, at.plan
    said: dict[str, Value] = {"slipstream.proposal.waited_ms": 1000 * seconds_of(at.proposing)}
    if plan is not None:
        said["slipstream.plan.shape"] = plan.shape.value
        said["slipstream.plan.stop_policy"] = plan.stop.value
        said["slipstream.plan.max_depth"] = plan.max_depth
        said["slipstream.plan.max_nodes"] = plan.max_nodes
    if proposal is None:
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
    """What a proposal says of itself, at the draft and where it was waited for.

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


def verdict_attributes(at: RoundSeen) -> Attributes:
    """Return attributes of the span of a verdict."""
    verdict = at.verdict
    said: dict[str, Value] = {
        "slipstream.verdict.waited_ms": 1000 * seconds_of(at.verifying),
        "slipstream.verdict.nodes": 0 if at.proposal is None else len(at.proposal.tree),
    }
    if verdict is None:
        return said
    said.update(decided_attributes(verdict))
    if verdict.timing is not None:
        said.update(_reply(verdict.timing))
    return said


def decided_attributes(verdict: Verdict) -> Attributes:
    """What a verdict says of itself, at the target and where it was waited for."""
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


def seconds_of(times: Times | None) -> float:
    """From start to end; 0 of what never began."""
    return 0.0 if times is None else times[1] - times[0]

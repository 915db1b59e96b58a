"""A tree that goes on growing while its round is verified, and what a verdict leaves of it.

The draft and the target own different devices, so one may compute while the other does: what lies
below the tokens that become final is the next proposal. (Speculative speculative decoding, T.
Kumar et al. 2026, holds a proposal for each likely outcome; here outcomes share one tree.) Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.errors import InvalidRequest
from slipstream.core.row_costs import num_paying
from slipstream.core.stop_reasons import AHEAD
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import NodeStats, Plan, Proposal

MAX_TREES = 3
"""Trees behind one proposal, each gone on with from the one before."""


@dataclass(frozen=True, slots=True)
class AheadTree:
    """A tree that a draft went on with, and the numbers of each node. Raises `InvalidRequest` for
    others than one of each, and for a probability that is none."""

    tree: TokenTree
    stats: Sequence[NodeStats]

    def __post_init__(self) -> None:
        is_right = all(0 <= node.prob <= 1 for node in self.stats)
        if len(self.stats) != len(self.tree) or not is_right:
            raise InvalidRequest(
                f"a tree of {len(self.tree)} nodes has {len(self.stats)} probabilities, not one"
                " from 0 to 1 for each node"
            )

    def below(self, tokens: Sequence[int], plan: Plan) -> Proposal | None:
        """Return what is below `tokens`, as a proposal that keeps to a plan.

        None where the tree does not have all of them, or nothing below that pays. Nodes are taken
        in the order of their probability to become final, as long as they bring more than they
        cost.
        """
        path = self.tree.matching(tokens)
        root = path[-1] if path else ROOT
        if len(path) < len(tokens) or not self.tree.children(root):
            return None
        probs, level = dict[int, float](), [root]
        for _ in range(plan.max_depth):
            level = [node for parent in level for node in self.tree.children(parent)]
            for node in level:
                # As a child never beats the node above it, the likeliest make a tree.
                probs[node] = probs.get(self.tree.parents[node], 1.0) * self.stats[node].prob
        ranked = sorted(sorted(probs), key=lambda node: -probs[node])[: plan.max_nodes]
        count = num_paying([probs[node] for node in ranked], plan.row_prices)
        if not count:
            return None
        kept = sorted(ranked[:count])
        tree = TokenTree.of_nodes(self.tree.tokens, self.tree.parents, kept, root)
        return Proposal(tree, tuple(self.stats[node] for node in kept), stopped_by=AHEAD)


class AheadTrees:
    """Trees that the draft of a request went on with."""

    MOST = 4
    """Trees that are held: an answer that is late may still fit what came meanwhile."""

    def __init__(self) -> None:
        self._trees: dict[int, AheadTree] = {}
        self._last_s = 0.0

    def __len__(self) -> int:
        return len(self._trees)

    def hold(self, start: int, tree: AheadTree) -> None:
        """Hold a tree behind `start` tokens, in the place of one that is there."""
        self._trees[start] = tree
        if len(self._trees) > self.MOST:
            del self._trees[min(self._trees)]

    def rest(self, tokens: Sequence[int], plan: Plan) -> Proposal | None:
        """Return what the trees have below `tokens`, the likeliest of them; None where they have
        nothing. Trees that don't go with the tokens are forgotten."""
        found = {start: tree.below(tokens[start:], plan) for start, tree in self._trees.items()}
        self._trees = {start: self._trees[start] for start, rest in found.items() if rest}
        return max(filter(None, found.values()), key=expected_tokens, default=None)

    def is_far(self, plan: Plan) -> bool:
        """Return whether a proposal took longer, the last time, than waiting for one is worth."""
        return plan.worth_s is not None and self._last_s > plan.worth_s

    def answered(self, seconds: float) -> None:
        """Learn that a proposal came so long after the request for it."""
        self._last_s = seconds


def expected_tokens(proposal: Proposal) -> float:
    """Return how many of its nodes are estimated to become final; 0 where it has no statistics."""
    probs: list[float] = []
    for parent, stats in zip(proposal.tree.parents, proposal.stats, strict=bool(proposal.stats)):
        probs.append(stats.prob * (1.0 if parent == ROOT else probs[parent]))
    return sum(probs)

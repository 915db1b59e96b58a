"""A tree of a draft's candidates: which are scored next, and which are proposed.

It grows level by level, from the likeliest nodes of the newest one (EAGLE-2, Y. Li et al. 2024,
sections 4.1 and 4.2). Bookkeeping only: no tensors, no model.
"""

from collections.abc import Sequence

from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import NodeStats, Proposal


class CandidateTree:
    """Candidates with the probabilities of their paths; nodes are in the order of their creation.

    A node may be scored once the one above it was.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._depths: list[int] = []
        self._stats: list[NodeStats] = []
        self._probs: list[float] = []
        self._open: list[int] = []
        """Nodes that were not scored."""

    def add(
        self, parent: int, tokens: Sequence[int], stats: Sequence[NodeStats], probs: Sequence[float]
    ) -> None:
        """Add the candidates below a node, or `ROOT`: a node is scored once only.

        `probs` are their estimated probabilities to follow it.
        """
        above = 1.0 if parent == ROOT else self._probs[parent]
        depth = 1 if parent == ROOT else self._depths[parent] + 1
        if parent != ROOT:
            self._open.remove(parent)
        self._open += range(len(self._tokens), len(self._tokens) + len(tokens))
        self._tokens += tokens
        self._parents += [parent] * len(tokens)
        self._depths += [depth] * len(tokens)
        self._stats += stats
        self._probs += [above * min(prob, 1.0) for prob in probs]  # which rounding may exceed

    def token(self, node: int) -> int:
        return self._tokens[node]

    def parent(self, node: int) -> int:
        return self._parents[node]

    def prob(self, node: int) -> float:
        """Return the probability of the path down to a node, or `ROOT`."""
        return 1.0 if node == ROOT else self._probs[node]

    def next(self, width: int, depth: int) -> list[int]:
        """Return the likeliest nodes of a depth, up to `width`, in creation order."""
        fitting = [node for node in self._open if self._depths[node] == depth]
        return sorted(sorted(fitting, key=lambda node: -self._probs[node])[:width])

    def best(self, max_nodes: int, stopped_by: str) -> Proposal:
        """Return the likeliest nodes as a proposal, with their statistics.

        A kept node's parent is kept, because it is no less likely and was created before.
        """
        ranked = sorted(range(len(self._tokens)), key=lambda node: -self._probs[node])
        kept = sorted(ranked[:max_nodes])
        stats = tuple(self._stats[node] for node in kept)
        tree = TokenTree.of_nodes(self._tokens, self._parents, kept)
        return Proposal(tree, stats, stopped_by=stopped_by)

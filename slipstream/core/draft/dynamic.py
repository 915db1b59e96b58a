"""EAGLE-2's dynamic tree: expand the most likely paths, then keep the most likely nodes.

(EAGLE-2, Y. Li et al. 2024, sections 4.1 and 4.2.) Bookkeeping only: no tensors, no model. A
path's score is the sum of the draft's log-probabilities along it, so it only falls with depth.
"""

from collections.abc import Sequence

from slipstream.core.tree import ROOT, TokenTree


class DynamicTree:
    """Remembers every candidate drafted in a round, by creation index, and picks among them.

    One round: `grow` the root, then again and again take the `frontier`, and grow each of its
    nodes; at last `rerank`.
    """

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._tokens: list[int] = []
        self._scores: list[float] = []
        self._level = 0

    def __len__(self) -> int:
        return len(self._tokens)

    def grow(self, node: int, tokens: Sequence[int], log_probs: Sequence[float]) -> None:
        """Remember `tokens`, with their log-probabilities, as children of `node` (or `ROOT`)."""
        if not ROOT <= node < self._level:
            raise ValueError(f"node {node} is not on a finished level of {self._level} nodes")
        score = 0.0 if node == ROOT else self._scores[node]
        for token, log_prob in zip(tokens, log_probs, strict=True):
            if not log_prob <= 0:
                raise ValueError(f"token {token} has log-probability {log_prob}, above 0")
            self._parents.append(node)
            self._tokens.append(token)
            self._scores.append(score + log_prob)

    def frontier(self, width: int) -> tuple[int, ...]:
        """The best `width` candidates of the newest level, and the level's end.

        In creation order; among equal scores the earlier ones are taken.
        """
        level = range(self._level, len(self))
        self._level = len(self)
        return tuple(sorted(self._best(level, width)))

    def score(self, node: int) -> float:
        """Log-probability of the path down to `node`."""
        return self._scores[node]

    def parent(self, node: int) -> int:
        """Creation index of the node above, or `ROOT`."""
        return self._parents[node]

    def token(self, node: int) -> int:
        """The token that `node` carries."""
        return self._tokens[node]

    def rerank(self, max_nodes: int) -> tuple[TokenTree, tuple[int, ...]]:
        """The best `max_nodes` of all levels as a tree, and their creation indices.

        Among equal scores the shallower, then earlier, stay. A kept node's parent is kept,
        because it scores no less and was created before.
        """
        kept = sorted(self._best(range(len(self)), max_nodes))
        return TokenTree.of_nodes(self._tokens, self._parents, kept), tuple(kept)

    def _best(self, nodes: range, count: int) -> list[int]:
        # Creation goes level by level, so that earlier is also shallower; sorting is stable.
        return sorted(nodes, key=lambda node: -self._scores[node])[:count]

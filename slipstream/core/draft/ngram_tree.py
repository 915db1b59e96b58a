"""A token tree out of guesses: the nodes that are most likely to become final, as far as they pay.

Best first: a node's probability to become final is never above its parent's, so taking the
likeliest candidate again and again gives the tree of that size with the most tokens expected
(EAGLE-2, 4.2, picks its nodes by the same sum). Pure; without sources and drafts.
"""

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from slipstream.core.draft.guesses import Guess
from slipstream.core.row_costs import num_paying
from slipstream.core.tree import ROOT, CopySource, TokenTree

LEAST = 0.02
"""Nodes that are less likely to become final are never proposed."""
_WORTH_OPENING = 1.1
"""Times its price that a node must be likely for its children to be looked up."""
GuessesAfter = Callable[[tuple[int, ...]], Sequence[Guess]]


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """Limits of a tree's size.

    `prices` are what the first, second … node costs, in tokens; () where nodes are free. Nothing
    follows `stop_token_ids`. A chain has one guess of every position.
    """

    max_depth: int
    max_nodes: int
    prices: Sequence[float] = ()
    stop_token_ids: Collection[int] = ()
    is_chain: bool = False


@dataclass(frozen=True, slots=True)
class Grown:
    """A tree whose last nodes were added: their sources, and probabilities to become final."""

    tree: TokenTree
    reaches: tuple[float, ...] = ()
    sources: tuple[CopySource, ...] = ()

    @property
    def covered(self) -> float:
        """Return the probability that the next token is among the added nodes."""
        added = zip(self.reaches[::-1], self.tree.parents[::-1], strict=False)
        return sum(reach for reach, parent in added if parent == ROOT)


class _Candidate(NamedTuple):
    """A node that may be added; its path ends with itself. In order: the likeliest first."""

    negative_reach: float
    number: int
    path: tuple[int, ...]
    source: CopySource
    parent: int

    @property
    def reach(self) -> float:
        return -self.negative_reach


class _Growing:
    def __init__(self, size: int, after: GuessesAfter, limits: TreeLimits) -> None:
        self._size, self._after, self._limits = size, after, limits
        # The lowest price of each node and those behind it, and 0 of one without a price.
        self._prices = [*list(accumulate(reversed(limits.prices), min))[::-1], 0.0]
        self._least = max(LEAST, self._prices[min(size, len(limits.prices))])
        self._heap: list[_Candidate] = []
        self._number = 0
        self.added: list[_Candidate] = []

    def open(
        self, node: int, path: tuple[int, ...], reach: float, known: Mapping[int, float]
    ) -> None:
        """Consider what may follow a node; `known` are its children's probabilities."""
        limits = self._limits
        is_over = len(path) >= limits.max_depth or (path and path[-1] in limits.stop_token_ids)
        if is_over or reach < self._least:
            return
        guesses = self._after(path)
        if limits.is_chain and guesses:
            guesses = [] if known else [max(guesses, key=lambda one: one.probability)]
        scale = reach * _rest(guesses, known)
        for token, probability, source in guesses:
            if scale * probability >= self._least and token not in known:
                one = _Candidate(-scale * probability, self._number, (*path, token), source, node)
                heapq.heappush(self._heap, one)
                self._number += 1

    def grow(self) -> None:
        limits, num_nodes = self._limits, self._size
        while self._heap and num_nodes < limits.max_nodes:
            one = heapq.heappop(self._heap)
            price = self._prices[min(num_nodes, len(limits.prices))]
            if one.reach <= price:
                return
            self.added.append(one)
            if one.reach > _WORTH_OPENING * price:
                self.open(num_nodes, one.path, one.reach, {})
            num_nodes += 1


def grow(
    base: TokenTree, probabilities: Sequence[float], after: GuessesAfter, limits: TreeLimits
) -> Grown:
    """Add to `base`, whose nodes follow their parents with these probabilities, what pays."""
    growing = _Growing(len(base), after, limits)
    reaches: list[float] = []
    paths: list[tuple[int, ...]] = []
    for node in range(ROOT, len(base)):
        if node != ROOT:
            parent = base.parents[node]
            above, path = (1.0, ()) if parent == ROOT else (reaches[parent], paths[parent])
            reaches.append(above * probabilities[node])
            paths.append((*path, base.tokens[node]))
        here, path = (1.0, ()) if node == ROOT else (reaches[node], paths[node])
        known = {base.tokens[child]: probabilities[child] for child in base.children(node)}
        growing.open(node, path, here, known)
    growing.grow()
    gains = [one.reach for one in growing.added]
    added = growing.added[: num_paying(gains, limits.prices[len(base) :])]
    tokens = (*base.tokens, *(one.path[-1] for one in added))
    parents = (*base.parents, *(one.parent for one in added))
    sources = tuple(one.source for one in added)
    return Grown(TokenTree(tokens, parents), tuple(gains[: len(added)]), sources)


def _rest(guesses: Sequence[Guess], known: Mapping[int, float]) -> float:
    """Return what to scale guesses with where some tokens have probabilities of another source."""
    if not known:
        return 1.0
    theirs = min(sum(known.values()), 1.0)
    shared = sum(guess.probability for guess in guesses if guess.token in known)
    return min((1.0 - theirs) / max(1.0 - shared, 1e-6), 1.0)

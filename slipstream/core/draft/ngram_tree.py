"""Guesses of the tokens that follow a session's text, by n-grams, and a token tree out of them: the
nodes that are most likely to become final, as far as they pay.

Best first: a node's probability to become final is never above its parent's, so taking the
likeliest candidate again and again gives the tree of that size with the most tokens expected
(EAGLE-2, 4.2, picks its nodes by the same sum). Pure; without sources and drafts.
"""

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from slipstream.core.draft.ngram import LATEST, Acceptance, NgramStore, OwnText
from slipstream.core.row_costs import num_paying
from slipstream.core.sequence import TokenSequence, common_prefix
from slipstream.core.tree import ROOT, CopySource, TokenTree
from slipstream.core.types import SamplingParams
from slipstream.core.verify.keyed_noise import Purpose, gumbels_of

NOISE_WEIGHT = 0.6
"""Scale of the noise, as the probabilities are estimates. (Sampled text of
SmolLM2-135M: with 0.6, guesses of 0.15, 0.25, 0.35, 0.45 held in 0.11, 0.19, 0.28, 0.40.)"""
DRAWN_DOUBT = 0.25
"""Part of a guess that does not hold at temperature 1. (SmolLM2-135M, Spec-Bench: without it,
guesses of 0.24, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85 held in 0.16, 0.28, 0.31, 0.37, 0.46, 0.51,
0.68.)"""
STORE_PRIOR = 0.7
"""Share of a store's probabilities that holds before anything was seen. (Greedy text of
SmolLM2-135M, of other kinds than the store was counted on: 0.66 to 0.73 for 0.1 to 0.5.)"""
_GROUPS = (2, 3, 6)
"""Copies behind matches of 1, of 2, of 3 to 5 and of more tokens are learnt about apart."""
_DOUBT = 2.0
"""Behind a match of n tokens the next one is right with a probability of n / (n + 2) until more is
known. (Greedy text of SmolLM2-135M, copied from itself: 0.25, 0.56, 0.62, 0.66, 0.71, 0.75 for n
from 1 to 6.)"""

_Path = tuple[int, ...]


class Guess(NamedTuple):
    """A token that may come next, how likely it is, and the first source that has it."""

    token: int
    probability: float
    source: CopySource


class Guesses:
    """One session's guesses. Every source is trusted as far as it was right in this session."""

    def __init__(self, store: NgramStore | None, sampling: SamplingParams) -> None:
        self._store = store
        self._sampling = sampling
        self._text = OwnText()
        self._own = [Acceptance() for _ in range(len(_GROUPS) + 1)]
        self._stored_share = Acceptance()
        self._copies: dict[_Path, tuple[int, int] | None] = {}
        """Token and match behind the text that ends at `_start` and a path."""
        self._stored: dict[_Path, Sequence[tuple[int, float]]] = {}
        """Continuations in the store, for the paths that were looked up."""
        self._weighed: dict[tuple[_Path, int, bool], Sequence[Guess]] = {}
        """Guesses made of both: a round may grow two trees."""
        self._start = 0
        self._sequence: TokenSequence | None = None

    def take(self, sequence: TokenSequence) -> None:
        """Take in what became final, and learn from it."""
        known = len(self._text.tokens) if self._sequence is sequence else 0
        same = common_prefix(self._text.tokens, sequence.tokens, start=known)
        self._sequence = sequence
        self._text.truncate(same)
        self._text.append(sequence.tokens[same:])
        if len(sequence) != self._start or same < self._start:
            final = tuple(self._text.tokens[same:])
            if same == self._start:
                self._learn(final)
                self._copies = _below(self._copies, final)
                self._stored = _below(self._stored, final)
            else:
                self._copies, self._stored = {}, {}
            self._weighed.clear()
            self._start = len(sequence)

    def after(self, path: _Path, *, shortest: int = 1, with_store: bool = True) -> Sequence[Guess]:
        """Return what may follow the text and `path`, each token once.

        Copies of the text count behind matches of at least `shortest` tokens, a store `with_store`.
        """
        key = path, shortest, with_store
        guesses = self._weighed.get(key)
        if guesses is None:
            guesses = self._weighed[key] = self._weigh(*key)
        return guesses

    def _weigh(self, path: _Path, shortest: int, with_store: bool) -> Sequence[Guess]:
        if path not in self._copies:
            self._copies[path] = self._text.after(path)
        copied, shares = self._copies[path], dict[int, float]()
        own, share = -1, 0.0
        if copied is not None and copied[1] >= shortest:
            own, match = copied
            share = self._own[bisect_right(_GROUPS, match)].share(match / (match + _DOUBT))
        if with_store:
            scale = (1.0 - share) * self._stored_share.share(STORE_PRIOR)
            shares = {token: scale * part for token, part in self._stored_after(path)}
        if share:
            shares = {own: share + shares.pop(own, 0.0), **shares}
        if shares and self._sampling.temperature:
            shares = self._drawn(shares, len(path))
        sources = CopySource.STORE, CopySource.LOOKUP
        return [Guess(token, share, sources[token == own]) for token, share in shares.items()]

    def _drawn(self, shares: dict[int, float], depth: int) -> dict[int, float]:
        """Return the probabilities as the target's own noise of the position changes them.

        The target draws by Gumbel-max, with noise that is a function of seed, position and token:
        what it adds to a token is known before its logits are.
        """
        seed, position = self._sampling.seed, len(self._text.tokens) + depth
        noise = gumbels_of(seed, position, shares, purpose=Purpose.DRAW)
        weights = {
            token: share * math.exp(NOISE_WEIGHT * added)
            for (token, share), added in zip(shares.items(), noise, strict=True)
        }
        total = sum(weights.values()) + max(1.0 - sum(shares.values()), 0.0)
        kept = 1.0 - DRAWN_DOUBT * min(self._sampling.temperature, 1.0)
        return {token: kept * weight / total for token, weight in weights.items()}

    def _stored_after(self, path: _Path) -> Sequence[tuple[int, float]]:
        if self._store is not None and path not in self._stored:
            self._stored[path] = self._store.after(
                (*reversed(path), *self._text.tokens[: -LATEST - 1 : -1])[:LATEST]
            )
        return self._stored.get(path, ())

    def _learn(self, final: Sequence[int]) -> None:
        """Learn from every place of the final text that was looked at, proposed or not."""
        path: _Path = ()
        for token in final:
            if path not in self._copies:
                return
            copied = self._copies[path]
            if copied is not None:
                own = self._own[bisect_right(_GROUPS, copied[1])]
                own.learn(1.0, is_right=copied[0] == token)
            if stored := self._stored.get(path):
                expected = sum(probability for _, probability in stored)
                is_right = any(one == token for one, _ in stored)
                self._stored_share.learn(expected, is_right=is_right)
            path = (*path, token)


def _below(found: dict[_Path, Any], final: _Path) -> dict[_Path, Any]:
    """Return what was found behind paths that begin with `final`, which is text now."""
    size = len(final)
    return {path[size:]: own for path, own in found.items() if path[:size] == final}


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

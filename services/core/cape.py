"""CaPE: runner-up leaves beside a drafted chain, more of them where the draft is unsure.

(GliDe with a CaPE, C. Du et al. 2024, section 4.2 and appendix A.) Pure arithmetic on token ids
and probabilities; knows nothing of tensors, models or how the tree is verified.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.tree import TokenTree

PAPER_TABLE = (7, 7, 7, 5, 5, 5, 3, 3, 1, 1)
"""Runner-ups by tenths of the chain token's probability.

Left-closed as in the released code: a probability of exactly 0.3 is in the fourth tenth, where
the paper's own table, right-closed, has it in the third. And 1.0 is in the last tenth, where
the paper's array ends one short of it.
"""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A runner-up in a tree: its node, the chain position (from 0) beside which it stands, and
    its rank among that position's candidates (from 0)."""

    node: int
    position: int
    rank: int


@dataclass(frozen=True, slots=True)
class Budget:
    """How many leaves to spend: `table` per chain position, `max_nodes` for the whole tree.

    A leaf whose chance to be reached and right is below `min_value` is not worth its row.
    """

    max_nodes: int
    table: tuple[int, ...] = PAPER_TABLE
    min_value: float = 0.0

    def __post_init__(self) -> None:
        if not self.table or min(self.table) < 0:
            raise ValueError(f"the CaPE table is {self.table}, but needs counts of 0 or more")


def runner_ups(top_prob: float, table: Sequence[int] = PAPER_TABLE) -> int:
    """How many runner-ups a slot gets whose most likely token has this probability.

    The index is clamped, so that rounding above 1 is harmless; no number counts as certainty.
    """
    if math.isnan(top_prob):
        return table[-1]
    return table[min(max(int(top_prob * len(table)), 0), len(table) - 1)]


def cape_tree(
    chain: Sequence[int],
    candidates: Sequence[Sequence[int]],
    *,
    top_probs: Sequence[float],
    budget: Budget,
    probs: Sequence[Sequence[float]] | None = None,
) -> TokenTree:
    """The chain, then its leaves by position and rank. See `cape_leaves`."""
    leaves = cape_leaves(chain, candidates, top_probs=top_probs, budget=budget, probs=probs)
    tokens = [*chain, *(candidates[leaf.position][leaf.rank] for leaf in leaves)]
    parents = [*range(-1, len(chain) - 1), *(leaf.position - 1 for leaf in leaves)]
    return TokenTree(tuple(tokens), tuple(parents))


def cape_leaves(
    chain: Sequence[int],
    candidates: Sequence[Sequence[int]],
    *,
    top_probs: Sequence[float],
    budget: Budget,
    probs: Sequence[Sequence[float]] | None = None,
) -> tuple[Leaf, ...]:
    """The leaves of `cape_tree`, in node order.

    `candidates[i]` are the runner-ups of chain position i, best (or first drawn) first, the
    chain's token excluded. Where the budget is short, the leaves most likely to be reached and
    right are kept: the product of `top_probs` before the position, times the leaf's own
    probability. Each position keeps its first ones. Give no `probs` when the candidates are
    draws: how many stay must not depend on which they are.
    """
    if len(candidates) != len(chain) or len(top_probs) != len(chain):
        raise ValueError(
            f"a chain of {len(chain)} has {len(candidates)} candidate lists and"
            f" {len(top_probs)} probabilities"
        )
    if len(chain) > budget.max_nodes:
        raise ValueError(f"the chain has {len(chain)} tokens, but {budget.max_nodes} nodes fit")
    ranked: list[tuple[float, int, int]] = []
    reach = 1.0
    for position, top_prob in enumerate(top_probs):
        count = min(runner_ups(top_prob, budget.table), len(candidates[position]))
        own = probs[position][:count] if probs is not None else _guessed(top_prob, count)
        value = math.inf
        for rank, prob in enumerate(own):
            value = min(value, reach * prob)
            ranked.append((-value, position, rank))
        reach *= top_prob
    worth = [leaf for leaf in ranked if -leaf[0] >= budget.min_value]
    kept = sorted(worth)[: budget.max_nodes - len(chain)]
    places = sorted((position, rank) for _, position, rank in kept)
    return tuple(Leaf(len(chain) + index, *place) for index, place in enumerate(places))


def _guessed(top_prob: float, count: int) -> list[float]:
    """What the rest of the mass may give each runner-up: half, a quarter, and so on."""
    return [max(1 - top_prob, 0.0) * 0.5 ** (rank + 1) for rank in range(count)]

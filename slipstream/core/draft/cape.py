"""CaPE: runner-up leaves beside a drafted chain, more of them where the draft is unsure.

(GliDe with a CaPE, C. Du et al. 2024, section 4.2 and appendix A.) Pure arithmetic on token ids
and probabilities, without tensors, models or verification.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.row_costs import num_paying
from slipstream.core.tree import TokenTree

PAPER_TABLE = (7, 7, 7, 5, 5, 5, 3, 3, 1, 1)
"""Runner-ups by tenths of the chain token's probability.

Left-closed as in the released code: a probability of exactly 0.3 is in the fourth tenth, where
the paper's own table, right-closed, has it in the third. And 1.0 is in the last tenth, where
the paper's array ends one short of it.
"""


@dataclass(frozen=True, slots=True)
class Chain:
    """A drafted chain: its tokens, and at each position the runner-ups, best or first drawn first.

    `top_probs` are the draft's of each position's likeliest token. `acceptances` are the estimated
    probabilities that a position's own token is accepted if the one before it is, and `probs` the
    draft's of its runner-ups; both None where candidates are draws, of which none may be preferred
    for the token that it is.
    """

    tokens: Sequence[int]
    runner_ups: Sequence[Sequence[int]]
    top_probs: Sequence[float]
    acceptances: Sequence[float] | None = None
    probs: Sequence[Sequence[float]] | None = None


def runner_ups(top_prob: float, table: Sequence[int] = PAPER_TABLE) -> int:
    """Return the number of runner-ups of a position whose most likely token has this probability.

    The index is clamped, so that rounding above 1 is harmless; no number counts as certainty.
    """
    if math.isnan(top_prob):
        return table[-1]
    return table[min(max(int(top_prob * len(table)), 0), len(table) - 1)]


def cape_tree(
    chain: Chain, max_nodes: int, table: Sequence[int] = PAPER_TABLE, prices: Sequence[float] = ()
) -> TokenTree:
    """Return the chain, then its leaves by position and rank, as far as they are worth their time:
    up to `table` of them at a position, and `max_nodes` in all. `prices` are what the tree's first,
    second … node costs, in tokens; () where nodes are free.

    What fits is the chain and its likeliest leaves. Of these, nodes are taken in the order of their
    estimated probability to become final, as long as they bring more than they cost; draws, all.
    """
    ranked = sorted(_ranked(chain, table))
    leaves = [node for node in ranked if node[2]][: max_nodes - len(chain.tokens)]
    nodes = sorted([*(node for node in ranked if not node[2]), *leaves])
    values = [-node[0] for node in nodes]
    is_drawn = chain.acceptances is None
    count = len(nodes) if is_drawn else num_paying(values, prices)
    places = sorted((rank > 0, position, rank) for _, position, rank in nodes[:count])
    tokens = [
        chain.runner_ups[position][rank - 1] if rank else chain.tokens[position]
        for _, position, rank in places
    ]
    return TokenTree(tuple(tokens), tuple(position - 1 for _, position, _ in places))


def _ranked(chain: Chain, table: Sequence[int]) -> list[tuple[float, int, int]]:
    """Return every node's negated value, position and rank there, 0 for the chain's."""
    ranked: list[tuple[float, int, int]] = []
    reach = 1.0
    for position, top_prob in enumerate(chain.top_probs):
        own = top_prob if chain.acceptances is None else chain.acceptances[position]
        value = reach * own if chain.acceptances is not None else math.inf
        ranked.append((-value, position, 0))
        count = min(runner_ups(top_prob, table), len(chain.runner_ups[position]))
        for rank, share in enumerate(_shares(chain, position, count), 1):
            value = min(value, reach * (1 - own) * share)
            ranked.append((-value, position, rank))
        reach *= own
    return ranked


def _shares(chain: Chain, position: int, count: int) -> list[float]:
    """Return each runner-up's share of the probability that the first candidate leaves."""
    if chain.probs is None:
        return [0.5 ** (rank + 1) for rank in range(count)]
    rest = max(1 - chain.top_probs[position], 1e-6)
    return [min(prob / rest, 1.0) for prob in chain.probs[position][:count]]

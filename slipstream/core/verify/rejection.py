"""Rejection sampling at one position: which candidate stays, or the distribution that is left.

Uniform numbers are arguments, so that the probability of every outcome can be enumerated. `p` is
the target's distribution at the position, `q` (or `proposed`) the draft's. No trees, no noise.
"""

from collections.abc import Callable, Sequence

import numpy as np

from slipstream.core.types import SparseDistribution
from slipstream.core.verify.noise import Floats, Ids


def multi_candidate(
    p: Floats,
    proposed: SparseDistribution,
    candidates: Sequence[int],
    *,
    uniform: Callable[[int], float],
    replacement: bool,
) -> tuple[int | None, Floats]:
    """Recursive rejection sampling over `candidates`, in the order they were drawn from `proposed`.

    Return the index of the candidate that stays, None when all were rejected, and what [V] is then
    left: the distribution, up to its mass, that the token is to be drawn from.

    Candidate x stays if uniform(its index) < p[x] / q[x], strictly: a token of p[x] = 0 must
    not slip through on a uniform of 0. After a rejection p becomes the normalised positive
    part of p - q; without replacement q then loses x and is renormalised, because the next
    candidate was drawn from that. (MCSD, N. Yang et al. 2024; algorithms 2 and 3.)

    `p` [V] sums to 1 and is left as it is. Tokens outside `proposed` have q = 0. Where p - q has
    no positive part, which only rounding can bring about, p stays.
    """
    ids, q = _proposed(proposed, p)
    place = {token: index for index, token in enumerate(proposed.tokens)}
    mass = 1.0
    for index, token in enumerate(candidates):
        if uniform(index) * float(q[place[token]]) * mass < float(p[token]):
            return index, p
        p, mass = _rejected(p, mass, ids, q)
        if not replacement:
            q = _without(q, place[token])
    return None, p


def branch_test(p: Floats, proposed: SparseDistribution, token: int, u: float) -> bool:
    """Return whether `token`, drawn from `proposed`, passes u < p / q on its own."""
    q = proposed.probs[proposed.tokens.index(token)] / sum(proposed.probs)
    return u * q < float(p[token])


def residual(p: Floats, proposed: SparseDistribution) -> Floats:
    """The positive part of p - q [V], not normalised; p where there is none."""
    return _rejected(p, 1.0, *_proposed(proposed, p))[0]


def draw(weights: Floats, u: float) -> int:
    """The token at which the cumulative mass of `weights` [V] exceeds `u` of the whole.

    A token of weight 0 is never drawn: in float64 `u` below 1 leaves less than the whole.
    """
    mass = weights.cumsum(dtype=np.float64)
    return int(np.searchsorted(mass, u * mass[-1], side="right"))


def _proposed(proposed: SparseDistribution, p: Floats) -> tuple[Ids, Floats]:
    """Return the tokens [n] of a distribution and their probabilities [n], which sum to 1, in the
    dtype of `p`."""
    q = np.array(proposed.probs, p.dtype)
    return np.array(proposed.tokens, np.int64), q / q.sum()


def _rejected(p: Floats, mass: float, ids: Ids, q: Floats) -> tuple[Floats, float]:
    """p of the given mass less q, and its new mass. Only the tokens of q change."""
    left = p.copy()
    left[ids] = np.maximum(p[ids] - mass * q, 0)
    remaining = float(left.sum())
    return (left, remaining) if remaining > 0 else (p, mass)


def _without(q: Floats, index: int) -> Floats:
    q = q.copy()
    q[index] = 0
    total = q.sum()
    return q / total if total > 0 else q

"""Scores of a position: softmax, the best and the best few, in an exact order.

Every order is (value descending, id ascending): ties are the rule in bf16, and an unstable order
would make two replicas disagree.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ModelError
from slipstream.core.verify.noise import Floats

_BLOCK = 32


def ordered_top(scores: Floats, k: int) -> tuple[Floats, NDArray[np.int64]]:
    """The `k` best of `scores` [V] fp32 with their ids, both [min(k, V)].

    Value descending, id ascending, also where the k-th value is tied; never a sort of the row.
    Raises `ModelError` for scores that are no numbers.

    The k-th largest of the maxima of disjoint blocks bounds the k-th value from below, and is
    cheap; everything tied with the k-th value reaches it. The few that do are sorted.
    """
    if k < 1:
        raise ValueError(f"the {k} best tokens were asked for, but must be at least 1")
    size = len(scores)
    k = min(k, size)
    num_blocks = size // _BLOCK
    pool = scores
    if num_blocks >= 2 * k:
        pool = scores[: num_blocks * _BLOCK].reshape(_BLOCK, num_blocks).max(0)
    bound = pool.max() if k == 1 else np.partition(pool, len(pool) - k)[len(pool) - k]
    ids = np.flatnonzero(scores >= bound)
    if len(ids) < k:  # what is no number compares with none
        raise ModelError("a position has scores that are no numbers")
    best = ids[np.argsort(-scores[ids], kind="stable")[:k]]
    return scores[best], best


def argmax_first(scores: Floats) -> int:
    """Id of the largest of `scores` [V], the smallest id among equals.

    Raises `ModelError` where the largest is infinite or no number: no token would be right.
    """
    best = int(scores.argmax())
    if not math.isfinite(largest := float(scores[best])):
        raise ModelError(f"the best score of a position is {largest}, so no token can be chosen")
    return best


def softmax(scores: NDArray[Any]) -> NDArray[Any]:
    """Return the softmax of `scores` [n], of which the best is finite, in their dtype."""
    probs: NDArray[Any] = np.exp(scores - scores.max())
    probs /= probs.sum()
    return probs

"""Choosing candidate tokens: exact order, coupled noise, and draws with and without replacement.

Every order is (value descending, id ascending): ties are the rule in bf16, and an unstable order
would make two replicas disagree. Knows nothing of trees, sessions or how candidates are verified.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import InvalidRequest, ModelError
from slipstream.core.types import SparseDistribution
from slipstream.core.verify.keyed_noise import Purpose, uniform
from slipstream.core.verify.noise import Floats, Ids, gumbel
from slipstream.core.verify.rejection import draw

_BLOCK = 32
SHARPNESS = 1.12
"""Factor of a draft's scores before noise is added: its distributions are flatter than a target's
at the same temperature."""


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


def coupled(scores: Floats, seed: int, *, position: int, ids: Ids | int) -> Floats:
    """Sharpened scores [n] perturbed with the noise the target will use at `position`.

    `scores` are the draft's logits divided by the temperature, `ids` [n] their ids in the
    target's vocabulary (an int: all of it). The best of the result are the tokens the target
    most likely draws there, with the probabilities of its softmax. For `exact` verification only:
    elsewhere it would bias the output.
    """
    noise = gumbel(seed, position, ids, purpose=Purpose.DRAW)
    noise += SHARPNESS * scores
    return noise


def sparse_distribution(scores: Floats, size: int) -> SparseDistribution:
    """The distribution of `scores` [V] (softmax) cut to its `size` best tokens and renormalised.

    Tokens of score -inf are left out, so the distribution may be smaller than `size`.
    """
    values, ids = ordered_top(scores, size)
    probs = softmax(values.astype(np.float64))
    support = np.count_nonzero(probs)
    return SparseDistribution(tuple(ids[:support].tolist()), tuple(probs[:support].tolist()))


def draw_without_replacement(
    distribution: SparseDistribution, k: int, *, seed: int, position: int
) -> tuple[int, ...]:
    """Up to `k` different tokens of `distribution`, in the order drawn, or its whole support.

    Gumbel top-k, which is sequential sampling without replacement (W. Kool et al., 2019).
    """
    probs, ids = np.array(distribution.probs), np.array(distribution.tokens)
    ids, probs = ids[probs > 0], probs[probs > 0]
    noise = gumbel(seed, position, ids, purpose=Purpose.CANDIDATE)
    order = np.argsort(-(np.log(probs) + noise), kind="stable")
    return tuple(ids[order[:k]].tolist())


def draw_with_replacement(
    distribution: SparseDistribution, k: int, *, seed: int, position: int
) -> tuple[int, ...]:
    """`k` independent draws from `distribution`, repeats included."""
    probs = np.array(distribution.probs)
    if not probs.any():
        raise InvalidRequest("a distribution without any probability has no token to draw")
    numbers = (uniform(seed, position, Purpose.CANDIDATE, index) for index in range(k))
    return tuple(distribution.tokens[draw(probs, u)] for u in numbers)

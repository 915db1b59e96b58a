"""Choosing candidate tokens: exact order, coupled noise, and draws with and without replacement.

Every order is (value descending, id ascending): ties are the rule in bf16, and an unstable order
would make two replicas disagree. Independent of trees, sessions and verification.
"""

import numpy as np

from slipstream.core.errors import InvalidRequest
from slipstream.core.types import SparseDistribution
from slipstream.core.verify.distribution import ordered_top, softmax
from slipstream.core.verify.keyed_noise import Purpose, uniform
from slipstream.core.verify.noise import Floats, Ids, gumbel
from slipstream.core.verify.rejection import draw

SHARPNESS = 1.12
"""Factor of a draft's scores before noise is added: its distributions are flatter than a target's
at the same temperature."""


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

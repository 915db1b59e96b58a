"""Choosing candidate tokens: exact order, coupled noise, and draws with and without replacement.

Every order is (value descending, id ascending): ties are the rule in bf16, and an unstable order
would make two replicas disagree. Knows nothing of trees, sessions or how candidates are verified.
"""

import math

import numpy as np
import torch
from torch import Tensor

from slipstream.core.errors import InvalidRequest, ModelError
from slipstream.core.types import SparseDistribution
from slipstream.core.verify.keyed_noise import Purpose, uniform
from slipstream.core.verify.noise import gumbel

_LOW = 2**32 - 1
_BLOCK = 32


def ordered_top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` best of `scores` [V] or [n, V] fp32 with their ids, both [..., min(k, V)].

    Value descending, id ascending, also where the k-th value is tied; never a sort of a row.
    Scores that are no number come first on a device; on the host they raise `ModelError`.
    """
    if k < 1:
        raise ValueError(f"the {k} best tokens were asked for, but must be at least 1")
    k = min(k, scores.shape[-1])
    if scores.device.type != "cpu":
        return top_by_key(scores, k)
    if scores.dim() == 1:
        return _top_by_bound(scores, k)
    rows = [_top_by_bound(row, k) for row in scores]
    return torch.stack([values for values, _ in rows]), torch.stack([ids for _, ids in rows])


def _top_by_bound(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Bound the k-th value from below on the host, then sort the few that reach the bound.

    The k-th largest of the maxima of disjoint blocks is such a bound, and cheap; everything
    tied with the k-th value reaches it. Ten times faster here than a selection over the row.
    """
    row = scores.numpy()
    size = row.shape[0]
    num_blocks = size // _BLOCK
    pool = row
    if num_blocks >= 2 * k:
        pool = row[: num_blocks * _BLOCK].reshape(_BLOCK, num_blocks).max(0)
    bound = np.partition(pool, pool.shape[0] - k)[pool.shape[0] - k]
    ids = np.flatnonzero(row >= bound)
    if len(ids) < k:  # what is no number compares with none
        raise ModelError("a position has scores that are no numbers")
    best = ids[np.argsort(-row[ids], kind="stable")[:k]]
    return torch.from_numpy(row[best]), torch.from_numpy(best)


def top_by_key(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`ordered_top` on a device: value and reversed id make one 64-bit key, so that no two keys
    are equal. Needs no synchronisation with the host; `k` is at most V.
    """
    size = scores.shape[-1]
    # Adding zero turns -0.0, whose bits differ, into the 0.0 that it equals.
    bits = (scores + 0.0).view(torch.int32)
    order = bits ^ (bits >> 31 & 0x7FFFFFFF)
    reversed_ids = torch.arange(size - 1, -1, -1, device=scores.device)
    keys = order.to(torch.int64).mul_(2**32).add_(reversed_ids)
    ids = size - 1 - (keys.topk(k).values & _LOW)
    return scores.gather(-1, ids), ids


def argmax_first(scores: Tensor) -> int:
    """Id of the largest of `scores` [V], the smallest id among equals.

    Raises `ModelError` where the largest is infinite or no number: no token would be right.
    """
    is_on_host = scores.device.type == "cpu"  # where numpy is several times faster than torch
    best = int(scores.numpy().argmax() if is_on_host else scores.argmax())
    if not math.isfinite(largest := float(scores[best])):
        raise ModelError(f"the best score of a position is {largest}, so no token can be chosen")
    return best


def places(mask: Tensor) -> Tensor:
    """Indices [n] where `mask` [V] is true, ascending."""
    if mask.device.type == "cpu":  # several times faster than torch's
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero()[:, 0]


def coupled(scores: Tensor, seed: int, *, position: int, ids: Tensor | int) -> Tensor:
    """Scores [n] perturbed with the noise the target will use at `position`.

    `scores` are the draft's logits divided by the temperature, `ids` [n] their ids in the
    target's vocabulary (an int: all of it). The best of the result are the tokens the target
    most likely draws there. For `exact` verification only: elsewhere it would bias the output.
    """
    return scores + gumbel(seed, position, ids, purpose=Purpose.DRAW).to(scores.device)


def sparse_distribution(scores: Tensor, size: int) -> SparseDistribution:
    """The distribution of `scores` [V] (softmax) cut to its `size` best tokens and renormalised.

    Tokens of score -inf are left out, so the distribution may be smaller than `size`.
    """
    values, ids = ordered_top(scores, size)
    probs = torch.softmax(values.double(), -1)
    support = int((probs > 0).sum())
    return SparseDistribution(tuple(ids[:support].tolist()), tuple(probs[:support].tolist()))


def draw_without_replacement(
    distribution: SparseDistribution, k: int, *, seed: int, position: int
) -> tuple[int, ...]:
    """Up to `k` different tokens of `distribution`, in the order drawn, or its whole support.

    Gumbel top-k, which is sequential sampling without replacement (W. Kool et al., 2019).
    """
    log_probs = torch.tensor(distribution.probs, dtype=torch.float64).log()
    ids = torch.tensor(distribution.tokens, dtype=torch.int64)
    noise = gumbel(seed, position, ids, purpose=Purpose.CANDIDATE)
    order = (log_probs + noise).sort(descending=True, stable=True).indices
    support = sum(prob > 0 for prob in distribution.probs)
    return tuple(ids[order[: min(k, support)]].tolist())


def draw_with_replacement(
    distribution: SparseDistribution, k: int, *, seed: int, position: int
) -> tuple[int, ...]:
    """`k` independent draws from `distribution`, repeats included."""
    return tuple(
        _inverse(distribution, uniform(seed, position, Purpose.CANDIDATE, index))
        for index in range(k)
    )


def _inverse(distribution: SparseDistribution, u: float) -> int:
    """The token at which the cumulative mass of `distribution` exceeds `u` of its total."""
    remaining = u * sum(distribution.probs)
    last = None
    for token, prob in zip(distribution.tokens, distribution.probs, strict=True):
        if prob > 0:
            last = token
            remaining -= prob
            if remaining < 0:
                return token
    if last is None:
        raise InvalidRequest("a distribution without any probability has no token to draw")
    return last

"""A slow, obvious referee: the distributions of verification in exact fractions, by enumeration.
Written from the algorithms, not from the code it judges, and shares nothing with it."""

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

Distribution = tuple[Fraction, ...]


def distribution(*weights: int) -> Distribution:
    return tuple(Fraction(weight, sum(weights)) for weight in weights)


def total_variation(a: Sequence[Fraction | float], b: Sequence[Fraction | float]) -> float:
    """Half the sum of absolute differences: the largest difference of any event's probability."""
    return float(sum(abs(x - y) for x, y in zip(a, b, strict=True)) / 2)


def normalise(weights: Sequence[Fraction]) -> Distribution:
    total = sum(weights, Fraction(0))
    return tuple(weight / total for weight in weights)


def residual(p: Distribution, q: Distribution) -> Distribution:
    """The normalised positive part of p - q; p where there is none."""
    excess = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    return normalise(excess) if any(excess) else p


def without(q: Distribution, token: int) -> Distribution:
    left = [Fraction(0) if index == token else weight for index, weight in enumerate(q)]
    return normalise(left) if any(left) else q


def draws(
    q: Distribution, k: int, *, replacement: bool
) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """Every sequence of k tokens drawn from q, with its probability."""
    for tokens in itertools.product(range(len(q)), repeat=k):
        chance, left = Fraction(1), q
        for token in tokens:
            chance *= left[token]
            if not replacement and chance:
                left = without(left, token)
        if chance:
            yield tokens, chance


def multi_candidate_keeping_q(p: Distribution, q: Distribution, k: int) -> Distribution:
    """The distribution of one slot's token under recursive rejection sampling with k candidates,
    where q stays as it is although the draws were without replacement: the mistake that the real
    thing must not make."""
    out = [Fraction(0)] * len(p)
    for tokens, chance in draws(q, k, replacement=False):
        left_p, alive = p, chance
        for token in tokens:
            accept = min(Fraction(1), left_p[token] / q[token]) if q[token] else 1
            out[token] += alive * accept
            alive *= 1 - accept
            left_p = residual(left_p, q)
        for token, weight in enumerate(left_p):
            out[token] += alive * weight
    return tuple(out)


def target_initialised(p: Distribution, acceptance: Sequence[Fraction], width: int) -> Distribution:
    """The distribution of the root that stays, of `width` drawn from p without replacement.
    Each root's one draft token is accepted with the probability `acceptance` gives for that
    root; the longest branch stays, the first drawn among equals."""
    out = [Fraction(0)] * len(p)
    for roots, chance in draws(p, width, replacement=False):
        for hits in itertools.product((False, True), repeat=width):
            weight = chance
            for root, hit in zip(roots, hits, strict=True):
                weight *= acceptance[root] if hit else 1 - acceptance[root]
            out[roots[hits.index(max(hits))]] += weight
    return tuple(out)


def top_p(weights: Sequence[Fraction], limit: Fraction) -> set[int]:
    """The fewest most likely tokens whose mass reaches `limit`, smaller ids first among equals."""
    kept: set[int] = set()
    mass = Fraction(0)
    for token in sorted(range(len(weights)), key=lambda t: (-weights[t], t)):
        if mass >= limit * sum(weights):
            break
        kept.add(token)
        mass += weights[token]
    return kept


def logs(*weights):
    with np.errstate(divide="ignore"):
        return np.log(np.float32([float(weight) for weight in weights]))

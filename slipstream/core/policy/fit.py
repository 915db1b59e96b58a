"""Fit of a calibration: acceptance by the draft's confidence, from outcomes of drafted tokens."""

from collections.abc import Iterable, Sequence

from slipstream.core.policy.stop import Calibration

NUM_POINTS = 11
"""Points of a calibration: by tenths, which some hundred tokens suffice for."""
_PRIOR = 2.0
"""Tokens that each point is given beforehand, accepted as often as the draft is confident."""


def fit_calibration(outcomes: Iterable[tuple[float, bool]]) -> Calibration:
    """Return acceptance by confidence: bins around evenly spaced points, then made monotone.

    An outcome is the draft's top-1 probability, and whether its token was accepted.
    """
    hits = [_PRIOR * point / (NUM_POINTS - 1) for point in range(NUM_POINTS)]
    counts = [_PRIOR] * NUM_POINTS
    for confidence, is_accepted in outcomes:
        point = round(min(confidence, 1.0) * (NUM_POINTS - 1))
        counts[point] += 1
        hits[point] += is_accepted
    shares = [hit / count for hit, count in zip(hits, counts, strict=True)]
    return Calibration(tuple(round(share, 4) for share in monotone(shares, counts)))


def monotone(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the ascending sequence nearest in weighted squares (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, low_weight, low_size), (high, high_weight, high_size) = pools[-2:]
            total = low_weight + high_weight
            mean = (low * low_weight + high * high_weight) / total
            pools[-2:] = [(mean, total, low_size + high_size)]
    return [value for value, _, size in pools for _ in range(size)]

"""Percentiles, medians and ratios with intervals. Pure; knows nothing of what is measured."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import InvalidRequest

PERCENTS = (50, 90, 95, 99)
CONFIDENCE = 0.95
_RESAMPLES = 2000
_SEED = 9
Totals = NDArray[np.float64]
"""Tokens and seconds of every batch, [batches, 2]."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Median of some values, and how sure that is.

    `low` and `high` are two of the values. In `coverage` of all samples of this size the median
    of what was sampled lies between them, whatever its law.
    """

    median: float
    low: float
    high: float
    coverage: float
    count: int


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of the values lie, linear between neighbours."""
    if not values:
        raise InvalidRequest("no values have no percentile")
    if not 0 <= percent <= 100:
        raise InvalidRequest(f"the percentile is {percent}, but must be from 0 to 100")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return percentiles and mean by name; None of no values."""
    if not values:
        return None
    shown = {f"p{percent}": percentile(values, percent) for percent in PERCENTS}
    return shown | {"mean": fmean(values)}


def median_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the median, between the nearest order statistics that cover it with this confidence.

    Fewer than 6 values can't reach 95%: then all of them are between `low` and `high`, and
    `coverage` says what that is worth. None of no values.
    """
    if not values:
        return None
    ordered, count = sorted(values), len(values)
    cut = _num_cut(count, confidence)
    return Interval(
        float(median(ordered)), ordered[cut], ordered[-1 - cut], _coverage(count, cut), count
    )


def _num_cut(count: int, confidence: float) -> int:
    """Return how many values may lie outside on each side."""
    cut = 0
    while 2 * (cut + 1) < count and _coverage(count, cut + 1) >= confidence:
        cut += 1
    return cut


def _coverage(count: int, cut: int) -> float:
    """Return the probability that more than `cut` values lie on either side of the median."""
    outside: float = sum(math.comb(count, below) for below in range(cut + 1)) / 2**count
    return 1 - 2 * outside


def paired(
    subject: Sequence[float | None], base: Sequence[float | None]
) -> dict[str, float] | None:
    """Return median and interval of subject over base, repeat by repeat; None without a pair."""
    found = [a / b for a, b in zip(subject, base, strict=True) if a is not None and b]
    interval = median_interval(found)
    return None if interval is None else asdict(interval)


def rate(totals: Totals) -> float:
    """Return tokens per second of all batches together."""
    tokens, seconds = totals.sum(axis=0)
    return float(tokens / seconds)


def resampled_ratio(ours: Totals, theirs: Totals) -> dict[str, float | None]:
    """Return the rate over that of others, and where 95% of resampled ratios lie.

    Batches are drawn anew with replacement, those of both together. A single one has no interval.
    """
    value = rate(ours) / rate(theirs)
    if len(ours) < 2:
        return {"ratio": value, "low": None, "high": None}
    drawn = np.random.default_rng(_SEED).integers(len(ours), size=(_RESAMPLES, len(ours)))
    sums = [of[drawn].sum(axis=1) for of in (ours, theirs)]
    rates = [of[:, 0] / of[:, 1] for of in sums]
    low, high = np.quantile(rates[0] / rates[1], [0.025, 0.975])
    return {"ratio": value, "low": float(low), "high": float(high)}


def quotient(value: float | None, by: float | None) -> float | None:
    """Return value / by; None where either is missing or `by` is 0."""
    return value / by if value is not None and by else None

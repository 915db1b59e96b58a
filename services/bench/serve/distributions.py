"""Percentiles, and medians with intervals. Pure; knows nothing of what is measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from slipstream.core.errors import InvalidRequest

PERCENTS = (50, 90, 95, 99)
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """The median of some values, and how sure that is.

    `low` and `high` are two of the values. In `coverage` of all samples of this size the median
    of what was sampled lies between them, whatever its law.
    """

    median: float
    low: float
    high: float
    coverage: float
    count: int


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, linear between neighbours."""
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
    """Percentiles and mean by name; None of no values."""
    if not values:
        return None
    shown = {f"p{percent}": percentile(values, percent) for percent in PERCENTS}
    return shown | {"mean": fmean(values)}


def median_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval | None:
    """The median, between the nearest order statistics that cover it with this confidence.

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
    """How many values may lie outside on each side."""
    cut = 0
    while 2 * (cut + 1) < count and _coverage(count, cut + 1) >= confidence:
        cut += 1
    return cut


def _coverage(count: int, cut: int) -> float:
    """The chance that more than `cut` of `count` values are below the median, and above it."""
    outside: float = sum(math.comb(count, below) for below in range(cut + 1)) / 2**count
    return 1 - 2 * outside

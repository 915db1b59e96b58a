"""What a step costs by rows and sessions, out of steps of all sizes. Pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

MOST_ROWS = 256


@dataclass(frozen=True, slots=True)
class StepSeen:
    """A step of so many rows of so many sessions took so long."""

    rows: int
    sessions: int
    seconds: float


def fitted(steps: Sequence[StepSeen]) -> tuple[tuple[tuple[int, float], ...], float]:
    """Points of a cost curve, and what every session beyond the first adds.

    A line through the medians of each size, by least squares; what would cost less than nothing
    costs nothing.
    """
    sizes: dict[tuple[int, int], list[float]] = {}
    for step in steps:
        sizes.setdefault((step.rows, step.sessions), []).append(step.seconds)
    seconds = {size: median(each) for size, each in sizes.items()}
    base_s = median(seconds.values())
    # Rows explain what they can, sessions the rest: the two rise together.
    by_row = _slope([(rows - 1, took) for (rows, _), took in seconds.items()])
    rest = [(count - 1, took - by_row * (rows - 1)) for (rows, count), took in seconds.items()]
    by_session = _slope(rest)
    first = [left - by_session * others for others, left in rest]
    first_s = max(sum(first) / len(first), 0.01 * base_s)
    return ((1, first_s), (MOST_ROWS, first_s + by_row * (MOST_ROWS - 1))), by_session


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line through the points; 0 where it would fall, or all are at one place."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        return 0.0
    return max(sum((x - mean_x) * (y - mean_y) for x, y in points) / spread, 0.0)

"""From the draft's confidence to the chance that the target keeps a token. Pure."""

import math
from dataclasses import dataclass

from slipstream.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured acceptance by confidence, linear between evenly spaced points.

    `points[i]` is the share of draft tokens that were kept among those whose top-1 probability
    was i / (n - 1). It holds for one pair of models at one temperature. Without measurements the
    draft is taken at its word.
    """

    points: tuple[float, ...] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if len(self.points) < 2:
            raise InvalidRequest(f"a calibration has {len(self.points)} points, but needs 2")
        for point in self.points:
            if not 0 <= point <= 1:
                raise InvalidRequest(f"a calibration point is {point}, but must be from 0 to 1")

    def probability(self, top_prob: float) -> float:
        """The chance that a token of this confidence is kept; 0 for no number."""
        if math.isnan(top_prob):
            return 0.0
        place = min(max(top_prob, 0.0), 1.0) * (len(self.points) - 1)
        below = min(int(place), len(self.points) - 2)
        low, high = self.points[below : below + 2]
        return low + (place - below) * (high - low)

"""Numerics of a model by name, and the numbers of rows that are computed together."""

from dataclasses import dataclass
from typing import Literal

Numerics = Literal["invariant", "fast"]
"""`fast`: a row's bits may depend on the other rows of a forward; `invariant`: they do not."""


@dataclass(frozen=True, slots=True)
class RowRule:
    """Products of `min_rows` to `max_rows` rows give a row the same bits."""

    min_rows: int
    max_rows: int

    def intersect(self, other: "RowRule") -> "RowRule":
        """Return the row counts that both rules allow."""
        return RowRule(max(self.min_rows, other.min_rows), min(self.max_rows, other.max_rows))


ANY_ROWS = RowRule(1, 1 << 30)
SMALL = 1 << 16
"""Elements of a weight up to which fewer bits gain nothing: converting the row costs as much."""

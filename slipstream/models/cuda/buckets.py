"""Shapes that forwards of a device come in: a captured forward has fixed shapes, so that each is
padded to the next of a few sizes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slipstream.core.errors import CapacityError
from slipstream.models.decoder import RowRule
from slipstream.models.kv.pool import round_up
from slipstream.models.torch.packing import ForwardShape

_PATH = 16
"""Slots of ancestors for each token of a shape."""


def powers(limit: int, *, least: int = 1) -> tuple[int, ...]:
    """`least`, then its doubles, and `limit` as the last one."""
    steps = [min(least, limit)]
    while steps[-1] < limit:
        steps.append(min(2 * steps[-1], limit))
    return tuple(steps)


def row_steps(limit: int, rule: RowRule) -> tuple[int, ...]:
    """Row counts of forwards of up to `limit` rows, under a rule of equal bits.

    Larger products are cut into pieces of the rule's `max_rows`. Powers of two within the rule,
    multiples of `max_rows` above it: then no product is padded again and no piece is a ragged one.
    """
    most, least = min(limit, rule.max_rows), min(limit, rule.min_rows)
    steps = list(powers(max(most, least), least=least))
    while steps[-1] < limit:
        steps.append(min(2 * steps[-1], round_up(limit, steps[-1])))
    return tuple(steps)


def fit(count: int, steps: Sequence[int], *, what: str) -> int:
    """The first of the ascending `steps` that holds `count`. `CapacityError` names `what`."""
    for step in steps:
        if count <= step:
            return step
    raise CapacityError(f"{count} {what} are needed, but the largest shape has {steps[-1]}")


@dataclass(frozen=True, slots=True)
class Buckets:
    """Shapes by two numbers: of tokens, the ascending `rows`, and of sessions, one or any.
    A session has up to `pages`; tiles are of up to `tile` tokens."""

    rows: tuple[int, ...]
    pages: int
    tile: int

    def shape(self, own: ForwardShape) -> ForwardShape | None:
        """Return the smallest shape that holds another; None where none does."""
        needed = max(own.rows, -(-own.path // _PATH))
        rows = next((rows for rows in self.rows if needed <= rows), None)
        return None if rows is None else self._of(rows, 1 if own.sessions == 1 else rows)

    def __iter__(self) -> Iterator[ForwardShape]:
        """Every shape, the largest first, so that later captures find memory."""
        for rows in reversed(self.rows):
            for sessions in sorted({1, rows}):
                yield self._of(rows, sessions)

    def _of(self, rows: int, sessions: int) -> ForwardShape:
        # Each session, and the padding, may leave a tile unfilled.
        num_tiles = rows // self.tile + sessions + 1
        return ForwardShape(rows, sessions, self.pages, num_tiles, _PATH * rows)

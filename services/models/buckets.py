"""The shapes that forwards of a device come in. Pure; knows neither tensors nor models.

A captured forward has fixed shapes, so what is asked for is padded to the next of a few sizes.
Padding changes nothing: a padded row repeats the first one, a padded key is masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.errors import CapacityError
from slipstream.models.kv_layout import KEY_BLOCK, round_up

_WIDTH_GROWTH = 1.5


def powers(limit: int, *, least: int = 1) -> tuple[int, ...]:
    """`least`, then its doubles, and `limit` as the last one."""
    steps = [min(least, limit)]
    while steps[-1] < limit:
        steps.append(min(2 * steps[-1], limit))
    return tuple(steps)


def row_steps(limit: int, *, min_rows: int = 1, max_rows: int | None = None) -> tuple[int, ...]:
    """Row counts of forwards of up to `limit` rows, under a rule of equal bits.

    Products of `min_rows` to `max_rows` rows give a row the same bits, and larger ones are cut
    into pieces of `max_rows`. Powers of two within the rule, multiples of `max_rows` above it:
    then no product is padded again and no piece is a ragged one.
    """
    top = limit if max_rows is None else min(limit, max_rows)
    steps = list(powers(max(top, min_rows), least=min_rows))
    while steps[-1] < limit:
        steps.append(min(2 * steps[-1], round_up(limit, steps[-1])))
    return tuple(steps)


def key_widths(limit: int) -> tuple[int, ...]:
    """Multiples of a key block that grow by about half, up to room for `limit` keys."""
    last = round_up(max(limit, 1), KEY_BLOCK)
    steps = [KEY_BLOCK]
    while steps[-1] < last:
        grown = round_up(int(steps[-1] * _WIDTH_GROWTH), KEY_BLOCK)
        steps.append(min(max(grown, steps[-1] + KEY_BLOCK), last))
    return tuple(steps)


def fit(count: int, steps: Sequence[int], *, what: str) -> int:
    """The first of the ascending `steps` that holds `count`. `CapacityError` names `what`."""
    for step in steps:
        if count <= step:
            return step
    raise CapacityError(f"{count} {what} are needed, but the largest shape has {steps[-1]}")


@dataclass(frozen=True, slots=True, order=True)
class ForwardShape:
    """One shape of a forward: `rows` in all, of which `lanes` groups of up to `lane_rows` share
    the `width` earlier keys they look back on; `line` of those are told apart from the pages, and
    `draws` rows have their token drawn."""

    rows: int
    lanes: int
    lane_rows: int
    width: int
    line: int
    draws: int


@dataclass(frozen=True, slots=True)
class Buckets:
    """The sizes of each dimension, ascending."""

    rows: tuple[int, ...]
    lanes: tuple[int, ...]
    lane_rows: tuple[int, ...]
    widths: tuple[int, ...]
    lines: tuple[int, ...] = (0, 16, 64, 128)

    def shape(self, asked: ForwardShape) -> ForwardShape:
        """The smallest shape that holds what is asked for. `CapacityError` where none does."""
        return ForwardShape(
            rows=fit(asked.rows, self.rows, what="rows of one forward"),
            lanes=fit(asked.lanes, self.lanes, what="groups of rows"),
            lane_rows=fit(asked.lane_rows, self.lane_rows, what="rows of one group"),
            width=fit(asked.width, self.widths, what="keys to look back on"),
            line=fit(asked.line, self.lines, what="nodes above a node"),
            draws=fit(asked.draws, (0, *self.rows), what="rows to draw from"),
        )

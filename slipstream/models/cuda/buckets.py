"""Shapes that forwards of a device come in: a captured forward has fixed shapes, so that each is
padded to the next of a few sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.errors import CapacityError
from slipstream.models.decoder import RowRule
from slipstream.models.kv.pool import BLOCK_SIZE, round_up
from slipstream.models.torch.packing import MAX_SEGMENT_SIZE, ForwardShape

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
    last = round_up(max(limit, 1), BLOCK_SIZE)
    steps = [BLOCK_SIZE]
    while steps[-1] < last:
        grown = round_up(int(steps[-1] * _WIDTH_GROWTH), BLOCK_SIZE)
        steps.append(min(max(grown, steps[-1] + BLOCK_SIZE), last))
    return tuple(steps)


def fit(count: int, steps: Sequence[int], *, what: str) -> int:
    """The first of the ascending `steps` that holds `count`. `CapacityError` names `what`."""
    for step in steps:
        if count <= step:
            return step
    raise CapacityError(f"{count} {what} are needed, but the largest shape has {steps[-1]}")


@dataclass(frozen=True, slots=True)
class Buckets:
    """The sizes of each dimension, ascending."""

    rows: tuple[int, ...]
    segments: tuple[int, ...]
    segment_size: tuple[int, ...]
    widths: tuple[int, ...]
    paths: tuple[int, ...] = (0, 16, 64, 128)

    def shape(self, own: ForwardShape) -> ForwardShape:
        """Return the smallest shape that holds another. Raises `CapacityError` where none does."""
        return ForwardShape(
            rows=fit(own.rows, self.rows, what="tokens of one forward"),
            segments=fit(own.segments, self.segments, what="segments"),
            segment_size=fit(own.segment_size, self.segment_size, what="tokens of one segment"),
            width=fit(own.width, self.widths, what="keys to attend to"),
            path=fit(own.path, self.paths, what="nodes above a node"),
            draws=fit(own.draws, (0, *self.rows), what="tokens to draw behind"),
        )

    def has(self, shape: ForwardShape) -> bool:
        """Return whether a shape is one of these."""
        try:
            return self.shape(shape) == shape
        except CapacityError:
            return False


def buckets_for(max_rows: int, context_length: int, rule: RowRule) -> Buckets:
    """Shapes for forwards of up to `max_rows` rows whose products obey `rule`."""
    high = min(rule.max_rows, max_rows)
    rows = row_steps(max_rows, min_rows=min(rule.min_rows, max_rows), max_rows=high)
    return Buckets(
        rows=rows,
        segments=powers(rows[-1]),
        segment_size=powers(min(MAX_SEGMENT_SIZE, rows[-1])),
        widths=key_widths(context_length),
    )

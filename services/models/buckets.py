"""Shapes that forwards of a device come in, and a forward as one vector of integers of a shape.

A captured forward has fixed shapes, so what is asked for is padded to the next of a few sizes.
Padding changes nothing: a padded token repeats the first one, a padded key is masked. Tokens that
attend to the same keys make a group: one for the pending tokens and the first path of each
session's tree, with everything that hangs beside it, and one for each branch whose ancestors are
elsewhere. What a device makes of the integers is in `paged.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.errors import CapacityError
from slipstream.models.pool import KEY_BLOCK, round_up
from slipstream.models.rows import Part, PlacedRow, lay_out

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


@dataclass(frozen=True, slots=True)
class Lane:
    """Rows `start`..`stop`-1 of a forward, over `pages` that hold positions in order; those from
    `line_start` on are at the slots of `line` instead."""

    start: int
    stop: int
    width: int
    pages: Sequence[int]
    line_start: int
    line: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fields:
    """Sizes of the parts of the vector, in their order; see `split` in `paged.py`."""

    tokens: int
    positions: int
    slots: int
    order: int
    places: int
    rows: int
    pages: int
    line_starts: int
    lines: int
    wanted: int

    @classmethod
    def of(cls, shape: ForwardShape) -> "Fields":
        """The sizes that a shape has."""
        rows, lanes = shape.rows, shape.lanes
        return cls(
            tokens=rows,
            positions=rows,
            slots=rows,
            order=rows,
            places=rows,
            rows=lanes * shape.lane_rows,
            pages=lanes * (shape.width // KEY_BLOCK),
            line_starts=lanes,
            lines=lanes * shape.line,
            wanted=shape.draws,
        )


@dataclass(frozen=True, slots=True)
class Packed:
    """A forward of `num_rows` rows; `places` are the inputs' slots by part."""

    shape: ForwardShape
    values: list[int]
    num_rows: int
    places: tuple[tuple[int, ...], ...]


def pack(parts: Sequence[Part], wanted: Sequence[int], buckets: Buckets) -> Packed:
    """All parts of a forward; `wanted` are the inputs whose tokens are drawn.

    Inputs are numbered part by part, pending tokens before nodes. `CapacityError` where no shape
    holds them.
    """
    rows: list[PlacedRow] = []
    order: list[int] = []
    lanes: list[Lane] = []
    places = []
    for part, layout in zip(parts, lay_out(parts), strict=True):
        order += [len(rows) + row for row in layout.order]
        lanes += _lanes(layout.rows, part, len(rows), buckets.lane_rows[-1])
        rows += layout.rows
        places.append(layout.places)
    shape = buckets.shape(
        ForwardShape(
            rows=len(rows),
            lanes=len(lanes),
            lane_rows=max(lane.stop - lane.start for lane in lanes),
            width=max(lane.width for lane in lanes),
            line=max(len(lane.line) for lane in lanes),
            draws=len(wanted),
        )
    )
    void = parts[0].cache.pool.scratch.start // KEY_BLOCK
    values = _row_values(rows, order, shape) + _lane_values(lanes, shape, void)
    values += _padded([order[at] for at in wanted], shape.draws)
    return Packed(shape, values, len(rows), tuple(places))


def _lanes(rows: Sequence[PlacedRow], part: Part, offset: int, most: int) -> list[Lane]:
    """The lanes of one part's rows, which are those from `offset` on of the forward."""
    lanes, start = [], 0
    while start < len(rows):
        line, stop = rows[start].line, start + 1
        while stop < len(rows) and rows[stop].line == line and stop - start < most:
            stop += 1
        width = max(rows[stop - 1].position, 1)
        pages = part.cache.pages[: round_up(width, KEY_BLOCK) // KEY_BLOCK]
        seen = () if line is None else line[: max(width - part.end, 0)]
        lanes.append(Lane(offset + start, offset + stop, width, pages, part.end, seen))
        start = stop
    return lanes


def _row_values(rows: Sequence[PlacedRow], order: Sequence[int], shape: ForwardShape) -> list[int]:
    size = shape.rows
    tokens = _padded([row.token for row in rows], size)
    positions = _padded([row.position for row in rows], size)
    slots = _padded([row.slot for row in rows], size)
    return tokens + positions + slots + _padded(order, size)


def _lane_values(lanes: Sequence[Lane], shape: ForwardShape, void: int) -> list[int]:
    """Places of the rows, rows of the places, pages, and lines; `void` is a page of nothing."""
    places: list[int] = []
    rows: list[int] = []
    pages: list[int] = []
    lines: list[int] = []
    num_pages = shape.width // KEY_BLOCK
    for index, lane in enumerate(lanes):
        count = lane.stop - lane.start
        places += range(index * shape.lane_rows, index * shape.lane_rows + count)
        rows += _filled(range(lane.start, lane.stop), shape.lane_rows, lane.start)
        pages += _filled(lane.pages, num_pages, void)
        lines += _filled(lane.line, shape.line, -1)
    starts = _filled([lane.line_start for lane in lanes], shape.lanes, 0)
    rows = _filled(rows, shape.lanes * shape.lane_rows, 0)
    pages = _filled(pages, shape.lanes * num_pages, void)
    lines = _filled(lines, shape.lanes * shape.line, -1)
    return _padded(places, shape.rows) + rows + pages + starts + lines


def _padded(values: Sequence[int], size: int) -> list[int]:
    """Padding repeats the first value, and with it the first row."""
    return _filled(values, size, values[0] if values else 0)


def _filled(values: Sequence[int], size: int, filler: int) -> list[int]:
    return [*values, *[filler] * (size - len(values))]

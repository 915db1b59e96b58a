"""The rows of a forward as one vector of integers of a fixed shape, for a device to read.

Rows that look back on the same keys make a lane: one for the pending tokens and the first path of
each session's tree, with everything that hangs beside it, and one for each branch whose ancestors
are elsewhere. Plain numbers only; what a device makes of them is in `paged.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.models.buckets import Buckets, ForwardShape
from slipstream.models.kv_layout import KEY_BLOCK, round_up
from slipstream.models.rows import Part, PlacedRow, lay_out


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

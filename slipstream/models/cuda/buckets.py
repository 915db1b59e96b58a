"""Shapes that forwards of a device come in, and a forward as one vector of integers of a shape.

A captured forward has fixed shapes, so a forward is padded to the next of a few sizes.
Padding changes nothing: a padded token repeats the first one, a padded key is masked. Tokens that
attend to the same keys make a group: one for the pending tokens and the first path of each
session's tree, with everything that hangs beside it, and one for each branch whose ancestors are
elsewhere. What a device makes of the integers is in `paged.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.errors import CapacityError
from slipstream.models.kv.pool import BLOCK_SIZE, round_up
from slipstream.models.target.token_layout import Part, TokenPlacement, lay_out

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


@dataclass(frozen=True, slots=True, order=True)
class ForwardShape:
    """One shape of a forward: `rows` tokens in all, in `segments` of up to `segment_size`
    that share the `width` earlier keys they read; `path` of those are not on the pages, and of
    `draws` the next token is drawn."""

    rows: int
    segments: int
    segment_size: int
    width: int
    path: int
    draws: int

    def sizes(self) -> list[int]:
        """Return the sizes of a vector's parts: tokens, positions, slots, order, places, rows of
        the places, pages, path starts, paths, and the places of drawn tokens."""
        pages = self.segments * (self.width // BLOCK_SIZE)
        places = self.segments * self.segment_size
        return [
            *[self.rows] * 5,
            places,
            pages,
            self.segments,
            self.segments * self.path,
            self.draws,
        ]


@dataclass(frozen=True, slots=True)
class Buckets:
    """The sizes of each dimension, ascending."""

    rows: tuple[int, ...]
    segments: tuple[int, ...]
    segment_size: tuple[int, ...]
    widths: tuple[int, ...]
    paths: tuple[int, ...] = (0, 16, 64, 128)

    def shape(self, asked: ForwardShape) -> ForwardShape:
        """Return the smallest shape that holds another. Raises `CapacityError` where none does."""
        return ForwardShape(
            rows=fit(asked.rows, self.rows, what="tokens of one forward"),
            segments=fit(asked.segments, self.segments, what="segments"),
            segment_size=fit(asked.segment_size, self.segment_size, what="tokens of one segment"),
            width=fit(asked.width, self.widths, what="keys to attend to"),
            path=fit(asked.path, self.paths, what="nodes above a node"),
            draws=fit(asked.draws, (0, *self.rows), what="tokens to draw behind"),
        )


@dataclass(frozen=True, slots=True)
class PagedSegment:
    """Rows `start`..`stop`-1 of a forward, over `pages` that hold positions in order; those from
    `path_start` on are at the slots of `path` instead."""

    start: int
    stop: int
    width: int
    pages: Sequence[int]
    path_start: int
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PackedForward:
    """A forward of `num_rows` rows; `places` are the inputs' slots by part."""

    shape: ForwardShape
    values: list[int]
    num_rows: int
    places: tuple[tuple[int, ...], ...]


def pack(parts: Sequence[Part], wanted: Sequence[int], buckets: Buckets) -> PackedForward:
    """All parts of a forward; `wanted` are the inputs whose tokens are drawn.

    Inputs are numbered part by part, pending tokens before nodes. `CapacityError` where no shape
    holds them.
    """
    rows: list[TokenPlacement] = []
    order: list[int] = []
    segments: list[PagedSegment] = []
    places = []
    for part, layout in zip(parts, lay_out(parts), strict=True):
        order += [len(rows) + row for row in layout.order]
        segments += _segments(layout.tokens, part, len(rows), buckets.segment_size[-1])
        rows += layout.tokens
        places.append(layout.places)
    shape = buckets.shape(
        ForwardShape(
            rows=len(rows),
            segments=len(segments),
            segment_size=max(segment.stop - segment.start for segment in segments),
            width=max(segment.width for segment in segments),
            path=max(len(segment.path) for segment in segments),
            draws=len(wanted),
        )
    )
    void = parts[0].cache.pool.scratch.start // BLOCK_SIZE
    values = _row_values(rows, order, shape) + _segment_values(segments, shape, void)
    values += _padded([order[index] for index in wanted], shape.draws)
    return PackedForward(shape, values, len(rows), tuple(places))


def _segments(
    rows: Sequence[TokenPlacement], part: Part, offset: int, most: int
) -> list[PagedSegment]:
    """The segments of one part's rows, which are those from `offset` on of the forward."""
    segments, start = [], 0
    while start < len(rows):
        path, stop = rows[start].path_slots, start + 1
        while stop < len(rows) and rows[stop].path_slots == path and stop - start < most:
            stop += 1
        width = max(rows[stop - 1].position, 1)
        pages = part.cache.pages[: round_up(width, BLOCK_SIZE) // BLOCK_SIZE]
        seen = () if path is None else path[: max(width - part.end, 0)]
        segments.append(PagedSegment(offset + start, offset + stop, width, pages, part.end, seen))
        start = stop
    return segments


def _row_values(
    rows: Sequence[TokenPlacement], order: Sequence[int], shape: ForwardShape
) -> list[int]:
    size = shape.rows
    tokens = _padded([row.token for row in rows], size)
    positions = _padded([row.position for row in rows], size)
    slots = _padded([row.slot for row in rows], size)
    return tokens + positions + slots + _padded(order, size)


def _segment_values(segments: Sequence[PagedSegment], shape: ForwardShape, void: int) -> list[int]:
    """Places of the rows, rows of the places, pages, and paths; `void` is a page of nothing."""
    places: list[int] = []
    rows: list[int] = []
    pages: list[int] = []
    paths: list[int] = []
    num_pages = shape.width // BLOCK_SIZE
    for index, segment in enumerate(segments):
        count = segment.stop - segment.start
        places += range(index * shape.segment_size, index * shape.segment_size + count)
        rows += _filled(range(segment.start, segment.stop), shape.segment_size, segment.start)
        pages += _filled(segment.pages, num_pages, void)
        paths += _filled(segment.path, shape.path, -1)
    starts = _filled([segment.path_start for segment in segments], shape.segments, 0)
    rows = _filled(rows, shape.segments * shape.segment_size, 0)
    pages = _filled(pages, shape.segments * num_pages, void)
    paths = _filled(paths, shape.segments * shape.path, -1)
    return _padded(places, shape.rows) + rows + pages + starts + paths


def _padded(values: Sequence[int], size: int) -> list[int]:
    """Padding repeats the first value, and with it the first row."""
    return _filled(values, size, values[0] if values else 0)


def _filled(values: Sequence[int], size: int, filler: int) -> list[int]:
    return [*values, *[filler] * (size - len(values))]

"""A batch as one vector of integers, of one shape: what a device makes of it is in `paged.py`.

Padding changes nothing: a padded token repeats the first one, a padded key is masked. Tokens that
attend to the same keys make a segment: one for the pending tokens and the first path of each
session's tree, with everything that hangs beside it, and one for each branch whose ancestors are
elsewhere.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from slipstream.models.kv.batch import Batch
from slipstream.models.kv.pool import BLOCK_SIZE, KvPool, round_up

MAX_SEGMENT_SIZE = 256


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
        paths = self.segments * self.path
        return [*[self.rows] * 5, places, pages, self.segments, paths, self.draws]


@dataclass(frozen=True, slots=True)
class PackedForward:
    """A forward of `num_rows` rows."""

    shape: ForwardShape
    values: list[int]
    num_rows: int


@dataclass(frozen=True, slots=True)
class _Segment:
    """Inputs over `pages` that hold positions in order; those from `path_start` on are at the slots
    of `path` instead."""

    inputs: Sequence[int]
    width: int
    pages: Sequence[int]
    path_start: int
    path: Sequence[int]


def pack(
    pool: KvPool,
    batch: Batch,
    wanted: Sequence[int] = (),
    fit: Callable[[ForwardShape], ForwardShape] = lambda shape: shape,
) -> PackedForward:
    """Pack a batch into the shape that `fit` makes of its own; `wanted` are the inputs whose tokens
    are drawn. Raises what `fit` raises."""
    segments = [_segment(batch, inputs) for inputs in _inputs(batch)]
    rows = [index for segment in segments for index in segment.inputs]
    shape = fit(
        ForwardShape(
            rows=len(rows),
            segments=len(segments),
            segment_size=max(len(segment.inputs) for segment in segments),
            width=round_up(max(segment.width for segment in segments), BLOCK_SIZE),
            path=max(len(segment.path) for segment in segments),
            draws=len(wanted),
        )
    )
    order = [0] * len(rows)
    for row, index in enumerate(rows):
        order[index] = row
    values: list[int] = []
    for own in (batch.tokens, batch.positions, batch.slots):
        values += _padded([own[index] for index in rows], shape.rows)
    values += _padded(order, shape.rows)
    values += _segment_values(segments, shape, void=pool.scratch.start // BLOCK_SIZE)
    values += _padded([order[index] for index in wanted], shape.draws)
    return PackedForward(shape, values, len(rows))


def _inputs(batch: Batch) -> Iterator[Sequence[int]]:
    """Yield the inputs of each segment: those in place by position, then the others path by path,
    so that tokens which can read the same slots are together."""
    start = 0
    for size in batch.sizes:
        for group in _groups(batch, range(start, start + size)):
            for first in range(0, len(group), MAX_SEGMENT_SIZE):
                yield group[first : first + MAX_SEGMENT_SIZE]
        start += size


def _groups(batch: Batch, inputs: range) -> Iterator[list[int]]:
    """Yield a session's inputs in place, then those of each path, by position."""
    descending = sorted(inputs, key=lambda index: -batch.positions[index])
    yield [index for index in reversed(descending) if len(batch.ancestors[index]) < 2]
    paths: list[list[int]] = []
    for index in descending:
        if above := batch.ancestors[index][:-1]:
            longer = (path for path in paths if batch.ancestors[path[0]][: len(above)] == above)
            path = next(longer, None)
            if path is None:
                paths.append([index])
            else:
                path.append(index)
    yield from (path[::-1] for path in paths)


def _segment(batch: Batch, inputs: Sequence[int]) -> _Segment:
    last = inputs[-1]
    width = max(batch.positions[last], 1)
    pages = batch.block_tables[last].pages[: round_up(width, BLOCK_SIZE) // BLOCK_SIZE]
    return _Segment(inputs, width, pages, batch.num_seen[last], batch.ancestors[last][:-1])


def _segment_values(segments: Sequence[_Segment], shape: ForwardShape, *, void: int) -> list[int]:
    """Places of the rows, rows of the places, pages, and paths; `void` is a page of nothing."""
    places: list[int] = []
    rows: list[int] = []
    pages: list[int] = []
    paths: list[int] = []
    num_pages, num_rows = shape.width // BLOCK_SIZE, 0
    for index, segment in enumerate(segments):
        count = len(segment.inputs)
        places += range(index * shape.segment_size, index * shape.segment_size + count)
        rows += _filled(range(num_rows, num_rows + count), shape.segment_size, num_rows)
        pages += _filled(segment.pages, num_pages, void)
        paths += _filled(segment.path, shape.path, -1)
        num_rows += count
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

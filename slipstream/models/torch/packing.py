"""A batch as one vector of integers, of one shape: what a device makes of it is in `paged.py`.

A captured forward has a fixed shape: others are padded to the next of a few. Padding changes
nothing: a padded token repeats the first one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import add

import numpy as np

from slipstream.core.errors import CapacityError
from slipstream.models.decoder import RowRule
from slipstream.models.dtypes import Array
from slipstream.models.kv.batch import Batch, Draw
from slipstream.models.kv.pool import round_up

_PATH = 16
"""Slots of ancestors for each token of a shape."""


@dataclass(frozen=True, slots=True)
class ForwardShape:
    """One shape of a forward: `rows` tokens of `sessions` with up to `pages` each, in `tiles` of
    neighbours whose keys are read together; `path` slots of ancestors in all."""

    rows: int
    sessions: int
    pages: int
    tiles: int
    path: int

    def sizes(self) -> list[int]:
        """Return the sizes of a vector's parts: tokens, positions, slots, columns in all and on
        pages, and starts of paths, then pages, tiles and paths."""
        return [*[self.rows] * 6, self.sessions * self.pages, 3 * self.tiles, self.path]


@dataclass(frozen=True, slots=True)
class PackedForward:
    """A forward of `num_rows` rows; `values` int32. Its shape may be one of a few."""

    shape: ForwardShape
    values: Array
    num_rows: int
    is_bucket: bool


@dataclass(frozen=True, slots=True)
class PackedDraws:
    """Draws of `size` tokens with padding, the `values` of `cuda.draws.pack_draws`; plain ones are
    drawn without tables. The `draws` are rank 0's alone."""

    values: Array
    size: int
    are_plain: bool
    draws: tuple[Draw, ...]


def pack(
    batch: Batch, tile: int, fit: Callable[[ForwardShape], ForwardShape | None] = lambda _: None
) -> PackedForward:
    """Pack a batch, in tiles of up to `tile` tokens, into the shape that `fit` finds for its own,
    if any."""
    starts = [*accumulate(batch.sizes, initial=0)]
    tables = [batch.block_tables[start].pages for start in starts[:-1]]
    lengths = [*map(len, batch.ancestors)]
    own = ForwardShape(
        rows=starts[-1],
        sessions=len(tables),
        pages=max(map(len, tables)),
        tiles=sum(-(-size // tile) for size in batch.sizes),
        path=sum(lengths),
    )
    bucket = fit(own)
    shape = bucket or own
    pages = np.zeros((shape.sessions, shape.pages), np.int32)
    for into, table in zip(pages, tables, strict=False):
        into[: len(table)] = table
    path_starts = [*accumulate(lengths[:-1], initial=0)]
    # A path ends with the token's own slot, which is on the pages where there is none.
    counts = list(map(add, batch.num_seen, lengths))
    parts = (batch.tokens, batch.positions, batch.slots, counts, batch.num_seen, path_starts)
    rows = np.empty((len(parts), shape.rows), np.int32)
    for into, values in zip(rows, parts, strict=True):
        into[: own.rows] = values
        into[own.rows :] = values[0]
    paths = _filled(list(chain.from_iterable(batch.ancestors)), shape.path)
    tiles = tiles_of([*batch.sizes, shape.rows - own.rows], tile)
    tiles[tiles[:, 2] == len(tables), 2] = 0  # padding is of the first session
    filled = _filled(tiles.reshape(-1), 3 * shape.tiles)
    packed = np.concatenate([rows.reshape(-1), pages.reshape(-1), filled, paths])
    return PackedForward(shape, packed, own.rows, bucket is not None)


def tiles_of(sizes: Sequence[int], tile: int) -> Array:
    """Return the first token, number and session [T, 3] of tiles of up to `tile` tokens each, of
    sessions of some sizes."""
    counts = np.array(sizes, np.int32)
    numbers = -(-counts // tile)
    part = np.repeat(np.arange(len(sizes)), numbers)
    within = tile * (np.arange(len(part)) - (numbers.cumsum() - numbers)[part])
    first = (counts.cumsum() - counts)[part] + within
    return np.stack([first, np.minimum(tile, counts[part] - within), part], 1).astype(np.int32)


def _filled(values: Sequence[int] | Array, size: int) -> Array:
    filled = np.zeros(size, np.int32)
    filled[: len(values)] = values
    return filled


def row_steps(limit: int, rule: RowRule) -> tuple[int, ...]:
    """Row counts of forwards of up to `limit` rows, under a rule of equal bits.

    Larger products are cut into pieces of the rule's `max_rows`. Powers of two within the rule,
    multiples of `max_rows` above it: then no product is padded again and no piece is a ragged one.
    """
    most, steps = min(limit, rule.max_rows), [min(limit, rule.min_rows)]
    while (last := steps[-1]) < limit:
        steps.append(min(2 * last, most if last < most else round_up(limit, last)))
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

"""A batch as one vector of integers, of one shape: what a device makes of it is in `paged.py`.

Padding changes nothing: a padded token repeats the first one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from slipstream.models.dtypes import Array
from slipstream.models.kv.batch import Batch, Draw


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
        """Return the sizes of a vector's parts: tokens, positions, slots, columns on pages and
        starts of paths, then pages, tiles and paths."""
        return [*[self.rows] * 5, self.sessions * self.pages, 3 * self.tiles, self.path]


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
    batch: Batch,
    tile: int,
    fit: Callable[[ForwardShape], ForwardShape | None] = lambda _: None,
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
    parts = (batch.tokens, batch.positions, batch.slots, batch.num_seen, path_starts)
    rows = np.empty((len(parts), shape.rows), np.int32)
    for into, values in zip(rows, parts, strict=True):
        into[: own.rows] = values
        into[own.rows :] = values[0]
    paths = _filled(list(chain.from_iterable(batch.ancestors)), shape.path)
    tiles = _filled(_tiles([*batch.sizes, shape.rows - own.rows], tile), 3 * shape.tiles)
    packed = np.concatenate([rows.reshape(-1), pages.reshape(-1), tiles, paths])
    return PackedForward(shape, packed, own.rows, bucket is not None)


def _tiles(sizes: Sequence[int], tile: int) -> Array:
    """First token, number and session of each tile; the last part, of padding, is of session 0."""
    counts = np.array(sizes, np.int32)
    numbers = -(-counts // tile)
    part = np.repeat(np.arange(len(sizes)), numbers)
    within = tile * (np.arange(len(part)) - (numbers.cumsum() - numbers)[part])
    first = (counts.cumsum() - counts)[part] + within
    session = np.where(part == len(sizes) - 1, 0, part)
    return np.stack([first, np.minimum(tile, counts[part] - within), session], 1).reshape(-1)


def _filled(values: Sequence[int] | Array, size: int) -> Array:
    filled = np.zeros(size, np.int32)
    filled[: len(values)] = values
    return filled

"""Paged attention of the tokens of one forward, by torch: a batch as one vector of integers, what a
device makes of it, and what a CPU computes.

A captured forward has a fixed shape: others are padded to the next of a few. Padding changes
nothing: a padded token repeats the first one. A key's column is its position. A token sees the
first columns on the pages of its session, and behind them its ancestors and itself, wherever they
are. No value is read on the host.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from operator import add

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.core.errors import CapacityError
from slipstream.models.decoder import RowRule
from slipstream.models.dtypes import Array
from slipstream.models.kv.batch import Batch, Draw
from slipstream.models.kv.pool import BLOCK_SIZE, round_up
from slipstream.models.torch.arrays import Rows, rounded

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


SPANS = 16
"""Spans of a token's columns, which a GPU attends to at once."""


@dataclass(frozen=True, slots=True)
class PagedTokens:
    """R tokens at `positions` [R], which write to `slots` [R] int64, and what they attend to, as
    `attend` takes it."""

    positions: Tensor
    slots: Tensor
    attended: list[Tensor]


def num_places(group: int) -> int:
    """Return the rows of one product of queries, of which `group` share a key head."""
    return max(16, 1 << (group - 1).bit_length())


def unpack(values: Tensor, shape: ForwardShape) -> tuple[Tensor, PagedTokens]:
    """Return the tokens [R] and the metadata that `pack` made; `values` on the device."""
    parts = values.split(shape.sizes())
    tokens, positions, slots, counts, seen, starts, tables, tiles, paths = parts
    tables, tiles = tables.view(shape.sessions, -1), tiles.view(-1, 3)
    attended = [tables, tiles, counts, seen, starts, paths]
    return tokens, PagedTokens(positions, slots.long(), attended)


@torch.library.custom_op("slipstream::attend", mutates_args=(), device_types="cpu")
def attend(query: Tensor, layer: Tensor, tokens: list[Tensor], scale: float, rounds: bool) -> Rows:
    """Return attention [R, heads * d] of queries [R, heads, d] over a pool's layer
    [2 * kv_heads, slots, d]; zeros where a token sees nothing; where it `rounds`, in 8-bit floats.

    `tokens` are integers: `tables` [S, P] of sessions' pages; `tiles` [T, 3], the first token,
    number and session of neighbours; of each token [R] the number of its columns (`counts`), how
    many of them are on pages (`seen`), and from where (`starts`) `paths` has the others' slots.
    A CPU's is here, a session's tokens at a time, and a GPU's in `cuda.attention_kernels`.
    """
    out = attend_by_session(query, lambda session: layer, tokens, scale)
    return rounded(out) if rounds else [out]


def attend_by_session(
    query: Tensor, layer_of: Callable[[int], Tensor], tokens: list[Tensor], scale: float
) -> Tensor:
    """Return what `attend` does, over a layer for each session, on a CPU."""
    tables, tiles, counts, seen, starts, paths = tokens
    out = query.new_empty(len(query), query.shape[1] * query.shape[2])
    for session, own in groupby(tiles.tolist(), lambda tile: tile[2]):
        tiled = [range(first, first + num) for first, num, _ in own if num]
        if not tiled:
            continue
        rows = slice(tiled[0].start, tiled[-1].stop)
        num_seen, first = seen[rows].long(), starts[rows].long()
        lengths = counts[rows].long() - num_seen
        ends = lengths.cumsum(0)
        of = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        path = paths[torch.arange(len(of)) + (first + lengths - ends)[of]]
        slots = (tables[session][:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).flatten()
        slots = slots[: max(int(num_seen.max()), 1)]
        is_seen = torch.arange(len(slots)) < num_seen[:, None]
        is_seen = torch.cat([is_seen, of == torch.arange(len(lengths))[:, None]], 1)
        pairs = layer_of(session).index_select(1, torch.cat([slots, path]).long())
        found = _attended(query[rows], pairs, is_seen, scale)
        out[rows] = torch.where(is_seen.any(1, keepdim=True), found, 0.0)
    return out


def on_pages(tables: Tensor, tiles: Tensor, counts: Tensor) -> list[Tensor]:
    """Return what `attend` takes of tokens that see the first `counts` [R] columns of their
    sessions' `tables`; there are no paths then."""
    return [tables, tiles, counts, counts, counts, counts]


def _attended(query: Tensor, pairs: Tensor, is_seen: Tensor, scale: float) -> Tensor:
    """Return grouped attention [M, heads * d] of queries [M, heads, d] to the keys and values
    [2 * kv_heads, C, d] that each sees, `is_seen` [M, C].

    Scores of what is hidden are far below any other, but finite: a block of keys in which a token
    sees nothing must not yield 0 / 0.
    """
    num_kv, dim = len(pairs) // 2, query.shape[2]
    group = query.shape[1] // num_kv
    placed = query.view(1, -1, num_kv, group, dim).transpose(1, 2).reshape(1, num_kv, -1, dim)
    hidden = torch.finfo(query.dtype).min / 2
    mask = torch.zeros(is_seen.shape, dtype=query.dtype).masked_fill_(~is_seen, hidden)
    mask = mask.repeat_interleave(group, 0)[None, None]
    keys, values = pairs[None].chunk(2, 1)
    out = F.scaled_dot_product_attention(placed, keys, values, attn_mask=mask, scale=scale)
    return out.view(num_kv, -1, group, dim).transpose(0, 1).reshape(-1, query.shape[1] * dim)

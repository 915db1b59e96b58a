"""Paged attention of the tokens of one forward, by torch: its metadata, and what a CPU computes.

A key's column is its position. A token sees the first columns on the pages of its session, and
behind them its ancestors and itself, wherever they are. No value is read on the host.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.models.kv.pool import BLOCK_SIZE
from slipstream.models.torch.packing import ForwardShape

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
    """Return the tokens [R] and the metadata that `packing.pack` made; `values` on the device."""
    parts = values.split(shape.sizes())
    tokens, positions, slots, seen, starts, tables, tiles, paths = parts
    tables, tiles = tables.view(shape.sessions, -1), tiles.view(-1, 3)
    attended = [tables, tiles, positions + 1, seen, starts, paths]
    return tokens, PagedTokens(positions, slots.long(), attended)


@torch.library.custom_op("slipstream::attend", mutates_args=(), device_types="cpu")
def attend(query: Tensor, layer: Tensor, tokens: list[Tensor], scale: float) -> Tensor:
    """Return attention [R, heads * d] of queries [R, heads, d] over a pool's layer
    [2 * kv_heads, slots, d]; zeros where a token sees nothing.

    `tokens` are integers: `tables` [S, P] of sessions' pages; `tiles` [T, 3], the first token,
    number and session of neighbours; of each token [R] the number of its columns (`counts`), how
    many of them are on pages (`seen`), and from where (`starts`) `paths` has the others' slots.
    A CPU's is here, a session's tokens at a time, and a GPU's in `cuda.kernels`.
    """
    return attend_by_session(query, lambda session: layer, tokens, scale)


@attend.register_fake
def _(query: Tensor, layer: Tensor, tokens: list[Tensor], scale: float) -> Tensor:
    return query.new_empty(len(query), query.shape[1] * query.shape[2])


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
        rows, layer = slice(tiled[0].start, tiled[-1].stop), layer_of(session)
        group = query.shape[1] // (len(layer) // 2)
        num_seen, first = seen[rows].long(), starts[rows].long()
        lengths = counts[rows].long() - num_seen
        ends = lengths.cumsum(0)
        of = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        path = paths[torch.arange(len(of)) + (first + lengths - ends)[of]]
        slots = page_slots(tables[session : session + 1])[0, : max(int(num_seen.max()), 1)]
        is_seen = torch.arange(len(slots)) < num_seen[:, None]
        is_seen = torch.cat([is_seen, of == torch.arange(len(lengths))[:, None]], 1)
        pairs = gather(layer, torch.cat([slots, path]).long(), 1).chunk(2, 1)
        mask = additive(is_seen[None], group, query.dtype)
        found = attend_each(query[rows], pairs, mask, scale)
        out[rows] = torch.where(is_seen.any(1, keepdim=True), found, 0.0)
    return out


def on_pages(tables: Tensor, tiles: Tensor, counts: Tensor) -> list[Tensor]:
    """Return what `attend` takes of tokens that see the first `counts` [R] columns of their
    sessions' `tables`; there are no paths then."""
    return [tables, tiles, counts, counts, counts, counts]


def tiles_of(num: int, size: int, tile: int, device: torch.device) -> Tensor:
    """Return the tiles of `size` tokens of each of `num` sessions."""
    within = torch.arange(0, size, tile, device=device)
    session = torch.arange(num, device=device)[:, None].expand(num, len(within))
    count = (size - within).clamp(max=tile).expand_as(session)
    return torch.stack([session * size + within, count, session], 2).flatten(0, 1)


def gather(layer: Tensor, slots: Tensor, num: int) -> Tensor:
    """Return keys and values [num, 2 * kv_heads, C, d] at `slots` [num * C] of a pool's layer."""
    seen = layer.index_select(1, slots)
    return seen.view(layer.shape[0], num, -1, layer.shape[2]).transpose(0, 1)


def attend_each(
    query: Tensor, kv: tuple[Tensor, ...], mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """Return grouped attention of S * M queries [S * M, heads, d], M to each of the keys
    and values [S, kv_heads, C, d].

    `mask` [S, 1, M * group, C] is added to the scores: see `additive`. Returns [S * M, heads * d].
    """
    _, num_heads, dim = query.shape
    keys, values = kv
    num, num_kv = keys.shape[:2]
    group = num_heads // num_kv
    placed = query.view(num, -1, num_kv, group, dim).transpose(1, 2).reshape(num, num_kv, -1, dim)
    out = F.scaled_dot_product_attention(placed, keys, values, attn_mask=mask, scale=scale)
    out = out.view(num, num_kv, -1, group, dim).transpose(1, 2)
    return out.reshape(-1, num_heads * dim)


def additive(visible: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """Return a mask [S, 1, M * group, C] of what tokens [S, M, C] see, for query heads in groups.

    What is hidden is far below any score, but finite: a block of keys in which a token sees nothing
    must not yield 0 / 0.
    """
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    mask = mask.masked_fill_(~visible, torch.finfo(dtype).min / 2)
    return mask.repeat_interleave(group, 1).unsqueeze(1)


def page_slots(pages: Tensor) -> Tensor:
    """Return slots [S, P * BLOCK_SIZE] of the positions on pages [S, P]."""
    offsets = torch.arange(BLOCK_SIZE, device=pages.device)
    return (pages.unsqueeze(2) * BLOCK_SIZE + offsets).flatten(1)

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
from slipstream.models.torch.arrays import Rows, rounded
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

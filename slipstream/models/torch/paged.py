"""Paged attention for batches of a fixed shape, by torch's own kernels.

A segment's keys are read by one slot mapping: its pages in the order of positions, ancestors where
they are, and behind them the own key of each of its tokens. A token sees the columns of the
positions before its own, and its own key's. So its sum runs over the same keys in the same order
in any tree, slot or batch: the columns between are whole blocks of zeros.
No value is read on the host.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.models.kv.pool import BLOCK_SIZE, round_up
from slipstream.models.torch.packing import ForwardShape

_OWN_BLOCK = 16
"""Own keys are padded to a multiple of this: kernels want masks of aligned rows."""


@dataclass(frozen=True, slots=True)
class PagedTokens:
    """Attention metadata of R tokens in L segments of Q places each.

    `slots` [R]: where tokens write; `rows` [L * Q]: the token at a place; `places` [R]: the place
    of a token; `keys` [L * C]: slots of the columns; `mask` [L, 1, Q * group, C], added to the
    scores.
    """

    slots: Tensor
    rows: Tensor
    places: Tensor
    keys: Tensor
    mask: Tensor
    kernel: "Kernel"

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def num_segments(self) -> int:
        """Segments."""
        return self.mask.shape[0]


@dataclass(frozen=True, slots=True)
class PagedForward:
    """One forward on its device. `order` [R] are the places of the inputs, `wanted` [N] of those
    whose tokens are drawn; padding repeats the first."""

    tokens: Tensor
    positions: Tensor
    order: Tensor
    wanted: Tensor
    segments: PagedTokens


Kernel = Callable[[Tensor, Tensor, PagedTokens, float], Tensor]
"""Attention of tokens [R, heads, d] over a pool's layer, [R, heads * d]; see `attend_paged`."""


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """Settings of a forward's attention: `group` query heads share a key head, masks have the
    scores' `dtype`."""

    group: int
    dtype: torch.dtype
    kernel: Kernel


def unpack(values: Tensor, shape: ForwardShape, attention: PagedAttention) -> PagedForward:
    """Return the forward that `buckets.pack` made of its parts. `values` int64, on the device."""
    parts = values.split(shape.sizes())
    tokens, positions, slots, order, places, rows, pages, starts, paths, wanted = parts
    num = shape.segments
    keys = _columns(pages.view(num, -1), starts, paths.view(num, -1))
    own = slots[rows].view(num, -1)
    num_own = round_up(shape.segment_size, _OWN_BLOCK)
    keys = torch.cat([keys, F.pad(own, (0, num_own - own.shape[1]), mode="replicate")], 1)
    visible = _visible(positions[rows].view(num, -1), shape.width, num_own)
    mask = additive(visible, attention.group, attention.dtype)
    segments = PagedTokens(slots, rows, places, keys.flatten(), mask, attention.kernel)
    return PagedForward(tokens, positions, order, wanted, segments)


def attend_paged(query: Tensor, layer: Tensor, batch: PagedTokens, scale: float) -> Tensor:
    """Return attention [R, heads * d] of queries [R, heads, d] over a pool's `layer`
    [2 * kv_heads, slots, d], in which the tokens' own keys and values are."""
    seen = gather(layer, batch.keys, batch.num_segments)
    out = attend_each(query.index_select(0, batch.rows), seen.chunk(2, 1), batch.mask, scale)
    return out.index_select(0, batch.places)


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


def _columns(pages: Tensor, starts: Tensor, paths: Tensor) -> Tensor:
    """Return slots [L, W] of the positions: those of the pages [L, P], but from `starts` [L] on
    those of `paths` [L, D], where these are no padding (-1)."""
    slots = page_slots(pages)
    if not paths.shape[1]:
        return slots
    width = slots.shape[1]
    columns = starts.unsqueeze(1) + torch.arange(paths.shape[1], device=pages.device)
    columns = torch.where(paths < 0, width, columns).clamp(
        max=width
    )  # one more column takes the padding
    return F.pad(slots, (0, 1)).scatter(1, columns, paths.clamp(min=0))[:, :width]


def _visible(positions: Tensor, width: int, num_own: int) -> Tensor:
    """Return which of width + num_own columns tokens at `positions` [L, Q] see: those before, and
    their own."""
    columns = torch.arange(width + num_own, device=positions.device)
    own = width + torch.arange(positions.shape[1], device=positions.device)
    is_past = columns < positions.unsqueeze(2).clamp(max=width)
    return is_past | (columns == own.unsqueeze(1))

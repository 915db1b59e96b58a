"""Attention over a pool of pages for rows of a fixed shape, by torch's own kernels.

A lane's keys are read by one table of slots: its pages in the order of positions, ancestors where
they are, and behind them the own key of each of its rows. A row sees the columns of the positions
before its own, and its own key's. So a row's sum runs over the same keys in the same order in
whatever tree, slot or company it is computed: the columns between are whole blocks of zeros.
Looks at no value on the host.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.models.buckets import Fields, ForwardShape
from slipstream.models.pool import KEY_BLOCK, round_up

_OWN_BLOCK = 16
"""Own keys are padded to a multiple of this: kernels want masks of aligned rows."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """L lanes of Q rows each over R rows: `slots` [R] where rows write, `rows` [L * Q] which row
    is at a place, `places` [R] which place a row is at, `keys` [L * C] slots of the columns, and
    `mask` [L, 1, Q * group, C], added to the scores, which says what is `visible` [L, Q, C].
    `num_slots` are all of the pool's; `kernel` attends.
    """

    slots: Tensor
    rows: Tensor
    places: Tensor
    keys: Tensor
    mask: Tensor
    visible: Tensor
    num_slots: int
    kernel: "Kernel"

    write_start: None = None

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def num_lanes(self) -> int:
        """L."""
        return self.mask.shape[0]


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward on its device. `order` [R] are the rows of the inputs, `wanted` [N] those whose
    tokens are drawn; padding repeats the first."""

    tokens: Tensor
    positions: Tensor
    order: Tensor
    wanted: Tensor
    lanes: Lanes


Kernel = Callable[[Tensor, Tensor, Lanes, float], Tensor]
"""Attention of rows [R, heads, d] over a pool's layer, [R, heads * d]; see `attend_lanes`."""


@dataclass(frozen=True, slots=True)
class Attention:
    """How a forward attends: `group` query heads share a key head, masks are of the scores'
    `dtype`, the pool has `num_slots`."""

    group: int
    dtype: torch.dtype
    num_slots: int
    kernel: Kernel


def unpack(values: Tensor, shape: ForwardShape, attention: Attention) -> Batch:
    """The forward that `lanes.pack` made of its parts. `values` int64, on the device."""
    fields = Fields.of(shape)
    parts = values.split(list(dataclasses.astuple(fields)))
    tokens, positions, slots, order, places, rows, pages, starts, lines, wanted = parts
    num = shape.lanes
    keys = _columns(pages.view(num, -1), starts, lines.view(num, -1))
    own = slots[rows].view(num, -1)
    num_own = round_up(shape.lane_rows, _OWN_BLOCK)
    keys = torch.cat([keys, F.pad(own, (0, num_own - own.shape[1]), mode="replicate")], 1)
    visible = _visible(positions[rows].view(num, -1), shape.width, num_own)
    mask = additive(visible, attention.group, attention.dtype)
    lanes = Lanes(
        slots,
        rows,
        places,
        keys.flatten(),
        mask,
        visible,
        attention.num_slots,
        attention.kernel,
    )
    return Batch(tokens, positions, order, wanted, lanes)


def attend_lanes(query: Tensor, layer: Tensor, lanes: Lanes, scale: float) -> Tensor:
    """Attention of R rows: query [R, heads, d] over a pool's `layer` [2 * kv_heads, slots, d], in
    which the rows' own keys and values are. Returns [R, heads * d]."""
    seen = gather(layer, lanes.keys, lanes.num_lanes)
    out = attend_each(query.index_select(0, lanes.rows), seen, lanes.mask, scale)
    return out.index_select(0, lanes.places)


def gather(layer: Tensor, slots: Tensor, num: int) -> Tensor:
    """The keys and values [num, 2 * kv_heads, C, d] at `slots` [num * C] of a pool's layer."""
    seen = layer.index_select(1, slots)
    return seen.view(layer.shape[0], num, -1, layer.shape[2]).transpose(0, 1)


def attend_each(query: Tensor, kv: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    """Grouped attention of S * M rows [S * M, heads, d], M to each of `kv` [S, 2 * kv_heads, C, d].

    `mask` [S, 1, M * group, C] is added to the scores: see `additive`. Returns [S * M, heads * d].
    """
    _, num_heads, dim = query.shape
    num, num_kv = kv.shape[0], kv.shape[1] // 2
    group = num_heads // num_kv
    placed = query.view(num, -1, num_kv, group, dim).transpose(1, 2).reshape(num, num_kv, -1, dim)
    keys, values = kv.split(num_kv, 1)
    out = F.scaled_dot_product_attention(placed, keys, values, attn_mask=mask, scale=scale)
    out = out.view(num, num_kv, -1, group, dim).transpose(1, 2)
    return out.reshape(-1, num_heads * dim)


def additive(visible: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """A mask [S, 1, M * group, C] of what rows [S, M, C] see, for query heads in groups.

    What is hidden is far below any score, but finite: a block of keys in which a row sees nothing
    must not yield 0 / 0.
    """
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    mask = mask.masked_fill_(~visible, torch.finfo(dtype).min / 2)
    return mask.repeat_interleave(group, 1).unsqueeze(1)


def page_slots(pages: Tensor) -> Tensor:
    """Slots [S, P * KEY_BLOCK] of the positions on pages [S, P]."""
    offsets = torch.arange(KEY_BLOCK, device=pages.device)
    return (pages.unsqueeze(2) * KEY_BLOCK + offsets).flatten(1)


def _columns(pages: Tensor, starts: Tensor, lines: Tensor) -> Tensor:
    """Slots [L, W] of the positions: those of the pages [L, P], but from `starts` [L] on those of
    `lines` [L, D], where these are no padding (-1)."""
    slots = page_slots(pages)
    if not lines.shape[1]:
        return slots
    width = slots.shape[1]
    at = starts.unsqueeze(1) + torch.arange(lines.shape[1], device=pages.device)
    at = torch.where(lines < 0, width, at).clamp(max=width)  # one more column takes the padding
    return F.pad(slots, (0, 1)).scatter(1, at, lines.clamp(min=0))[:, :width]


def _visible(positions: Tensor, width: int, num_own: int) -> Tensor:
    """Which of width + num_own columns rows at `positions` [L, Q] see: those before, and their own
    ones."""
    columns = torch.arange(width + num_own, device=positions.device)
    own = width + torch.arange(positions.shape[1], device=positions.device)
    is_past = columns < positions.unsqueeze(2).clamp(max=width)
    return is_past | (columns == own.unsqueeze(1))

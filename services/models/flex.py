"""Attention over a whole pool in place, by FlexAttention: nothing is gathered, pages that no row
looks at are left out.

A row's keys are added up in the order of their slots, so its bits depend on where they lie: for
`fast` numerics only. Looks at no value on the host.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from slipstream.models.kv_layout import KEY_BLOCK
from slipstream.models.paged import Lanes, attend_lanes

_MAX_SHAPES = 6
"""Compiled forms of one kernel: torch gives up after eight, and then computes every score."""


class FlexKernel:
    """`paged.Kernel` by FlexAttention; compiled where `is_compiled`, else by torch's reference of
    it, which computes every score."""

    def __init__(self, *, is_compiled: bool) -> None:
        attend: Any = flex_attention
        self._is_compiled = is_compiled
        self._shapes: set[tuple[torch.Size, torch.Size]] = set()
        self._made: tuple[Lanes, BlockMask] | None = None
        self._attend = torch.compile(attend, dynamic=False) if is_compiled else attend

    def __call__(self, query: Tensor, layer: Tensor, lanes: Lanes, scale: float) -> Tensor:
        """See `paged.attend_lanes`, which takes shapes beyond those that can be compiled."""
        if self._is_compiled and not self._has_room((query.shape, layer.shape)):
            return attend_lanes(query, layer, lanes, scale)
        num_kv, (num_rows, num_heads, dim) = layer.shape[0] // 2, query.shape
        keys, values = layer.unsqueeze(0).split(num_kv, 1)
        out: Tensor = self._attend(
            query.transpose(0, 1).unsqueeze(0),
            keys,
            values,
            block_mask=self._mask(lanes),
            scale=scale,
            enable_gqa=num_heads > num_kv,
        )
        return out[0].transpose(0, 1).reshape(num_rows, num_heads * dim)

    def _has_room(self, shape: tuple[torch.Size, torch.Size]) -> bool:
        if shape not in self._shapes and len(self._shapes) < _MAX_SHAPES:
            self._shapes.add(shape)
        return shape in self._shapes

    def _mask(self, lanes: Lanes) -> BlockMask:
        """Made once for all layers of a forward."""
        if self._made is None or self._made[0] is not lanes:
            self._made = lanes, block_mask(seen_slots(lanes))
        return self._made[1]


def seen_slots(lanes: Lanes) -> Tensor:
    """Which slots of the pool each row sees, bool [R, num_slots]."""
    visible = lanes.visible.flatten(0, 1)
    columns = lanes.keys.view(lanes.num_lanes, 1, -1).expand_as(lanes.visible).flatten(0, 1)
    # Added up, because a slot may stand in several columns, in one of them hidden.
    counts = torch.zeros(len(visible), lanes.num_slots, dtype=torch.int32, device=visible.device)
    counts.scatter_add_(1, columns, visible.int())
    return counts.index_select(0, lanes.places) > 0


def block_mask(seen: Tensor) -> BlockMask:
    """The mask of rows that see [R, num_slots], with the pages that any of a block's rows sees."""
    num_rows, num_slots = seen.shape
    blocks = -(-num_rows // KEY_BLOCK)
    padded = seen.new_zeros(blocks * KEY_BLOCK, num_slots)
    padded[:num_rows] = seen
    by_page = padded.view(blocks, KEY_BLOCK, num_slots // KEY_BLOCK, KEY_BLOCK).any(3).any(1)
    order = by_page.int().sort(dim=1, descending=True, stable=True).indices.int()
    counts = by_page.sum(1).int()

    def sees(_b: Tensor, _h: Tensor, row: Tensor, slot: Tensor) -> Tensor:
        return seen[row, slot]

    return BlockMask.from_kv_blocks(
        counts.view(1, 1, -1),
        order.view(1, 1, blocks, -1),
        BLOCK_SIZE=KEY_BLOCK,
        mask_mod=sees,
        seq_lengths=(num_rows, num_slots),
    )

"""Where the rows of one forward sit: positions, slots, and what each may look back on.

A row is a token to process: a final token whose keys are not cached yet, or a tree node.
Every row attends to all keys *before* it and to its own. The own key is merged separately
(`attention.py`), so a row only ever reads slots that hold its earlier positions in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.core.tree import ROOT, TokenTree
from slipstream.models.cache import KEY_BLOCK, KvLayout, round_up

_QUERY_BLOCK = 32
"""Query rows per block of the CPU kernel; a last block of a single row has other bits."""


@dataclass(frozen=True, slots=True)
class Look:
    """Rows `start`..`stop`-1 look back on `width` slots: the first ones, or `slots` each.

    `mask` is additive, None where all is visible: [1, 1, (rows + num_padding) * group, width]
    for query heads in groups per key head, or [rows, 1, 1, width] beside `slots`.
    `slots` is [rows * width] where ancestors are not at the slots of their positions.
    `has_first` says that row `start` is at position 0 and has nothing to look back on.
    """

    start: int
    stop: int
    width: int
    mask: Tensor | None
    num_padding: int = 0
    slots: Tensor | None = None
    has_first: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """One forward: `tokens`, `positions` and `slots` [R], and the looks that cover the rows.

    `order[i]` is the row of the i-th input (pending tokens first, then nodes);
    `write_start` is the first slot when the slots are consecutive, else None.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    slot_list: tuple[int, ...]
    order: tuple[int, ...]
    looks: tuple[Look, ...]
    write_start: int | None

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True, slots=True)
class _Row:
    token: int
    position: int
    slot: int
    ancestors: tuple[int, ...] | None
    """Slots of the tree nodes above, where one of them is not at the slot of its position."""


class RowPlanner:
    """Lays the rows of a forward out for one model's dtype, device, heads and numerics.

    `is_invariant` pads a row's key range to a multiple of 128 that depends on the row's own
    position only, so that its bits depend on neither the batch nor the rest of the tree.
    """

    def __init__(self, layout: KvLayout, group: int, *, is_invariant: bool) -> None:
        """`group` is the number of query heads per key head."""
        self._dtype = layout.dtype
        self._device = layout.device
        self._group = group
        self._is_invariant = is_invariant

    def num_slots(self, end: int, num_nodes: int) -> int:
        """Slots that a forward needs whose final tokens end at `end`."""
        return round_up(end + 2 * num_nodes, KEY_BLOCK)

    def plan(self, count: int, pending: Sequence[int], tree: TokenTree) -> Rows:
        """Rows for `pending` final tokens at positions `count`.. and `tree` below the last."""
        inputs = [_Row(token, count + i, count + i, None) for i, token in enumerate(pending)]
        inputs += _node_rows(count + len(pending), tree)
        ranked = sorted(
            range(len(inputs)), key=lambda i: (inputs[i].ancestors is not None, inputs[i].position)
        )
        rows = [inputs[i] for i in ranked]
        order = [0] * len(rows)
        for row, index in enumerate(ranked):
            order[index] = row
        slots = [row.slot for row in rows]
        is_run = slots == list(range(slots[0], slots[0] + len(slots)))
        return Rows(
            tokens=self._long([row.token for row in rows]),
            positions=self._long([row.position for row in rows]),
            slots=self._long(slots),
            slot_list=tuple(inputs[i].slot for i in range(len(inputs))),
            order=tuple(order),
            looks=tuple(self._looks(rows, count + len(pending))),
            write_start=slots[0] if is_run else None,
        )

    def _long(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)

    def _width(self, position: int) -> int:
        if self._is_invariant:
            return round_up(max(position, 1), KEY_BLOCK)
        return max(position, 1)

    def _looks(self, rows: Sequence[_Row], root_end: int) -> list[Look]:
        looks = []
        start = 0
        while start < len(rows):
            is_moved = rows[start].ancestors is not None
            width = self._width(rows[start].position)
            stop = start + 1
            while stop < len(rows) and (rows[stop].ancestors is not None) == is_moved:
                if self._is_invariant and self._width(rows[stop].position) != width:
                    break
                stop += 1
            looks.append(self._look(rows, slice(start, stop), root_end))
            start = stop
        return looks

    def _look(self, rows: Sequence[_Row], span: slice, root_end: int) -> Look:
        group = rows[span]
        width = self._width(group[-1].position)
        hidden = torch.arange(width, device=self._device) >= self._long(
            [row.position for row in group]
        ).unsqueeze(1)
        mask = torch.zeros(len(group), width, dtype=self._dtype, device=self._device)
        mask.masked_fill_(hidden, float("-inf"))
        if group[0].ancestors is not None:
            slots = self._gathered(group, width, root_end).masked_fill_(hidden, 0).view(-1)
            padding = int(self._group == 1)
            return Look(span.start, span.stop, width, mask[:, None, None], padding, slots)
        padding = int(len(group) * self._group % _QUERY_BLOCK == 1)
        if padding:
            mask = torch.cat([mask, mask[:1]])
        mask = mask.repeat_interleave(self._group, 0)[None, None]
        has_first = group[0].position == 0
        return Look(span.start, span.stop, width, mask, padding, None, has_first)

    def _gathered(self, group: Sequence[_Row], width: int, root_end: int) -> Tensor:
        slots = torch.arange(width, device=self._device).repeat(len(group), 1)
        for at, row in enumerate(group):
            above = row.ancestors or ()
            slots[at, root_end : root_end + len(above)] = self._long(above)
        return slots


def _node_rows(root_end: int, tree: TokenTree) -> list[_Row]:
    """Nodes on the first-child path take the slot of their position, others a slot behind."""
    depths = tree.depths()
    main = _first_path(tree)
    free = root_end + (max(depths) if depths else 0)
    slots: list[int] = []
    rows = []
    for node, (token, depth) in enumerate(zip(tree.tokens, depths, strict=True)):
        position = root_end + depth - 1
        if node in main:
            slots.append(position)
        else:
            slots.append(free)
            free += 1
        above = tree.path(node)[:-1]
        is_straight = all(step in main for step in above)
        ancestors = None if is_straight else tuple(slots[step] for step in above)
        rows.append(_Row(token, position, slots[node], ancestors))
    return rows


def _first_path(tree: TokenTree) -> frozenset[int]:
    path = []
    below = tree.children(ROOT)
    while below:
        path.append(below[0])
        below = tree.children(below[0])
    return frozenset(path)

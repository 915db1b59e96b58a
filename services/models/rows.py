"""Where the rows of one forward sit: positions, slots, and what each may look back on.

A row is a token to process: a final token whose keys are not cached yet, or a tree node.
Every row attends to all keys *before* it and to its own. The own key is merged separately
(`attention.py`), so a row only ever reads slots that hold its earlier positions in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream.core.tree import ROOT, TokenTree
from slipstream.models.cache import KEY_BLOCK, KvLayout, round_up

_QUERY_BLOCK = 32
"""Query rows per block of the CPU kernel; a last block of a single row has other bits."""


@dataclass(frozen=True, slots=True)
class Look:
    """Rows `start`..`stop`-1 look back on `width` slots: the first ones, or `slots` [width], where
    ancestors are not at the slots of their positions.

    `mask` is additive, [1, 1, (rows + num_padding) * group, width], for query heads in groups per
    key head. `has_first` says that row `start` is at position 0 and has nothing to look back on.
    """

    start: int
    stop: int
    width: int
    mask: Tensor
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
    line: tuple[int, ...] | None
    """Slots, from the root's end on, of a path that begins with the tree nodes above the row; None
    where each of these is at the slot of its position. The row sees only what is before it."""


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
        ranked = _ranked(inputs)
        rows = _lined([inputs[i] for i in ranked])
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
            width = self._width(rows[start].position)
            stop = start + 1
            while stop < len(rows) and rows[stop].line == rows[start].line:
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
        padding = int(len(group) * self._group % _QUERY_BLOCK == 1)
        if padding:
            mask = torch.cat([mask, mask[:1]])
        mask = mask.repeat_interleave(self._group, 0)[None, None]
        slots = None
        if (line := group[0].line) is not None:
            slots = torch.arange(width, device=self._device)
            seen = line[: width - root_end]
            slots[root_end : root_end + len(seen)] = self._long(seen)
        has_first = group[0].position == 0
        return Look(span.start, span.stop, width, mask, padding, slots, has_first)


def _ranked(inputs: Sequence[_Row]) -> list[int]:
    """Rows in place by position; then the others path by path, so that those which can look back
    on the same slots are neighbours."""
    in_place = [i for i, row in enumerate(inputs) if row.line is None]
    paths: list[list[int]] = []
    moved = [i for i, row in enumerate(inputs) if row.line is not None]
    for index in sorted(moved, key=lambda i: -inputs[i].position):
        path = next((path for path in paths if _begins(inputs[index], inputs[path[0]])), None)
        if path is None:
            paths.append([index])
        else:
            path.append(index)
    ranked = sorted(in_place, key=lambda i: inputs[i].position)
    return ranked + [index for path in paths for index in reversed(path)]


def _lined(rows: Sequence[_Row]) -> list[_Row]:
    """Give each moved row the line of the last row on its path, which goes on from its own."""
    out: list[_Row] = []
    for row in reversed(rows):
        goes_on = row.line is not None and bool(out) and _begins(row, out[-1])
        out.append(replace(row, line=out[-1].line) if goes_on else row)
    return out[::-1]


def _begins(row: _Row, other: _Row) -> bool:
    """Whether what `row` looks back on is a beginning of what `other` does."""
    assert row.line is not None
    return other.line is not None and other.line[: len(row.line)] == row.line


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
        line = None if is_straight else tuple(slots[step] for step in above)
        rows.append(_Row(token, position, slots[node], line))
    return rows


def _first_path(tree: TokenTree) -> frozenset[int]:
    path = []
    below = tree.children(ROOT)
    while below:
        path.append(below[0])
        below = tree.children(below[0])
    return frozenset(path)

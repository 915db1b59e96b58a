"""Where the rows of one forward sit: positions, slots, and what each may look back on.

A row is a token to process: a final token whose keys are not cached yet, or a tree node.
Every row attends to all keys *before* it and to its own. The own key is merged separately
(`attention.py`), so a row only ever reads slots that hold its earlier positions in order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream.core.errors import CapacityError
from slipstream.core.tree import EMPTY, ROOT, TokenTree
from slipstream.models.cache import KvCache
from slipstream.models.invariance import ANY_QUERIES, QueryRule
from slipstream.models.pool import KEY_BLOCK, KvLayout, round_up


@dataclass(frozen=True, slots=True)
class Part:
    """What one session adds to a forward: `pending` final tokens behind those its cache holds, and
    a `tree` below the last of them."""

    cache: KvCache
    pending: Sequence[int]
    tree: TokenTree = EMPTY

    @property
    def end(self) -> int:
        """The position behind the last pending token."""
        return self.cache.count + len(self.pending)


@dataclass(frozen=True, slots=True)
class Look:
    """Rows `start`..`stop`-1 look back on `width` slots: neighbours from `base` on, or `slots`
    [width], where positions or ancestors are scattered.

    `mask` is additive, [1, 1, (rows + padding) * group, width], for query heads in groups per key
    head, or [rows, 1, group, width] where each row `is_apart` (see `attention.py`). `has_first`
    says that row `start` is at position 0 and has nothing to look back on.
    """

    start: int
    stop: int
    width: int
    mask: Tensor
    base: int = 0
    slots: Tensor | None = None
    has_first: bool = False
    is_apart: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """One forward: `tokens`, `positions` and `slots` [R], and the looks that cover the rows.

    `order[i]` is the row of the i-th input, part by part, pending tokens before nodes; `places`
    are the inputs' slots by part. `write_start` is the first slot when the rows' slots are
    consecutive, else None.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    places: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    looks: tuple[Look, ...]
    write_start: int | None

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """A row's token, and where it stands."""

    token: int
    position: int
    slot: int
    line: tuple[int, ...] | None
    """Slots, from the root's end on, of a path that begins with the tree nodes above the row; None
    where each of these is at the slot of its position. The row sees only what is before it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One part's rows in the order they are computed in; `order[i]` is the row of its i-th input,
    `places` are the inputs' slots."""

    rows: Sequence[PlacedRow]
    order: Sequence[int]
    places: tuple[int, ...]


class RowPlanner:
    """Lays the rows of a forward out for one model's dtype, device, heads and numerics.

    `is_invariant` pads a row's key range to a multiple of 128 that depends on the row's own
    position only, so that its bits depend on neither the batch nor the rest of the tree.
    """

    def __init__(
        self, layout: KvLayout, group: int, *, is_invariant: bool, rule: QueryRule = ANY_QUERIES
    ) -> None:
        """`group` is the number of query heads per key head; `rule` says which numbers of rows may
        look back together."""
        self._dtype = layout.dtype
        self._device = layout.device
        self._group = group
        self._is_invariant = is_invariant
        self._rule = rule

    def plan(self, parts: Sequence[Part]) -> Rows:
        """Rows for all parts of a forward; their caches share a pool and have room for `end`."""
        rows: list[PlacedRow] = []
        looks: list[Look] = []
        order: list[int] = []
        layouts = lay_out(parts)
        for part, layout in zip(parts, layouts, strict=True):
            order += [len(rows) + row for row in layout.order]
            looks += self._looks(layout.rows, part, len(rows))
            rows += layout.rows
        slots = [row.slot for row in rows]
        is_run = slots == list(range(slots[0], slots[0] + len(slots)))
        return Rows(
            tokens=self._long([row.token for row in rows]),
            positions=self._long([row.position for row in rows]),
            slots=self._long(slots),
            places=tuple(layout.places for layout in layouts),
            order=tuple(order),
            looks=tuple(looks),
            write_start=slots[0] if is_run else None,
        )

    def _long(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)

    def _width(self, position: int) -> int:
        if self._is_invariant:
            return round_up(max(position, 1), KEY_BLOCK)
        return max(position, 1)

    def _looks(self, rows: Sequence[PlacedRow], part: Part, offset: int) -> list[Look]:
        """The looks of one part's rows, which are those from `offset` on of the forward."""
        looks = []
        start = 0
        while start < len(rows):
            width = self._width(rows[start].position)
            stop = start + 1
            most = min(len(rows), start + self._rule.max_rows)
            while stop < most and rows[stop].line == rows[start].line:
                if self._is_invariant and self._width(rows[stop].position) != width:
                    break
                stop += 1
            looks.append(self._look(rows[start:stop], part, offset + start))
            start = stop
        return looks

    def _look(self, group: Sequence[PlacedRow], part: Part, start: int) -> Look:
        width = self._width(group[-1].position)
        hidden = torch.arange(width, device=self._device) >= self._long(
            [row.position for row in group]
        ).unsqueeze(1)
        mask = torch.zeros(len(group), width, dtype=self._dtype, device=self._device)
        mask.masked_fill_(hidden, float("-inf"))
        mask = self._rule.shaped(mask, self._group)
        base, line = part.cache.base(width), group[0].line
        slots = None
        if line is not None or base is None:
            slots = part.cache.table(width)
        if slots is not None and line is not None:
            seen = line[: width - part.end]
            slots = slots.clone()
            slots[part.end : part.end + len(seen)] = self._long(seen)
        has_first = group[0].position == 0
        stop = start + len(group)
        return Look(start, stop, width, mask, base or 0, slots, has_first, self._rule.is_apart)


def lay_out(parts: Sequence[Part]) -> list[Layout]:
    """Where the rows of each part stand. Raises `CapacityError` where scratch slots run out."""
    scratch = iter(parts[0].cache.pool.scratch)
    layouts = []
    for part in parts:
        inputs = _inputs(part, scratch)
        ranked = _ranked(inputs)
        order = [0] * len(inputs)
        for row, index in enumerate(ranked):
            order[index] = row
        lined = _lined([inputs[i] for i in ranked])
        layouts.append(Layout(lined, order, tuple(row.slot for row in inputs)))
    return layouts


def _ranked(inputs: Sequence[PlacedRow]) -> list[int]:
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


def _lined(rows: Sequence[PlacedRow]) -> list[PlacedRow]:
    """Give each moved row the line of the last row on its path, which goes on from its own."""
    out: list[PlacedRow] = []
    for row in reversed(rows):
        goes_on = row.line is not None and bool(out) and _begins(row, out[-1])
        out.append(replace(row, line=out[-1].line) if goes_on else row)
    return out[::-1]


def _begins(row: PlacedRow, other: PlacedRow) -> bool:
    """Whether what `row` looks back on is a beginning of what `other` does."""
    assert row.line is not None
    return other.line is not None and other.line[: len(row.line)] == row.line


def _inputs(part: Part, scratch: Iterator[int]) -> list[PlacedRow]:
    """Pending tokens at the slots of their positions, then the nodes of the tree."""
    cache = part.cache
    rows = [
        PlacedRow(token, at, cache.slot(at), None)
        for at, token in enumerate(part.pending, start=cache.count)
    ]
    return rows + _node_rows(part, scratch)


def _node_rows(part: Part, scratch: Iterator[int]) -> list[PlacedRow]:
    """Nodes on the first-child path take the slot of their position while the session has one,
    others a scratch slot."""
    tree, cache = part.tree, part.cache
    main = _first_path(tree)
    slots: list[int] = []
    in_place: list[bool] = []
    rows = []
    for node, (token, depth) in enumerate(zip(tree.tokens, tree.depths(), strict=True)):
        position = part.end + depth - 1
        in_place.append(node in main and position < cache.num_slots)
        slots.append(cache.slot(position) if in_place[-1] else _next(scratch))
        above = tree.path(node)[:-1]
        is_straight = all(in_place[step] for step in above)
        line = None if is_straight else tuple(slots[step] for step in above)
        rows.append(PlacedRow(token, position, slots[node], line))
    return rows


def _next(scratch: Iterator[int]) -> int:
    slot = next(scratch, None)
    if slot is None:
        raise CapacityError("the trees of a forward have more nodes than there is scratch room for")
    return slot


def _first_path(tree: TokenTree) -> frozenset[int]:
    path = []
    below = tree.children(ROOT)
    while below:
        path.append(below[0])
        below = tree.children(below[0])
    return frozenset(path)

"""Batched tokens of one forward: positions, slots, and the keys that each attends to.

A token is a final one whose keys are not cached yet, or a tree node. It attends to all keys
*before* it and to its own, which is merged separately (`attention.py`): so it only ever reads
slots that hold its earlier positions in order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream.core.errors import CapacityError
from slipstream.core.tree import EMPTY, ROOT, TokenTree
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout, round_up
from slipstream.models.numerics.invariance import ANY_QUERIES, QueryRule


@dataclass(frozen=True, slots=True)
class Part:
    """A session's part of a forward: `pending` final tokens behind those its cache holds, and
    a `tree` below the last of them."""

    cache: KvCache
    pending: Sequence[int]
    tree: TokenTree = EMPTY

    @property
    def end(self) -> int:
        """The position behind the last pending token."""
        return self.cache.count + len(self.pending)


@dataclass(frozen=True, slots=True)
class QuerySegment:
    """Attention metadata of tokens `start`..`stop`-1, which read the same `width` slots:
    neighbours from `base` on, or `slots` [width], where positions or ancestors are scattered.

    `mask` is additive, [1, 1, (tokens + padding) * group, width], for query heads in groups per
    key head, or [tokens, 1, group, width] where each token `is_apart` (see `operators.py`).
    `has_first` says that token `start` is at position 0, with no key before it.
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
class BatchedTokens:
    """One forward: `tokens`, `positions` and `slots` [R], and the segments that cover them.

    `order[i]` is the place of the i-th input, part by part, pending tokens before nodes; `places`
    are the inputs' slots by part. `write_start` is the first slot where slots are consecutive.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    places: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    segments: tuple[QuerySegment, ...]
    write_start: int | None

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True, slots=True)
class TokenPlacement:
    """A token with its position and its slot."""

    token: int
    position: int
    slot: int
    path_slots: tuple[int, ...] | None
    """Slots, from the root's end on, of a path that begins with the nodes above the token; None
    where each of these is at the slot of its position. The token sees only what is before it."""


@dataclass(frozen=True, slots=True)
class PartLayout:
    """One part's tokens in the order they are computed in; `order[i]` is the place of its i-th
    input, `places` are the inputs' slots."""

    tokens: Sequence[TokenPlacement]
    order: Sequence[int]
    places: tuple[int, ...]


class BatchPlanner:
    """Attention metadata of forwards for one model's dtype, device, heads and numerics.

    `is_invariant` pads a token's key range to a multiple of 128 that depends on its own position
    only, so that its bits depend on neither the batch nor the rest of the tree.
    """

    def __init__(
        self, layout: KvLayout, group: int, *, is_invariant: bool, rule: QueryRule = ANY_QUERIES
    ) -> None:
        """`group` is the number of query heads per key head; `rule` says how many tokens may
        attend together."""
        self._dtype = layout.dtype
        self._device = layout.device
        self._group = group
        self._is_invariant = is_invariant
        self._rule = rule

    def plan(self, parts: Sequence[Part]) -> BatchedTokens:
        """Return the tokens of all parts; their caches share a pool and have room for `end`."""
        rows: list[TokenPlacement] = []
        segments: list[QuerySegment] = []
        order: list[int] = []
        layouts = lay_out(parts)
        for part, layout in zip(parts, layouts, strict=True):
            order += [len(rows) + row for row in layout.order]
            segments += self._segments(layout.tokens, part, len(rows))
            rows += layout.tokens
        slots = [row.slot for row in rows]
        is_run = slots == list(range(slots[0], slots[0] + len(slots)))
        return BatchedTokens(
            tokens=self._long([row.token for row in rows]),
            positions=self._long([row.position for row in rows]),
            slots=self._long(slots),
            places=tuple(layout.places for layout in layouts),
            order=tuple(order),
            segments=tuple(segments),
            write_start=slots[0] if is_run else None,
        )

    def _long(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)

    def _width(self, position: int) -> int:
        if self._is_invariant:
            return round_up(max(position, 1), BLOCK_SIZE)
        return max(position, 1)

    def _segments(
        self, rows: Sequence[TokenPlacement], part: Part, offset: int
    ) -> list[QuerySegment]:
        """Return the segments of one part's tokens, those from `offset` on of the forward."""
        segments = []
        start = 0
        while start < len(rows):
            width = self._width(rows[start].position)
            stop = start + 1
            most = min(len(rows), start + self._rule.max_rows)
            while stop < most and rows[stop].path_slots == rows[start].path_slots:
                if self._is_invariant and self._width(rows[stop].position) != width:
                    break
                stop += 1
            segments.append(self._segment(rows[start:stop], part, offset + start))
            start = stop
        return segments

    def _segment(self, group: Sequence[TokenPlacement], part: Part, start: int) -> QuerySegment:
        width = self._width(group[-1].position)
        hidden = torch.arange(width, device=self._device) >= self._long(
            [row.position for row in group]
        ).unsqueeze(1)
        mask = torch.zeros(len(group), width, dtype=self._dtype, device=self._device)
        mask.masked_fill_(hidden, float("-inf"))
        mask = self._rule.shaped(mask, self._group)
        base, path_slots = part.cache.base(width), group[0].path_slots
        slots = None
        if path_slots is not None or base is None:
            slots = part.cache.table(width)
        if slots is not None and path_slots is not None:
            seen = path_slots[: width - part.end]
            slots = slots.clone()
            slots[part.end : part.end + len(seen)] = self._long(seen)
        has_first = group[0].position == 0
        stop = start + len(group)
        return QuerySegment(
            start, stop, width, mask, base or 0, slots, has_first, self._rule.is_apart
        )


def lay_out(parts: Sequence[Part]) -> list[PartLayout]:
    """Return where the tokens of each part go. Raises `CapacityError` without scratch slots."""
    scratch = iter(parts[0].cache.pool.scratch)
    layouts = []
    for part in parts:
        inputs = _inputs(part, scratch)
        ranked = _ranked(inputs)
        order = [0] * len(inputs)
        for row, index in enumerate(ranked):
            order[index] = row
        placed = _with_longest_paths([inputs[i] for i in ranked])
        layouts.append(PartLayout(placed, order, tuple(row.slot for row in inputs)))
    return layouts


def _ranked(inputs: Sequence[TokenPlacement]) -> list[int]:
    """Return tokens in place by position; then the others path by path, so that those which can
    read the same slots are neighbours."""
    in_place = [i for i, row in enumerate(inputs) if row.path_slots is None]
    paths: list[list[int]] = []
    moved = [i for i, row in enumerate(inputs) if row.path_slots is not None]
    for index in sorted(moved, key=lambda i: -inputs[i].position):
        path = next((path for path in paths if _begins(inputs[index], inputs[path[0]])), None)
        if path is None:
            paths.append([index])
        else:
            path.append(index)
    ranked = sorted(in_place, key=lambda i: inputs[i].position)
    return ranked + [index for path in paths for index in reversed(path)]


def _with_longest_paths(rows: Sequence[TokenPlacement]) -> list[TokenPlacement]:
    """Give each moved token the slots of the longest path that goes on from its own."""
    out: list[TokenPlacement] = []
    for row in reversed(rows):
        goes_on = row.path_slots is not None and bool(out) and _begins(row, out[-1])
        out.append(replace(row, path_slots=out[-1].path_slots) if goes_on else row)
    return out[::-1]


def _begins(row: TokenPlacement, other: TokenPlacement) -> bool:
    """Return whether a token's path is the beginning of another's."""
    own, longer = row.path_slots, other.path_slots
    assert own is not None
    return longer is not None and longer[: len(own)] == own


def _inputs(part: Part, scratch: Iterator[int]) -> list[TokenPlacement]:
    """Return pending tokens at the slots of their positions, then the nodes of the tree."""
    cache = part.cache
    rows = [
        TokenPlacement(token, at, cache.slot(at), None)
        for at, token in enumerate(part.pending, start=cache.count)
    ]
    return rows + _nodes(part, scratch)


def _nodes(part: Part, scratch: Iterator[int]) -> list[TokenPlacement]:
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
        path_slots = None if is_straight else tuple(slots[step] for step in above)
        rows.append(TokenPlacement(token, position, slots[node], path_slots))
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


@dataclass(frozen=True, slots=True)
class Draw:
    """Draw of the token behind input `index` of a forward: see `core.verify.draws`."""

    index: int
    temperature: float
    keys: tuple[int, int]


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """A forward whose tokens are drawn: `hidden` [rows, d] is overwritten by the next forward,
    `places` are the rows' slots by part."""

    hidden: Tensor
    places: tuple[tuple[int, ...], ...]
    tokens: list[int]

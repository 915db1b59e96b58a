"""Batched tokens of one forward: positions, slots, and the keys that each attends to.

A token is a final one whose keys are not cached yet, or a tree node. It attends to all keys
*before* it and to its own, which is merged separately (`attention.py`): so it only ever reads
slots that hold its earlier positions in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout, round_up
from slipstream.models.numerics.invariance import ANY_QUERIES, QueryRule
from slipstream.models.target.token_layout import Part, TokenPlacement, lay_out
from slipstream.models.torch_arrays import torch_dtype


@dataclass(frozen=True, slots=True)
class QuerySegment:
    """Attention metadata of tokens `start`..`stop`-1, which read the same `width` slots:
    neighbours from `base` on, or `slots` [width], where positions or ancestors are scattered.

    `mask` is additive, [1, 1, (tokens + padding) * group, width], for query heads in groups per
    key head, or [tokens, 1, group, width] where each token `is_apart` (see `operators.py`).
    `has_first` if token `start` is at position 0, with no key before it.
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


class BatchPlanner:
    """Attention metadata of forwards for one model's dtype, device, heads and numerics.

    `is_invariant` pads a token's key range to a multiple of 128 that depends on its own position
    only, so that its bits depend on neither the batch nor the rest of the tree.
    """

    def __init__(
        self, layout: KvLayout, group: int, *, is_invariant: bool, rule: QueryRule = ANY_QUERIES
    ) -> None:
        """`group` is the number of query heads per key head; `rule` limits how many tokens may
        attend together."""
        self._dtype = torch_dtype(layout.dtype)
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
            slots = _table(part.cache, width)
        if slots is not None and path_slots is not None:
            seen = path_slots[: width - part.end]
            slots = slots.clone()
            slots[part.end : part.end + len(seen)] = self._long(seen)
        has_first = group[0].position == 0
        stop = start + len(group)
        return QuerySegment(
            start, stop, width, mask, base or 0, slots, has_first, self._rule.is_apart
        )


def _table(cache: KvCache, width: int) -> Tensor:
    """Return slots [width] of the first positions; any slot stands for those without a page."""
    table: Tensor = cache.table()
    missing = max(width - len(table), 0)
    return torch.cat([table, table[:1].expand(missing)]) if missing else table[:width]

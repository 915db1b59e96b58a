"""Layout of a forward's tokens: positions, slots and ancestors, before any array is made of them.

A token is a final one whose keys are not cached yet, or a tree node.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slipstream.core.errors import CapacityError
from slipstream.core.tree import EMPTY, ROOT, TokenTree
from slipstream.models.kv.cache import KvCache


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
        TokenPlacement(token, position, cache.slot(position), None)
        for position, token in enumerate(part.pending, start=cache.count)
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

    hidden: Any
    places: tuple[tuple[int, ...], ...]
    tokens: list[int]

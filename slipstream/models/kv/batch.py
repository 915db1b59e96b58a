"""The tokens of one forward, laid out once: native code, torch and CUDA read the same record."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CapacityError
from slipstream.core.tree import EMPTY, ROOT, TokenTree
from slipstream.core.types import SamplingParams
from slipstream.core.verify.distribution import Edits
from slipstream.models.kv.cache import KvCache

Mask = NDArray[np.uint8]
"""A bit for each token that is allowed, the lowest of a byte first; none behind the last byte."""


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


@dataclass(slots=True)
class Batch:
    """Tokens in the order of their inputs: part by part, pending tokens before nodes.

    A token's keys and values go to its slot. It sees the first `num_seen` slots of its
    cache's block table, then those of its `ancestors`, the last of which is its own; without any
    its own is in the table. `sizes` are the numbers of tokens by part.
    """

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    block_tables: list[KvCache] = field(default_factory=list)
    num_seen: list[int] = field(default_factory=list)
    ancestors: list[Sequence[int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Sequence[Part]) -> "Batch":
        """Lay parts out, whose caches share a pool and have room. Raises `CapacityError` for more
        nodes beside their positions than there are scratch slots."""
        batch, scratch = cls(), iter(parts[0].cache.pool.scratch)
        for part in parts:
            size = len(part.pending) + len(part.tree)
            # A chain with room for it is as more of the text.
            if part.tree.is_chain() and part.cache.count + size <= part.cache.num_slots:
                batch._add_line(part.cache, [*part.pending, *part.tree.tokens])
            else:
                batch._add_line(part.cache, part.pending)
                batch._add_nodes(part, scratch)
            batch.block_tables += [part.cache] * size
            batch.sizes.append(size)
        return batch

    def __len__(self) -> int:
        return len(self.tokens)

    def slots_by_part(self) -> tuple[tuple[int, ...], ...]:
        ends = accumulate(self.sizes, initial=0)
        return tuple([tuple(self.slots[start:stop]) for start, stop in pairwise(ends)])

    def _add_line(self, cache: KvCache, tokens: Sequence[int]) -> None:
        """Add tokens at the positions that follow the cache's count."""
        start, end = cache.count, cache.count + len(tokens)
        self.tokens += tokens
        self.positions += range(start, end)
        self.slots += cache.table()[start:end].tolist()
        self.num_seen += range(start + 1, end + 1)
        self.ancestors += [()] * len(tokens)

    def _add_nodes(self, part: Part, scratch: Iterator[int]) -> None:
        """Add a tree: nodes on the first-child path take the slot of their position while the
        session has one, others a scratch slot."""
        tree, cache, none = part.tree, part.cache, tuple[int, ...]()
        main, above = set[int](), {ROOT: (none, True, part.end)}
        below = tree.children(ROOT)
        while below:
            main.add(below[0])
            below = tree.children(below[0])
        for node, parent in enumerate(tree.parents):
            path, is_straight, position = above[parent]
            is_placed = node in main and position < cache.num_slots
            slot = cache.slot(position) if is_placed else _next(scratch)
            path = (*path, slot)
            # While all parents are at their positions, it sees them there.
            above[node] = path, is_straight and is_placed, position + 1
            self.num_seen.append(position + is_placed if is_straight else part.end)
            seen = none if is_placed else (slot,)
            self.ancestors.append(seen if is_straight else path)
            self.positions.append(position)
            self.slots.append(slot)
        self.tokens += tree.tokens


def _next(scratch: Iterator[int]) -> int:
    slot = next(scratch, None)
    if slot is None:
        raise CapacityError("the trees of a forward have more nodes than there is scratch room for")
    return slot


@dataclass(frozen=True, slots=True)
class Draw:
    """Draw of the token behind input `index` of a forward: see `core.verify.draws`."""

    index: int
    sampling: SamplingParams
    keys: tuple[int, int]
    edits: tuple[Edits, ...] = ()
    """Up to two, of which the second counts where both change a token; rows may share them."""
    mask: Mask | None = None
    """Tokens that are allowed; None: all are."""

"""Which tree nodes see which: the dynamic sliced topology-aware causal mask.

One ancestor mask is built for the largest tree of a topology, in breadth-first order; every
level and every smaller tree is a view of it, so nothing is built per round. (Improving
Multi-Candidate Speculative Decoding, 2024, section on dynamic sliced masks.) Knows topologies
only: no tokens, no cached prefix, no attention.
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.core.tree import ROOT


def ancestor_mask(parents: Sequence[int]) -> Tensor:
    """Bool [n, n]: row i is true at i and at the ancestors of node i. Parents come first."""
    count = len(parents)
    mask = torch.eye(count, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent != ROOT:
            mask[node] |= mask[parent]
    return mask


class SlicedMask:
    """The ancestor mask of the largest tree of a topology, and views of its parts.

    `parents` are in breadth-first order: parents before children, no level begun twice. Then
    any number of first levels is a corner of the mask, and so is any number of first nodes.
    """

    def __init__(self, parents: Sequence[int]) -> None:
        self._starts = _level_starts(parents)
        self._mask = ancestor_mask(parents)

    def __len__(self) -> int:
        return self._mask.shape[0]

    @property
    def num_levels(self) -> int:
        return len(self._starts) - 1

    def level(self, depth: int) -> Tensor:
        """Rows of the nodes at `depth` (from 1) over all nodes down to it: [width, nodes so far].

        What a draft step needs that feeds one whole level.
        """
        start, end = self.span(depth)
        return self._mask[start:end, :end]

    def upto(self, num_nodes: int) -> Tensor:
        """The mask [num_nodes, num_nodes] of the tree that ends after `num_nodes` nodes."""
        if not 0 <= num_nodes <= len(self):
            raise ValueError(f"{num_nodes} nodes asked for, but the largest tree has {len(self)}")
        return self._mask[:num_nodes, :num_nodes]

    def span(self, depth: int) -> tuple[int, int]:
        """First node at `depth` (from 1), and the first one after that level."""
        if not 1 <= depth <= self.num_levels:
            raise ValueError(f"depth {depth} asked for, but the topology has {self.num_levels}")
        return self._starts[depth - 1], self._starts[depth]


def _level_starts(parents: Sequence[int]) -> list[int]:
    starts: list[int] = []
    depths: list[int] = []
    for node, parent in enumerate(parents):
        if not ROOT <= parent < node:
            raise ValueError(f"node {node} has parent {parent}; parents come first")
        depth = 1 if parent == ROOT else depths[parent] + 1
        if depth < len(starts):
            raise ValueError(f"node {node} is at depth {depth} after a deeper one")
        if depth > len(starts):
            starts.append(node)
        depths.append(depth)
    return [*starts, len(parents)]


def product_topology(widths: Sequence[int]) -> tuple[int, ...]:
    """Parents of the full product tree, breadth-first: each node at depth d has widths[d] children.

    (2, 1) is two roots with one child each: (-1, -1, 0, 1).
    """
    parents: list[int] = []
    level: range | tuple[int, ...] = (ROOT,)
    for width in widths:
        if width < 1:
            raise ValueError(f"a width is {width}, but must be at least 1")
        start = len(parents)
        parents.extend(node for node in level for _ in range(width))
        level = range(start, len(parents))
    return tuple(parents)


def max_cape_topology(depth: int, widths: int) -> tuple[int, ...]:
    """Parents of the largest chain with leaves, breadth-first: `widths` nodes at each depth.

    The first node of each level is the chain's, the others are leaves beside it.
    """
    if depth < 0 or widths < 1:
        raise ValueError(f"depth is {depth} and widths {widths}, but need at least 0 and 1")
    chain = [ROOT, *range(0, (depth - 1) * widths, widths)][:depth]
    return tuple(parent for parent in chain for _ in range(widths))


class MaskCache:
    """Ancestor masks of topologies met before. Holds `capacity` of them; the oldest go first."""

    def __init__(self, capacity: int = 256) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, but must be at least 1")
        self._capacity = capacity
        self._masks: OrderedDict[tuple[int, ...], Tensor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._masks)

    def get(self, parents: tuple[int, ...]) -> Tensor:
        """The ancestor mask [n, n] of `parents`. Callers don't write to it."""
        mask = self._masks.get(parents)
        if mask is None:
            mask = self._masks[parents] = ancestor_mask(parents)
            if len(self._masks) > self._capacity:
                self._masks.popitem(last=False)
        return mask

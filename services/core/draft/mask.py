"""The dynamic sliced topology-aware causal mask: which tree nodes see which.

One ancestor mask is built for the largest tree of a topology. A level on its way there is its
last rows, a smaller tree its corner: views, so that a known topology costs nothing per round.
(Improving Multi-Candidate Speculative Decoding, 2024, section on dynamic sliced masks.) Knows
topologies only: no tokens, no cached prefix, no attention.
"""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.core.tree import ROOT

Topology = tuple[int, ...]
"""Parents of a tree's nodes, parents first."""


def ancestor_mask(parents: Sequence[int]) -> Tensor:
    """Bool [n, n]: row i is true at i and at the ancestors of node i. Parents come first."""
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if not ROOT <= parent < node:
            raise ValueError(f"node {node} has parent {parent}; parents come first")
        if parent != ROOT:
            mask[node] |= mask[parent]
    return mask


class SlicedMasks:
    """Masks of the topologies met last, each of them the largest of its kind.

    A tree that grows level by level asks for a little more each time; when the same topology
    comes again, all of its levels are slices of the mask that its last one left here.
    """

    def __init__(self, capacity: int = 32) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, but must be at least 1")
        self._masks: deque[tuple[Topology, Tensor]] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._masks)

    def rows(self, parents: Topology, start: int) -> Tensor:
        """Rows of the nodes from `start` on over all nodes: a view [n - start, n]."""
        size = len(parents)
        for topology, mask in self._masks:
            if topology[:size] == parents:
                return mask[start:size, :size]
        mask = ancestor_mask(parents)
        outgrown = [entry for entry in self._masks if entry[0] == parents[: len(entry[0])]]
        for entry in outgrown:
            self._masks.remove(entry)
        self._masks.appendleft((parents, mask))
        return mask[start:]

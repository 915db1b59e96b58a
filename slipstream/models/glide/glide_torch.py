"""A GliDe draft's pass in torch, over packed layers: what tokens see, as slots and masks."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from slipstream.core.tree import ROOT
from slipstream.models.glide.glide_files import glide_model
from slipstream.models.glide.glide_packed import (
    DraftLinear,
    DraftTokens,
    GlideParts,
    PackedLayer,
    PackedNorm,
    PooledAttention,
    Slots,
)
from slipstream.models.glide.glide_state import GlideState, SessionStep
from slipstream.models.glide.glide_weights import GlideWeights
from slipstream.models.glide.target_parts import TargetParts
from slipstream.models.glide.torch_parts import TorchParts, rotary_tables
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import KvLayout
from slipstream.models.scorer import Scores, on_host
from slipstream.models.target.rotary_factors import RotaryFactors
from slipstream.models.torch.buffers import TorchBuffers
from slipstream.models.torch_arrays import as_tensor, torch_dtype

Topology = tuple[int, ...]
"""Parents of a tree's nodes, parents first."""


class TorchGlide:
    """Layers and head of one draft; `weight_bytes` is what its weights take."""

    engine = "torch"

    def __init__(self, weights: GlideWeights, target: TargetParts, layout: KvLayout) -> None:
        assert isinstance(target, TorchParts), "native code computes drafts of its own targets"
        self.buffers = TorchBuffers(layout.device)
        dtype = self._dtype = torch_dtype(layout.dtype)
        model = glide_model(weights).to(layout.device)
        head = target.head[as_tensor(weights.vocab).to(layout.device)]
        self._target = target
        self._embeddings = target.embeddings.to(dtype)
        self._layers = [PackedLayer(layer, dtype) for layer in model.layers]
        self._norm = PackedNorm(model.norm, dtype)
        self._head, self._head_size = DraftLinear(head.to(dtype)), len(head)
        self._masks = SlicedMasks()
        self._rotary = RotaryFactors(torch.empty(0), torch.empty(0))
        count = sum(weight.numel() for weight in model.parameters()) + head.numel()
        size = dtype.itemsize + 1  # 8-bit weights lie beside the others
        self.weight_bytes = count * size + self._embeddings.nbytes

    def parts(self, length: int) -> GlideParts:
        """Return what scores are computed with, for positions below `length`."""
        return GlideParts(
            embeddings=self._embeddings,
            layers=self._layers,
            norm=self._norm,
            head=self._head,
            rotation=self._tables(length),
        )

    def reach(self, length: int) -> None:
        """Compute rotary factors of positions 0..length-1."""
        self._rotary = self._tables(length)

    def readable(self, values: Any) -> Tensor:
        """Return keys or values [kv_heads, n, head_dim] of the target as a step reads them."""
        return as_tensor(values)[None].to(self._dtype)

    @torch.inference_mode()
    def scores(self, steps: Sequence[SessionStep]) -> Scores:
        """Return scores of the tokens that go on, step by step."""
        pool = steps[0].state.cache.pool
        x = self._embed(list(chain.from_iterable(step.tokens for step in steps)))
        parts = [self._last(step) for step in steps]
        rotation = self._rotation(steps, parts[0])
        *earlier, final = self._layers
        if earlier:
            whole = [self._whole(*both) for both in zip(steps, parts, strict=True)]
            for index, layer in enumerate(earlier):
                x = layer(x, index, PooledAttention(pool, whole, rotation))
        batch = PooledAttention(pool, parts, rotation, self._kept(parts))
        return self._scores(final(x, len(earlier), batch))

    def _last(self, step: SessionStep) -> DraftTokens:
        """Return a step's tokens in the last layer."""
        state, count = step.state, len(step.tokens)
        slots, seen = _places(state.cache, step.start, step.start + count)
        if step.first_node < 0:
            return DraftTokens(slots, seen, count, step.num_kept, None, _before(state, 1), None)
        mask = None
        if not state.is_chain:
            above = self._masks.rows(tuple(state.parents), step.first_node)
            mask = _tree_mask(
                above.to(self._embeddings.device), len(state.tokens), self._embeddings
            )
        return DraftTokens(slots, seen, count, count, mask, state.target_kv, None)

    def _whole(self, step: SessionStep, last: DraftTokens) -> DraftTokens:
        """Return a step's tokens in the layers before the last: all of them go on."""
        if step.first_node >= 0:
            return last
        own, cross = self._prefix_masks(step)
        kv = step.state.target_kv
        return DraftTokens(last.slots, last.seen, last.count, last.count, own, kv, cross)

    def _scores(self, x: Tensor) -> Scores:
        hidden = self._norm(x) if x.size(0) else x
        logits = self._head(hidden) if x.size(0) else x.new_empty(0, self._head_size)
        return Scores(on_host(logits), on_host(hidden))

    def _embed(self, tokens: Sequence[int]) -> Tensor:
        if len(tokens) == 1:
            return self._embeddings[tokens[0] : tokens[0] + 1]
        return self._embeddings[torch.tensor(tokens, device=self._embeddings.device)]

    def _prefix_masks(self, step: SessionStep) -> tuple[Tensor, Tensor]:
        """Return masks of a prefix's new tokens over their own and the target's positions, in a
        layer whose outputs the next layer's keys need."""
        count, seen = len(step.state.tokens), step.num_read
        own = torch.arange(step.start, count, device=self._embeddings.device)[:, None]
        cross = _additive(torch.arange(seen, device=own.device)[None] < own, self._embeddings)
        mask = _additive(torch.arange(count, device=own.device)[None] <= own, self._embeddings)
        if step.start == 0 and seen:
            cross[0, 0] = 0  # position 0 has nothing before it; training lets it read itself
        return mask, cross

    def _kept(self, parts: Sequence[DraftTokens]) -> Slots | None:
        """Return which tokens of a pass go on behind the last layer's keys."""
        if all(rows.num_kept == rows.count for rows in parts):
            return None
        if len(parts) == 1:
            return slice(parts[0].count - parts[0].num_kept, None)
        return torch.tensor(list(_kept_rows(parts)), device=self._embeddings.device)

    def _tables(self, length: int) -> RotaryFactors:
        return RotaryFactors.of(*rotary_tables(self._target, length, dtype=self._dtype))

    def _rotation(self, steps: Sequence[SessionStep], first: DraftTokens) -> RotaryFactors:
        """Return the rotary factors of all tokens."""
        positions = list(chain.from_iterable(step.positions for step in steps))
        start, last = positions[0], positions[-1]
        is_run = last - start + 1 == len(positions) and first.self_mask is None
        if len(steps) == 1 and is_run:
            return self._rotary.at(slice(start, last + 1))
        return self._rotary.at(torch.tensor(positions, device=self._embeddings.device))


def _before(state: GlideState, back: int) -> Sequence[tuple[Tensor, Tensor]]:
    """Return what the token `back` places before the end of the prefix reads: earlier positions."""
    limit = len(state.tokens) - back
    if not state.target_kv or state.target_kv[0][0].shape[2] <= limit:
        return state.target_kv
    pairs = [(keys[:, :, :limit], values[:, :, :limit]) for keys, values in state.target_kv]
    return pairs if limit else ()


def _places(cache: KvCache, start: int, stop: int) -> tuple[Slots, Slots]:
    """Return where positions start..stop-1 are in the pool, and all up to them."""
    base = cache.base(stop)
    if base is not None:
        return slice(base + start, base + stop), slice(base, base + stop)
    table = as_tensor(cache.table()[:stop])
    return table[start:], table


def _kept_rows(parts: Sequence[DraftTokens]) -> Iterator[int]:
    end = 0
    for rows in parts:
        end += rows.count
        yield from range(end - rows.num_kept, end)


def _tree_mask(seen: Tensor, base: int, like: Tensor) -> Tensor:
    """Return [R, base + nodes], 0 where a node may look, else -inf; seen [R, nodes]."""
    mask = like.new_zeros(seen.shape[0], base + seen.shape[1])
    mask[:, base:].masked_fill_(~seen, float("-inf"))
    return mask


def _additive(allowed: Tensor, like: Tensor) -> Tensor:
    return like.new_zeros(allowed.shape).masked_fill_(~allowed, float("-inf"))


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

    A tree that grows level by level asks for a little more each time; when the same topology comes
    again, all of its levels are slices of the mask that its last one left here. (Improving
    Multi-Candidate Speculative Decoding, 2024, section on dynamic sliced masks.)
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

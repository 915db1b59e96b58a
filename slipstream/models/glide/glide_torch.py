"""A GliDe draft's pass in torch: new tokens of sessions, padded to one count, and what they see."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.core.tree import ROOT
from slipstream.models.dtypes import Array
from slipstream.models.glide.glide_files import glide_model
from slipstream.models.glide.glide_packed import (
    DraftAttention,
    GlideParts,
    PackedLayer,
    PackedNorm,
)
from slipstream.models.glide.glide_scorer import SessionStep
from slipstream.models.glide.glide_weights import GlideWeights
from slipstream.models.glide.rotary_factors import RotaryFactors
from slipstream.models.glide.target_parts import TargetParts
from slipstream.models.glide.torch_parts import TorchParts, rotary_tables
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout, KvPool, round_up
from slipstream.models.scorer import Scores, on_host
from slipstream.models.torch.arrays import as_tensor, torch_dtype
from slipstream.models.torch.buffers import TorchBuffers
from slipstream.models.torch.paged import additive, gather

Topology = tuple[int, ...]
"""Parents of a tree's nodes, parents first."""


class TorchGlide:
    """Layers and head of one draft; `weight_bytes` is what its weights take."""

    engine = "torch"

    def __init__(self, weights: GlideWeights, target: TargetParts, layout: KvLayout) -> None:
        assert isinstance(target, TorchParts), "native code computes drafts of its own targets"
        dtype = torch_dtype(layout.dtype)
        model = glide_model(weights).to(layout.device)
        self.buffers = TorchBuffers(layout.device)
        self._target = target
        self._embeddings = target.embeddings.to(dtype)
        self._layers = [PackedLayer(layer, dtype) for layer in model.layers]
        self._norm = PackedNorm(model.norm, dtype)
        self._head = target.head[as_tensor(weights.vocab).to(layout.device)].to(dtype)
        self._group = weights.config.num_heads // weights.config.num_kv_heads
        self._masks = SlicedMasks()
        self._parts = self.parts(0)
        count = sum(weight.numel() for weight in model.parameters()) + self._head.numel()
        self.weight_bytes = count * dtype.itemsize + self._embeddings.nbytes

    def parts(self, length: int) -> GlideParts:
        """Return what scores are computed with, for positions below `length`."""
        tables = rotary_tables(self._target, length, dtype=self._embeddings.dtype)
        rotation = RotaryFactors.of(*tables)
        return GlideParts(self._embeddings, self._layers, self._norm, self._head, rotation)

    def reach(self, length: int) -> None:
        """Compute rotary factors of positions 0..length-1."""
        self._parts = self.parts(length)

    def readable(self, values: Any) -> Tensor:
        """Return keys or values [kv_heads, n, head_dim] of the target as a step reads them."""
        return as_tensor(values).to(self._embeddings.dtype)

    @torch.inference_mode()
    def scores(self, steps: Sequence[SessionStep]) -> Scores:
        """Return scores of the tokens that go on, step by step."""
        given = self._inputs(steps)
        x = self._embeddings[given.tokens.flatten()]
        *earlier, final = self._parts.layers
        if earlier:
            whole = self._attention(given, None)
            for index, layer in enumerate(earlier):
                x = layer(x, index, whole)
        size, num_kept = given.tokens.shape[1], max(1, *(step.num_kept for step in steps))
        kept = [
            row * size + index for row, step in enumerate(steps) for index in _kept(step, num_kept)
        ]
        x = final(x, len(earlier), self._attention(given, self._long(kept)))
        wanted = [
            row * num_kept + index
            for row, step in enumerate(steps)
            for index in range(step.num_kept)
        ]
        hidden = self._norm(x[self._long(wanted)])
        return Scores(on_host(F.linear(hidden, self._head)), on_host(hidden))

    def _inputs(self, steps: Sequence[SessionStep]) -> "_Inputs":
        size, pool = max(len(step.tokens) for step in steps), steps[0].state.cache.pool
        order = [[i if i < len(step.tokens) else 0 for i in range(size)] for step in steps]
        pairs = list(zip(steps, order, strict=True))
        width = round_up(max(step.start + len(step.tokens) for step in steps), BLOCK_SIZE)
        tables = self._long([_filled(step.state.cache.table(), width) for step in steps])
        columns = self._long([[step.start + i for i in own] for step, own in pairs])
        layers = range(len(self._parts.layers))
        return _Inputs(
            pool,
            tokens=self._long([[step.tokens[i] for i in own] for step, own in pairs]),
            positions=self._long([[step.positions[i] for i in own] for step, own in pairs]),
            columns=columns,
            slots=tables.gather(1, columns).flatten(),
            own=[gather(pool.layer(index), tables.flatten(), len(steps)) for index in layers],
            visible=torch.stack(
                [self._visible(step, columns[row], width) for row, step in enumerate(steps)]
            ),
            others=self._others(steps),
            num_read=self._long([[step.num_read(i) for i in own] for step, own in pairs]),
        )

    def _visible(self, step: SessionStep, columns: Tensor, width: int) -> Tensor:
        """Return which of its session's places each token sees, bool [N, width]."""
        places, base = torch.arange(width, device=columns.device), len(step.state.tokens)
        if step.is_in_order:
            return places <= columns.unsqueeze(1)
        above = self._masks.rows(tuple(step.state.parents), step.first_node).to(columns.device)
        visible = (places < base).repeat(len(columns), 1)
        visible[:, base : base + above.shape[1]] = above[columns - step.start]
        return visible

    def _others(self, steps: Sequence[SessionStep]) -> Sequence[Tensor]:
        """Return the target's keys and values by layer, [S, 2 * kv_heads, seen, hd], zeros behind
        those of a session; () where none has any."""
        held = [step.state.target_kv for step in steps]
        width = max(step.num_held for step in steps)
        form = next((pairs[0][0] for pairs in held if pairs), None)
        if form is None:
            return ()
        heads, _, dim = form.shape
        layers = range(max(map(len, held)))
        staged = [form.new_zeros(len(steps), 2 * heads, width, dim) for _ in layers]
        for row, pairs in enumerate(held):
            for into, (keys, values) in zip(staged, pairs, strict=False):
                into[row, :, : keys.shape[1]] = torch.cat([keys, values])
        return staged

    def _attention(self, given: "_Inputs", kept: Tensor | None) -> DraftAttention:
        """Return the attention of a layer, behind whose keys the tokens `kept` go on, or all."""
        num, size = given.tokens.shape
        chosen = torch.arange(num * size, device=self._embeddings.device) if kept is None else kept
        dtype, seen = self._embeddings.dtype, given.others[0].shape[2] if given.others else 0
        num_read = given.num_read.flatten()[chosen]
        read = torch.arange(seen, device=chosen.device) < num_read.unsqueeze(1)
        return DraftAttention(
            own=given.own,
            columns=given.columns,
            store_in=(given.pool, given.slots),
            own_mask=additive(
                given.visible.flatten(0, 1)[chosen].unflatten(0, (num, -1)), self._group, dtype
            ),
            others=given.others,
            others_mask=additive(read.unflatten(0, (num, -1)), self._group, dtype),
            reading=num_read.unsqueeze(1) > 0,
            rotation=self._parts.rotation.at(given.positions.flatten()),
            kept=kept,
        )

    def _long(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._embeddings.device)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """N new tokens of each of S sessions, padded by the first: `tokens`, `positions` and `columns`
    [S, N], `slots` [S * N], `own` keys and values by layer, the places `visible` [S, N, W], the
    target's by layer and how many of these each token reads, [S, N]."""

    pool: KvPool
    tokens: Tensor
    positions: Tensor
    columns: Tensor
    slots: Tensor
    own: Sequence[Tensor]
    visible: Tensor
    others: Sequence[Tensor]
    num_read: Tensor


def _kept(step: SessionStep, size: int) -> list[int]:
    """Return which tokens of a step go on, and its last one as often as is missing."""
    count = len(step.tokens)
    return [*range(count - step.num_kept, count), *[count - 1] * (size - step.num_kept)]


def _filled(table: Array, size: int) -> list[int]:
    """Return the first slots of a table, and its first one as often as is missing."""
    slots: list[int] = table[:size].tolist()
    return slots + slots[:1] * (size - len(slots))


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

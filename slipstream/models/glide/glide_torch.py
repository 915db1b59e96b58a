"""A GliDe draft's pass in torch: one attention, eager for each session or in graphs for many.

Layers compute what `glide.GlideLayer` does, over keys and values in a pool.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.core.tree import ROOT
from slipstream.models.glide.glide import GlideLayer, Rope, rotate
from slipstream.models.glide.glide_files import glide_model
from slipstream.models.glide.glide_scorer import SessionStep
from slipstream.models.glide.glide_weights import GlideWeights
from slipstream.models.glide.target_parts import TargetParts
from slipstream.models.glide.torch_parts import TorchParts, rotary_tables
from slipstream.models.kv.pool import KvLayout, KvPool
from slipstream.models.scorer import NUM_SINKS, Scores, on_host
from slipstream.models.torch.arrays import TorchBuffers, as_tensor, torch_dtype
from slipstream.models.torch.paged import additive, attend_each, gather

Topology = tuple[int, ...]
"""Parents of a tree's nodes, parents first."""
Pair = tuple[Tensor, ...]
"""Keys and values of sessions, [S, kv_heads, n, head_dim] each."""


@dataclass(frozen=True, slots=True)
class DraftKeys:
    """Keys and values of S sessions: `own` of each draft layer [S, 2 * kv_heads, W, hd], out of
    `pool`, and `others` of each target layer that is read, of which `num_seen` [S, 1] are there."""

    own: Sequence[Tensor]
    others: Sequence[Pair]
    num_seen: Tensor
    pool: KvPool


@dataclass(frozen=True, slots=True)
class DraftTokens:
    """N tokens of each session, `ids` [S * N], at `columns` [S, N] of its own keys.

    `rope` is of their positions; their keys are written to the pool's `slots` [S * N], if given.
    The `kept` of the S * N go on behind the last layer's keys, None is all. They see the columns
    that are `visible` [S, N, W], by default up to their own, and of the target's `lead` [S, 1] more
    from `NUM_SINKS` on.
    """

    ids: Tensor
    columns: Tensor
    rope: Rope
    slots: Tensor | None = None
    kept: Tensor | slice | None = None
    visible: Tensor | None = None
    lead: Tensor | int = 0


class DraftAttention:
    """Attention of tokens over keys, in layers behind which the `kept` go on."""

    def __init__(self, keys: DraftKeys, tokens: DraftTokens, group: int) -> None:
        """`group` query heads share a key head."""
        self._keys, self._tokens = keys, tokens
        self.others, self.rope, self.kept = keys.others, tokens.rope, tokens.kept
        columns, dtype = tokens.columns, keys.own[0].dtype
        if self.kept is not None:
            columns = columns.flatten()[self.kept].view(len(columns), -1)
        limits = torch.minimum(keys.num_seen, columns + (columns >= NUM_SINKS) * tokens.lead)
        if self.kept is None:  # position 0 has nothing before it; training lets it read itself
            limits = torch.where(columns == 0, keys.num_seen.clamp(max=1), limits)
        visible = tokens.visible
        if visible is None:
            visible = _below(keys.own[0].shape[2], columns + 1)
        self._own_mask = additive(visible, group, dtype)
        seen = keys.others[0][0].shape[2] if keys.others else 0
        self._others_mask = additive(_below(seen, limits), group, dtype)
        self._is_reading = limits.view(-1, 1) > 0

    def store(self, index: int, fresh: Tensor) -> None:
        """Store all tokens' keys and values [2 * kv_heads, S * N, hd] in layer `index`."""
        columns, slots = self._tokens.columns, self._tokens.slots
        by_session = fresh.unflatten(1, columns.shape).transpose(0, 1)
        places = columns[:, None, :, None].expand_as(by_session)
        self._keys.own[index].scatter_(2, places, by_session)
        if slots is not None:
            self._keys.pool.layer(index).index_copy_(1, slots, fresh)

    def read_own(self, index: int, query: Tensor) -> Tensor:
        """Return attention [n, H * hd] of the kept queries [n, H, hd] over layer `index`."""
        return attend_each(query, self._keys.own[index].chunk(2, 1), self._own_mask)

    def read_other(self, others: Pair, query: Tensor) -> Tensor:
        """Return attention over one of `others`; zeros where a token sees nothing of it."""
        return torch.where(self._is_reading, attend_each(query, others, self._others_mask), 0.0)


class TorchLayer:
    """One draft layer, whose products of the same input are one."""

    def __init__(self, layer: GlideLayer) -> None:
        own = layer.self_attn
        self._num_heads, self._num_keys = own.num_heads, own.num_kv_heads
        self._norm, self._norms, self._out = layer.self_norm, (own.q_norm, own.k_norm), own.o_proj
        linears = (own.q_proj, own.k_proj, own.v_proj)
        self._weight = torch.cat([linear.weight for linear in linears])
        has_bias = own.q_proj.bias is not None
        self._bias = torch.cat([linear.bias for linear in linears]) if has_bias else None
        self._cross, self._mlp_norm, self._mlp = layer.cross, layer.mlp_norm, layer.mlp

    def __call__(self, x: Tensor, index: int, attention: DraftAttention) -> Tensor:
        """Return the kept tokens [n, d] of x [R, d]; stores R keys and values in layer `index`."""
        query = self._write(x, index, attention)
        kept, rope = attention.kept, attention.rope
        if kept is not None:
            x, query, rope = x[kept], query[kept], Rope(rope.cos[kept], rope.sin[kept])
        if not len(x):
            return x
        x = x + self._out(attention.read_own(index, query))
        # The outputs have no bias, so that nothing is added where nothing is read.
        for cross, others in zip(self._cross, attention.others, strict=False):
            query = cross.q_proj(cross.norm(x)).view(len(x), self._num_heads, -1)
            query = rotate(query if cross.q_norm is None else cross.q_norm(query), *rope)
            x = x + cross.o_proj(attention.read_other(others, query))
        result: Tensor = x + self._mlp(self._mlp_norm(x))
        return result

    def _write(self, x: Tensor, index: int, attention: DraftAttention) -> Tensor:
        """Store keys and values of all tokens; return their queries [R, H, hd]."""
        heads, num = self._num_heads, self._num_heads + self._num_keys
        qkv = F.linear(self._norm(x), self._weight, self._bias)
        qkv = qkv.view(len(x), num + self._num_keys, -1)
        both, (query_norm, key_norm) = qkv[:, :num], self._norms
        if query_norm is not None and key_norm is not None:
            both = torch.cat((query_norm(both[:, :heads]), key_norm(both[:, heads:])), 1)
        both = rotate(both, *attention.rope)
        attention.store(index, torch.cat((both[:, heads:], qkv[:, num:]), 1).transpose(0, 1))
        return both[:, :heads]


class TorchGlide:
    """Layers and head of one draft; `weight_bytes` is what its weights take. `vocab` [V_d] are the
    tokens of the head's columns."""

    engine = "torch"

    def __init__(self, weights: GlideWeights, target: TargetParts, layout: KvLayout) -> None:
        assert isinstance(target, TorchParts), "native code computes drafts of its own targets"
        self._dtype = torch_dtype(layout.dtype)
        self.buffers = TorchBuffers(layout.device)
        self._target, self._masks = target, SlicedMasks()
        model = glide_model(weights).to(layout.device, self._dtype)
        self.vocab = as_tensor(weights.vocab).to(layout.device)
        self.embeddings = target.embeddings.to(self._dtype)
        self.layers = [TorchLayer(layer) for layer in model.layers]
        self._norm = model.norm
        self._weight = target.head[self.vocab].to(self._dtype)
        self._group = weights.config.num_heads // weights.config.num_kv_heads
        own = [self.embeddings, self._weight, *model.parameters()]
        self.weight_bytes = sum(weight.nbytes for weight in own)

    def rope(self, length: int) -> Rope:
        """Return the rotary factors of positions 0..length-1."""
        return Rope(*rotary_tables(self._target, length, dtype=self._dtype))

    def reach(self, length: int) -> None:
        """Compute rotary factors of positions 0..length-1."""
        self._rope = self.rope(length)

    def readable(self, values: Any) -> Tensor:
        """Return keys or values [kv_heads, n, head_dim] of the target as a step reads them."""
        return as_tensor(values)[None].to(self._dtype)

    @torch.inference_mode()
    def scores(self, steps: Sequence[SessionStep]) -> Scores:
        """Return scores of the tokens that go on, step by step."""
        hidden = torch.cat([self._states(step) for step in steps])
        return Scores(on_host(self.logits(hidden)), on_host(hidden))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return scores [n, V_d] of states [n, d]."""
        return F.linear(hidden, self._weight)

    def states(self, keys: DraftKeys, tokens: DraftTokens) -> Tensor:
        """Return the states [n, d] of the kept tokens behind the final norm."""
        *earlier, final = self.layers
        x, last = self.embeddings[tokens.ids], DraftAttention(keys, tokens, self._group)
        whole = last
        if earlier and tokens.kept is not None:
            whole = DraftAttention(keys, replace(tokens, kept=None), self._group)
        for index, layer in enumerate(earlier):
            x = layer(x, index, whole)
        hidden: Tensor = self._norm(final(x, len(earlier), last))
        return hidden

    def _states(self, step: SessionStep) -> Tensor:
        """Return the states of a step's tokens that go on."""
        state, count, device = step.state, len(step.tokens), self.embeddings.device
        pool, table = state.cache.pool, as_tensor(state.cache.table()[: step.start + count])
        table = table.to(device)
        own = [gather(pool.layer(index), table, 1) for index in range(len(self.layers))]
        num_seen = torch.tensor([[step.num_read]], device=device)
        is_tree = step.first_node >= 0
        tokens = DraftTokens(
            torch.tensor(step.tokens, device=device),
            torch.arange(step.start, step.start + count, device=device)[None],
            at_positions(self._rope, torch.tensor(step.positions, device=device)),
            table[step.start :],
            None if is_tree else slice(count - step.num_kept, None),
            self._visible(step) if is_tree else None,
            lead=state.lead,
        )
        return self.states(DraftKeys(own, state.target_kv, num_seen, pool), tokens)

    def _visible(self, step: SessionStep) -> Tensor:
        """Return what a tree's new nodes see: the prefix, their ancestors and themselves."""
        above = self._masks.rows(tuple(step.state.parents), step.first_node)
        visible = F.pad(above, (len(step.state.tokens), 0), value=True)
        return visible[None].to(self.embeddings.device)


def at_positions(rope: Rope, positions: Tensor) -> Rope:
    """Return the factors of tokens at positions [R], each [R, 1, rotary_dim]."""
    return Rope(rope.cos[positions].unsqueeze(1), rope.sin[positions].unsqueeze(1))


def _below(size: int, limits: Tensor) -> Tensor:
    """Return which of `size` columns are below limits [S, N]: bool [S, N, size]."""
    return torch.arange(size, device=limits.device) < limits.unsqueeze(2)


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

    def __init__(self) -> None:
        self._masks: deque[tuple[Topology, Tensor]] = deque(maxlen=32)

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

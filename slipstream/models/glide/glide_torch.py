"""A draft's pass in torch, eager for each session or in graphs for many, and GliDe's layers.

They compute what `glide.GlideLayer` does, over keys and values in a pool, by the operators of
`cuda.layers`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.models.cuda.layers import (
    Stream,
    add_norm,
    attend_others,
    gate,
    joined,
    place,
    scale_linears,
)
from slipstream.models.dtypes import Array
from slipstream.models.glide.glide import RmsNorm, Rope
from slipstream.models.glide.glide_files import glide_model
from slipstream.models.glide.glide_scorer import SessionStep, limits_of
from slipstream.models.glide.glide_weights import GlideWeights
from slipstream.models.glide.target_parts import TargetParts
from slipstream.models.glide.torch_parts import TorchParts, rotary_tables
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout, KvPool
from slipstream.models.scorer import Scores, on_host
from slipstream.models.torch.arrays import TorchBuffers, as_tensor, torch_dtype
from slipstream.models.torch.paged import attend, num_places, on_pages, tiles_of


@dataclass(frozen=True, slots=True)
class DraftTokens:
    """R tokens, `ids` [R], whose keys go to `slots` [R] int64 of a pool; `rope` is of their
    positions, [R, rotary_dim]. EAGLE's have `features` [R, d] beside them."""

    ids: Tensor
    rope: Rope
    slots: Tensor
    features: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Attended:
    """Keys that tokens see, the `kept` ones of a pass or all: their `own`, and of the target's
    those on the pages of `seen`, in the buffers of `others` of each layer that is read; as the
    operators `attend` and `attend_others` take them."""

    own: list[Tensor]
    seen: list[Tensor]
    others: Sequence[Tensor]
    kept: Tensor | slice | None = None


class TorchLayer:
    """One draft layer, whose products of the same input are one."""

    def __init__(self, layer: Any, norms: Sequence[RmsNorm], cross: Sequence[Any] = ()) -> None:
        """`norms` are those before attention and MLP."""
        own, mlp = layer.self_attn, layer.mlp
        self.norm, self._mlp_norm = norms
        self._norms, self._out = _weights(own), own.o_proj
        self._qkv = joined(own.q_proj, own.k_proj, own.v_proj)
        self._gate_up, self._down = joined(mlp.gate_proj, mlp.up_proj), mlp.down_proj
        self._cross = cross

    def __call__(
        self, x: Tensor, inputs: Tensor, buffer: Tensor, tokens: DraftTokens, attended: Attended
    ) -> Stream:
        """Return the stream of the kept tokens behind the layer, x [R, d] before it; keys and
        values of all go to a pool's `buffer`. Attention takes `inputs` [R, n], behind a norm."""
        places = [*tokens.rope, tokens.slots]
        query = place(self._qkv(inputs), buffer, places, self._norms, self.norm.eps)
        if attended.kept is not None:
            x, query, *places = (own[attended.kept] for own in (x, query, *places))
        if not len(x):
            return x, x
        scale = query.shape[2] ** -0.5
        more = self._out(attend(query, buffer, attended.own, scale))
        # The outputs have no bias, so that nothing is added where nothing is read.
        for cross, buffers in zip(self._cross, attended.others, strict=False):
            x, normed = added(cross.norm, (x, more))
            query = cross.q_proj(normed).view(len(x), -1, buffer.shape[2])
            turns, num_keys = [*places[:2], *_weights(cross)], len(buffer) // 2
            given = (turns, cross.norm.eps, attended.seen, num_keys)
            more = cross.o_proj(attend_others(query, buffers, *given))
        x, normed = added(self._mlp_norm, (x, more))
        return x, self._down(gate(self._gate_up(normed)))


def added(norm: RmsNorm, stream: Stream) -> Stream:
    """Return the sum of a stream and its norm, [R, d] each."""
    found: Stream = add_norm(*stream, norm.weight, norm.eps)
    return found


def _weights(attention: Any) -> list[Tensor]:
    """Return the weights of the norms of heads."""
    norms = (attention.q_norm, getattr(attention, "k_norm", None))
    return [norm.weight for norm in norms if norm is not None]


class TorchDraft:
    """Backend of a draft whose layers are torch's: `weight_bytes` is what its weights take. `vocab`
    [V_d] are the tokens of the head's columns."""

    engine, num_features = "torch", 0
    layers: Sequence[TorchLayer]

    def __init__(
        self, model: Any, layout: KvLayout, parts: Sequence[Tensor], *, is_scaled: bool
    ) -> None:
        """`parts` are the vocabulary, embeddings [V, d] and head [V_d, d]; `is_scaled` has the
        layers' products in 8-bit floats."""
        self._dtype, config = torch_dtype(layout.dtype), model.config
        self.buffers = TorchBuffers(layout.device)
        self.vocab = parts[0].to(layout.device)
        self.embeddings, self._weight = (own.to(layout.device, self._dtype) for own in parts[1:])
        model.to(layout.device, self._dtype)
        if is_scaled:
            scale_linears(model, layout.device)
        self._norm = model.norm
        group = config.num_heads // config.num_kv_heads
        self.tile = num_places(group) // group
        own = [self.embeddings, self._weight, *model.parameters()]
        self.weight_bytes = sum(weight.nbytes for weight in own)

    def features(self, others: Tensor, slots: Tensor, given: Tensor) -> Tensor | None:
        """Return what tokens have beside them [R, d], by states of the target as `read_states`
        takes them; those without a slot have what is `given` [S, d] of their session."""
        return None

    def states(self, pool: KvPool, tokens: DraftTokens, passes: Sequence[Attended]) -> Stream:
        """Return what the kept tokens give their successors [n, c], and their states [n, d] behind
        the final norm; the last of `passes` is the last layer's, the first that of those before."""
        raise NotImplementedError

    def rope(self, length: int) -> Rope:
        """Return the rotary factors of positions 0..length-1."""
        raise NotImplementedError

    def reach(self, length: int) -> None:
        self._rope = self.rope(length)

    def readable(self, buffer: Any) -> Tensor:
        """Return a buffer of the target's keys and values [2 * kv_heads, slots, head_dim] as
        `attend_others` takes them; itself where it is so."""
        found = as_tensor(buffer).to(self.embeddings)
        return found if found[0].is_contiguous() else found.contiguous()

    @torch.inference_mode()
    def scores(self, steps: Sequence[SessionStep]) -> Scores:
        each = [self._states(step) for step in steps]
        given, hidden = (torch.cat(own) for own in zip(*each, strict=True))
        return Scores(on_host(self.logits(hidden)), on_host(hidden), given)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return scores [n, V_d] of states [n, d]."""
        return F.linear(hidden, self._weight)

    def _states(self, step: SessionStep) -> Stream:
        """Return what `states` does of a step's tokens that go on."""
        state, count, device = step.state, len(step.tokens), self.embeddings.device
        pool, table = state.cache.pool, as_tensor(state.cache.table())
        columns = np.arange(step.start, step.start + count)
        tokens = DraftTokens(
            torch.tensor(step.tokens, device=device),
            Rope(*(own[torch.tensor(step.positions, device=device)] for own in self._rope)),
            table[step.start : step.start + count].to(device),
            step.features,
        )
        pages = torch.tensor([state.cache.pages], device=device)
        kept = None if step.first_node >= 0 else slice(count - step.num_kept, None)
        wanted = (None, kept) if len(self.layers) > 1 else (kept,)
        buffers = [self.readable(buffer) for buffer in state.target_kv]
        passes = [self._attended(step, pages, columns, own, buffers) for own in wanted]
        return self.states(pool, tokens, passes)

    def _attended(
        self,
        step: SessionStep,
        pages: Tensor,
        columns: Array,
        kept: slice | None,
        buffers: Sequence[Tensor],
    ) -> Attended:
        """Return what the kept of a step's tokens attend to, or all."""
        columns, state = columns if kept is None else columns[kept], step.state
        device, num_read = pages.device, state.num_read
        tiles = tiles_of(1, len(columns), self.tile, device)
        own = on_pages(pages, tiles, torch.from_numpy(columns + 1).to(device))
        if step.first_node >= 0:
            own = self._of_tree(step, own)
        limits = limits_of(columns, num_read, state.lead, reads_first=kept is None)
        table = torch.tensor([pages_read(num_read, state.target_pages)], device=device)
        others = [torch.tensor([place_of(buffer)], device=device) for buffer in buffers]
        seen = on_pages(table, tiles, torch.from_numpy(limits).to(device))
        return Attended(own, seen, others, kept)

    def _of_tree(self, step: SessionStep, own: list[Tensor]) -> list[Tensor]:
        """Return what a tree's new nodes see: the prefix, their ancestors and themselves."""
        state, first, device = step.state, step.first_node, own[0].device
        count, nodes = len(state.tokens), range(first, len(state.parents))
        above = list(chain.from_iterable(map(state.line, nodes)))
        paths = as_tensor(state.cache.table()[count:][above]).to(device)
        depths = torch.tensor(state.depths[first:], device=device)
        seen = torch.full_like(own[2], count)
        return [*own[:2], seen + depths, seen, depths.cumsum(0) - depths, paths]


class TorchGlide(TorchDraft):
    """GliDe's layers, over the target's keys."""

    def __init__(
        self, weights: GlideWeights, target: TargetParts, layout: KvLayout, *, is_scaled: bool
    ) -> None:
        assert isinstance(target, TorchParts), "native code computes drafts of its own targets"
        model, vocab = glide_model(weights), as_tensor(weights.vocab).to(layout.device)
        parts = (vocab, target.embeddings, target.head[vocab])
        super().__init__(model, layout, parts, is_scaled=is_scaled)
        self._target = target
        norms = [(layer.self_norm, layer.mlp_norm) for layer in model.layers]
        each = zip(model.layers, norms, strict=True)
        self.layers = [TorchLayer(layer, own, layer.cross) for layer, own in each]

    def rope(self, length: int) -> Rope:
        return Rope(*rotary_tables(self._target, length, dtype=self._dtype))

    def states(self, pool: KvPool, tokens: DraftTokens, passes: Sequence[Attended]) -> Stream:
        x = self.embeddings[tokens.ids]
        stream, final = (x, x[:0]), len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            entered, wanted = added(layer.norm, stream), passes[-(index == final)]
            stream = layer(*entered, pool.layer(index), tokens, wanted)
        hidden = added(self._norm, stream)[1]
        return hidden[:, :0], hidden


def pages_read(num_read: int, pages: Sequence[int] | None) -> list[int]:
    """Return the pages of so many positions of the target; without any, they are in order."""
    count = -(-num_read // BLOCK_SIZE)
    return list(range(count) if pages is None else pages[:count])


def place_of(buffer: Tensor) -> tuple[int, int]:
    """Return a buffer's address, and the slots from head to head, as `attend_others` takes them."""
    return buffer.data_ptr(), buffer.stride(0) // buffer.shape[2]

"""A draft's pass in torch, eager or in graphs, and GliDe's layers.

They compute what `glide.GlideLayer` does, over keys and values in a pool, by the operators of
`cuda.layers`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.models.cuda.graphs import sent
from slipstream.models.cuda.layers import (
    JoinedLayer,
    Stream,
    added,
    attend_others,
    head_norms,
    place,
    scale_linears,
)
from slipstream.models.glide.glide import RmsNorm, Rope
from slipstream.models.glide.glide_files import glide_model
from slipstream.models.glide.glide_scorer import SessionStep
from slipstream.models.glide.glide_weights import GlideWeights
from slipstream.models.glide.target_parts import TargetParts
from slipstream.models.glide.torch_parts import rope_of, table_of
from slipstream.models.kv.batch import Batch
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout, KvPool
from slipstream.models.scorer import Scores, on_host
from slipstream.models.torch.arrays import TorchBuffers, as_tensor, torch_dtype
from slipstream.models.torch.packing import pack
from slipstream.models.torch.paged import attend, num_places, on_pages, unpack


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
    kept: Tensor | None = None


class TorchLayer(JoinedLayer):
    """A layer of a draft, with attention to what it reads of the target between its own and its
    MLP."""

    def __init__(self, layer: Any, norms: Sequence[RmsNorm], cross: Sequence[Any] = ()) -> None:
        super().__init__(layer, norms, [own for c in cross for own in (c.q_proj, c.o_proj)])
        self._cross = cross

    def forward(
        self, entered: Sequence[Tensor], buffer: Tensor, tokens: DraftTokens, attended: Attended
    ) -> Stream:
        """Return the stream of the kept tokens behind the layer; keys and values of all go to a
        pool's `buffer`. What `entered` are the stream [R, d] and rows [R, n] behind a norm, which
        attention takes."""
        (x, *inputs), places = entered, [*tokens.rope, tokens.slots]
        query = place(self.qkv(*inputs), buffer, places, self.head_norms, self.first.eps)
        if attended.kept is not None:
            x, query, *places = (own[attended.kept] for own in (x, query, *places))
        if not len(x):
            return x, x
        scale = query.shape[2] ** -0.5
        more = self.out(*attend(query, buffer, attended.own, scale, self.rounds))
        # The outputs have no bias, so that nothing is added where nothing is read.
        for cross, buffers in zip(self._cross, attended.others, strict=False):
            x, *normed = added(cross.norm, (x, more), self.rounds)
            query = cross.q_proj(*normed).view(len(x), -1, buffer.shape[2])
            turns, num_keys = [*places[:2], *head_norms(cross)], len(buffer) // 2
            given = (turns, cross.norm.eps, [buffers, *attended.seen], num_keys, self.rounds)
            more = cross.o_proj(*attend_others(query, *given))
        return self.mlp(*added(self.second, (x, more), self.rounds))


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
        keys = [[self.readable(own) for own in step.state.target_kv] for step in steps]
        ends = accumulate(len(step.tokens) for step in steps)
        nums = [step.num_kept for step in steps]
        kept = [row for end, num in zip(ends, nums, strict=True) for row in range(end - num, end)]
        tokens, whole = self._laid_out(steps, [len(step.tokens) for step in steps], keys)
        last = self._laid_out(steps, nums, keys)[1] if kept else whole
        rows = sent(torch.tensor(kept, dtype=torch.long), tokens.ids.device)
        features: list[Any] = [step.features for step in steps]
        if features[0] is not None:
            tokens = replace(tokens, features=torch.cat(features))
        pool = steps[0].state.cache.pool
        given, hidden = self.states(pool, tokens, [whole, replace(last, kept=rows)])
        return Scores(on_host(self.logits(hidden)), on_host(hidden), given)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return scores [n, V_d] of states [n, d]."""
        return F.linear(hidden, self._weight)

    def _laid_out(
        self, steps: Sequence[SessionStep], nums: Sequence[int], keys: Sequence[list[Tensor]]
    ) -> tuple[DraftTokens, Attended]:
        """Return the last `nums` tokens of each step, and what they attend to: of the target that
        is in the `keys` of its layers."""
        batch, read, pages, places = Batch(), list[int](), list[list[int]](), list[Any]()
        num_layers = max(map(len, keys))
        for step, num, own in zip(steps, nums, keys, strict=True):
            if num:
                chosen = range(len(step.tokens) - num, len(step.tokens))
                step.add_to(batch, chosen)
                read += map(step.num_read, chosen)
                pages.append(pages_read(step.state.num_read, step.state.target_pages))
                places.append([place_of(buffer) for buffer in own] or [(0, 0)] * num_layers)
        packed, device = pack(batch, self.tile), self.embeddings.device
        ids, tokens = unpack(sent(torch.from_numpy(packed.values), device), packed.shape)
        most = max(map(len, pages))
        tables = sent(torch.tensor([own + [0] * (most - len(own)) for own in pages]), device)
        seen = on_pages(tables, tokens.attended[1], sent(torch.tensor(read), device))
        others = sent(torch.tensor(places), device).view(len(pages), num_layers, 2)
        rope = Rope(*(own[tokens.positions] for own in self._rope))
        attended = Attended(tokens.attended, seen, list(others.transpose(0, 1)))
        return DraftTokens(ids, rope, tokens.slots), attended


class TorchGlide(TorchDraft):
    """GliDe's layers, over the target's keys."""

    def __init__(
        self, weights: GlideWeights, target: TargetParts, layout: KvLayout, *, is_scaled: bool
    ) -> None:
        model, vocab = glide_model(weights), weights.vocab
        parts = (as_tensor(vocab), table_of(target), as_tensor(target.head_rows(vocab)))
        super().__init__(model, layout, parts, is_scaled=is_scaled)
        self._target = target
        norms = [(layer.self_norm, layer.mlp_norm) for layer in model.layers]
        each = zip(model.layers, norms, strict=True)
        self.layers = [TorchLayer(layer, own, layer.cross) for layer, own in each]

    def rope(self, length: int) -> Rope:
        return rope_of(self._target.rotary(length), self.embeddings)

    def states(self, pool: KvPool, tokens: DraftTokens, passes: Sequence[Attended]) -> Stream:
        stream: Any = self.embeddings[tokens.ids][None]
        final = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            entered, wanted = added(layer.first, stream, layer.rounds), passes[-(index == final)]
            stream = layer(entered, pool.layer(index), tokens, wanted)
        hidden = added(self._norm, stream)[1]
        return hidden[:, :0], hidden


def pages_read(num_read: int, pages: Sequence[int] | None) -> list[int]:
    """Return the pages of so many positions of the target; without any, they are in order."""
    count = -(-num_read // BLOCK_SIZE)
    return list(range(count) if pages is None else pages[:count])


def place_of(buffer: Tensor) -> tuple[int, int]:
    """Return a buffer's address, and the slots from head to head, as `attend_others` takes them."""
    return buffer.data_ptr(), buffer.stride(0) // buffer.shape[2]

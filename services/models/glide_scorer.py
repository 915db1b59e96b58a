"""GliDe behind the `Scorer` seam: sessions, prefixes and trees over the packed layers.

Knows nothing of stop rules, sampling or where the target's keys and values come from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.core.errors import CapacityError, InvalidRequest, ModelMismatch
from slipstream.core.mask import SlicedMasks
from slipstream.models.glide import GlideModel
from slipstream.models.glide_config import GlideConfig
from slipstream.models.glide_linear import DraftLinear
from slipstream.models.glide_packed import PackedLayer, PackedNorm, Rotation, Rows
from slipstream.models.glide_target import TargetParts, rotary_tables, target_parts
from slipstream.models.glide_weights import load_weights
from slipstream.models.scorer import KvView, Scores


@dataclass(slots=True)
class GlideState:
    """One session: its tokens, the keys and values of each draft layer, the tree behind them.

    caches: per draft layer keys and values [kv_heads, capacity, head_dim]; parents: of the
    tree's nodes; is_chain: each node hangs under the one before.
    """

    caches: list[tuple[Tensor, Tensor]]
    capacity: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    is_chain: bool = True
    target_kv: Sequence[tuple[Tensor, Tensor]] = ()


class GlideScorer:
    """Scores a prefix and grows token trees with a GliDe draft (see `Scorer`).

    A query reads target positions before its own, as in training, so `sync` never reads the
    last token's own position even where the view holds it.
    """

    def __init__(
        self, model: GlideModel, vocab: Tensor, target: TargetParts, *, dtype: torch.dtype
    ) -> None:
        self.config = model.config
        self.vocab = vocab
        self.hidden_size = model.config.hidden_size
        self.max_lag = model.config.max_lag or None
        self._target, self._dtype = target, dtype
        self._embeddings = target.embeddings.to(dtype)
        self._layers = [PackedLayer(layer, dtype) for layer in model.layers]
        self._norm = PackedNorm(model.norm, dtype)
        self._head = DraftLinear(target.head[vocab].to(dtype))
        self._masks = SlicedMasks()
        self._cos = self._sin = torch.empty(0)

    def open(self, capacity: int) -> GlideState:
        """A session with room for `capacity` tokens, tree nodes included."""
        if capacity < 1:
            raise InvalidRequest(f"capacity is {capacity}, it must be at least 1")
        self._reach(capacity)
        shape = (self.config.num_kv_heads, capacity, self.config.head_dim)
        like = self._embeddings
        caches = [(like.new_zeros(shape), like.new_zeros(shape)) for _ in self._layers]
        return GlideState(caches, capacity)

    @torch.inference_mode()
    def sync(self, state: GlideState, tokens: Sequence[int], view: KvView | None) -> Scores:
        """Hold exactly `tokens`; scores [1, V_d] of the slot after the last one.

        Only what follows the longest common prefix is computed; any tree is dropped.
        """
        count = len(tokens)
        if not count:
            raise InvalidRequest("a draft cannot score an empty prefix")
        _check_room(state, count)
        start = min(_common(state.tokens, tokens), count - 1)
        state.tokens = list(tokens)
        state.parents, state.is_chain = [], True
        state.target_kv = self._visible(view, count)
        x = self._embed(state.tokens[start:])
        for layer, cache in zip(self._layers[:-1], state.caches, strict=False):
            x = layer(x, cache, self._prefix_rows(state, start))
        last = Rows(start, self._rotation(start, count), 1, None, self._before(state, 1), None)
        return self._scores(self._layers[-1](x, state.caches[-1], last))

    @torch.inference_mode()
    def grow(self, state: GlideState, tokens: Sequence[int], parents: Sequence[int]) -> Scores:
        """Append nodes under earlier ones (-1: under the last token); their scores, [R, V_d].

        A node sees the prefix, its ancestors and itself, at the position its depth gives.
        """
        base, old = len(state.tokens), len(state.parents)
        _check_parents(state, tokens, parents)
        _check_room(state, base + old + len(tokens))
        is_next = len(parents) == 1 and parents[0] == old - 1
        state.is_chain = state.is_chain and is_next
        state.parents += parents
        start = base + old
        if state.is_chain:
            rotation, mask = self._rotation(start, start + 1), None
        else:
            seen = self._masks.rows(tuple(state.parents), old).to(self._embeddings.device)
            rotation = self._rotation_at(base - 1 + seen.sum(1))
            mask = _tree_mask(seen, base, self._embeddings)
        x = self._embed(tokens)
        rows = Rows(start, rotation, len(tokens), mask, state.target_kv, None)
        for layer, cache in zip(self._layers, state.caches, strict=True):
            x = layer(x, cache, rows)
        return self._scores(x)

    def num_bytes(self, state: GlideState) -> int:
        """See `Scorer.num_bytes`; what is read of the target is the target's."""
        return sum(keys.nbytes + values.nbytes for keys, values in state.caches)

    def close(self, state: GlideState) -> None:
        """Free the state's memory; it cannot be used afterwards."""
        state.caches, state.tokens, state.target_kv, state.capacity = [], [], (), 0

    def _scores(self, x: Tensor) -> Scores:
        hidden = self._norm(x)
        return Scores(logits=self._head(hidden).float(), hidden=hidden)

    def _embed(self, tokens: Sequence[int]) -> Tensor:
        if len(tokens) == 1:
            return self._embeddings[tokens[0] : tokens[0] + 1]
        return self._embeddings[torch.tensor(tokens, device=self._embeddings.device)]

    def _visible(self, view: KvView | None, count: int) -> list[tuple[Tensor, Tensor]]:
        """The view's positions before `count`, per target layer in the config's order."""
        seen = 0 if view is None else min(view.count, count)
        if view is None or seen == 0:
            return []
        missing = [layer for layer in self.config.target_layers if layer not in view.layers]
        if missing:
            raise ModelMismatch(
                f"the draft reads target layers {list(self.config.target_layers)}, "
                f"the view lacks {missing}"
            )
        pairs = [view.layers[layer] for layer in self.config.target_layers]
        return [
            (keys[None, :, :seen].to(self._dtype), values[None, :, :seen].to(self._dtype))
            for keys, values in pairs
        ]

    def _before(self, state: GlideState, back: int) -> Sequence[tuple[Tensor, Tensor]]:
        """What the row `back` places before the end of the prefix may read: earlier positions."""
        limit = len(state.tokens) - back
        if not state.target_kv or state.target_kv[0][0].shape[2] <= limit:
            return state.target_kv
        pairs = [(keys[:, :, :limit], values[:, :, :limit]) for keys, values in state.target_kv]
        return pairs if limit else ()

    def _prefix_rows(self, state: GlideState, start: int) -> Rows:
        """Rows of a layer whose outputs the next layer's keys need: all of them, masked."""
        count = len(state.tokens)
        own = torch.arange(start, count, device=self._embeddings.device)[:, None]
        seen = state.target_kv[0][0].shape[2] if state.target_kv else 0
        cross = _additive(torch.arange(seen, device=own.device)[None] < own, self._embeddings)
        mask = _additive(torch.arange(count, device=own.device)[None] <= own, self._embeddings)
        if start == 0 and seen:
            cross[0, 0] = 0  # position 0 has nothing before it; training lets it read itself
        rotation = self._rotation(start, count)
        return Rows(start, rotation, count - start, mask, state.target_kv, cross)

    def _reach(self, length: int) -> None:
        """Have rotary factors of positions 0..length-1."""
        if len(self._cos) >= length:
            return
        cos, sin = rotary_tables(self._target, length, dtype=self._dtype)
        half = sin.shape[-1] // 2
        self._cos = cos[:, None]
        self._sin = torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)[:, None]

    def _rotation(self, start: int, end: int) -> Rotation:
        return Rotation(self._cos[start:end], self._sin[start:end])

    def _rotation_at(self, positions: Tensor) -> Rotation:
        return Rotation(self._cos[positions], self._sin[positions])


def load_glide(
    path: Path, target: Any, *, dtype: torch.dtype | None = None, tokenizer_hash: str | None = None
) -> GlideScorer:
    """A scorer from a weights directory and its target (a transformers causal LM or its parts).

    dtype: the target's by default. WeightsError when the files are broken, ModelMismatch when
    they belong to another target.
    """
    parts = target
    if not isinstance(target, TargetParts):
        parts = target_parts(target, tokenizer_hash=tokenizer_hash)
    model, vocab = load_weights(path)
    check_target(model.config, parts)
    device = parts.embeddings.device
    wanted = parts.embeddings.dtype if dtype is None else dtype
    return GlideScorer(model.to(device), vocab.to(device), parts, dtype=wanted)


def check_target(config: GlideConfig, parts: TargetParts) -> None:
    """ModelMismatch unless the weights' config fits the target."""
    for name in ("vocab_size", "hidden_size", "num_heads", "num_kv_heads", "head_dim"):
        ours, theirs = getattr(config, name), getattr(parts, name)
        if ours != theirs:
            raise ModelMismatch(f"the draft's {name} is {ours}, the target's {theirs}")
    if parts.tokenizer_hash not in (None, config.tokenizer_hash):
        raise ModelMismatch(
            f"the draft was trained with tokenizer {config.tokenizer_hash[:12]}, "
            f"the target's is {str(parts.tokenizer_hash)[:12]}"
        )
    if max(config.target_layers, default=0) >= parts.num_layers:
        raise ModelMismatch(
            f"the draft reads target layer {max(config.target_layers)}, "
            f"the target has {parts.num_layers} layers"
        )


def _common(old: Sequence[int], new: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    size = min(len(old), len(new))
    if old[:size] == list(new[:size]):
        return size
    return next(index for index in range(size) if old[index] != new[index])


def _check_room(state: GlideState, needed: int) -> None:
    if needed > state.capacity:
        raise CapacityError(
            f"the draft's session has room for {state.capacity} tokens, {needed} are needed"
        )


def _check_parents(state: GlideState, tokens: Sequence[int], parents: Sequence[int]) -> None:
    old = len(state.parents)
    if not tokens or len(tokens) != len(parents):
        raise InvalidRequest(
            f"{len(tokens)} tokens with {len(parents)} parents: give one parent per token, at "
            "least one"
        )
    if not state.tokens:
        raise InvalidRequest("a tree needs a prefix: sync before growing")
    if min(parents) < -1 or max(parents) >= old:
        raise InvalidRequest(f"parents {list(parents)} must lie within -1..{old - 1}")


def _tree_mask(seen: Tensor, base: int, like: Tensor) -> Tensor:
    """[R, base + nodes], 0 where a node may look, else -inf; seen [R, nodes] of the tree."""
    mask = like.new_zeros(seen.shape[0], base + seen.shape[1])
    mask[:, base:].masked_fill_(~seen, float("-inf"))
    return mask


def _additive(allowed: Tensor, like: Tensor) -> Tensor:
    return like.new_zeros(allowed.shape).masked_fill_(~allowed, float("-inf"))

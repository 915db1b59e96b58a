"""GliDe behind the `Scorer` seam: sessions, prefixes and trees over the packed layers.

Knows nothing of stop rules, sampling or where the target's keys and values come from.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.core.mask import SlicedMasks
from slipstream.models.cache import KvCache
from slipstream.models.glide import GlideModel
from slipstream.models.glide_linear import DraftLinear
from slipstream.models.glide_packed import (
    Batch,
    GlideParts,
    PackedLayer,
    PackedNorm,
    Rotation,
    Rows,
    Slots,
)
from slipstream.models.glide_state import GlideState, check_ask, num_same
from slipstream.models.glide_target import TargetParts, rotary_tables
from slipstream.models.kv_layout import KEY_BLOCK, KvLayout, round_up
from slipstream.models.pool import KvPool
from slipstream.models.scorer import Ask, Grow, KvView, Scores, Sync


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a pass does for one session: new tokens at their positions.

    `last` are their rows in the last layer, `whole` those in the layers before it.
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    last: Rows
    whole: Rows


class GlideScorer:
    """Scores prefixes and grows token trees with a GliDe draft (see `Scorer`).

    A query reads target positions before its own, as in training, so a `Sync` never reads the
    last token's own position even where the view holds it. All rows of a pass share every
    product, and a single one is multiplied with 8-bit weights: a session's scores may differ in
    their last bits with the company that they are computed in.
    """

    def __init__(
        self, model: GlideModel, vocab: Tensor, target: TargetParts, *, dtype: torch.dtype
    ) -> None:
        self.config = model.config
        self.vocab = vocab
        self.hidden_size = model.config.hidden_size
        self.max_lag = model.config.max_lag or None
        self.context_length: int | None = None
        self._target, self._dtype = target, dtype
        self._embeddings = target.embeddings.to(dtype)
        self._layers = [PackedLayer(layer, dtype) for layer in model.layers]
        self._norm = PackedNorm(model.norm, dtype)
        self._head = DraftLinear(target.head[vocab].to(dtype))
        self._masks = SlicedMasks()
        self._cos = self._sin = torch.empty(0)
        self._num_weights = sum(weight.numel() for weight in model.parameters())
        at = model.config
        self.layout = KvLayout(
            at.num_layers, at.num_kv_heads, at.head_dim, dtype, self._embeddings.device
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of what a step reads, embeddings included, at most."""
        size = self._dtype.itemsize + 1  # 8-bit weights lie beside the others
        head = len(self.vocab) * self.hidden_size
        return (self._num_weights + head) * size + self._embeddings.nbytes

    def workspace_bytes(self, num_rows: int) -> int:
        """Bytes that a pass of so many rows needs besides, at most: states, scores and laws."""
        at = self.config
        width = 6 * at.hidden_size + 2 * at.intermediate_size
        return num_rows * (width * self._dtype.itemsize + 4 * 4 * len(self.vocab))

    def pool(self, num_pages: int) -> KvPool:
        """See `Scorer.pool`."""
        return KvPool(self.layout, num_pages, scratch_rows=0)

    def open(self, capacity: int, pool: KvPool | None = None) -> GlideState:
        """See `Scorer.open`."""
        if capacity < 1:
            raise InvalidRequest(f"capacity is {capacity}, it must be at least 1")
        if pool is None:
            pool = self.pool(round_up(capacity, KEY_BLOCK) // KEY_BLOCK)
        cache = KvCache(pool, limit=capacity)
        cache.reserve(capacity)
        self._reach(capacity)
        return GlideState(cache, capacity)

    def parts(self, length: int) -> GlideParts:
        """What scores are computed with, for positions below `length`."""
        return GlideParts(
            embeddings=self._embeddings,
            layers=self._layers,
            norm=self._norm,
            head=self._head,
            rotation=self._tables(length),
        )

    def num_same(self, state: GlideState, tokens: Sequence[int]) -> int:
        """See `Scorer.num_same`."""
        return num_same(state.tokens, tokens)

    def check(self, ask: Ask) -> None:
        """See `Scorer.check`."""
        check_ask(ask)
        if isinstance(ask, Sync) and ask.view is not None and ask.view.count:
            wanted, seen = self.config.target_layers, ask.view.layers
            if missing := [layer for layer in wanted if layer not in seen]:
                raise ModelMismatch(
                    f"the draft reads target layers {list(wanted)}, the view lacks {missing}"
                )

    @torch.inference_mode()
    def score(self, asks: Sequence[Ask]) -> Scores:
        """See `Scorer.score`.

        Of a prefix only what follows the longest common one is computed, and the last layer's
        outputs of its last token only. A node sees the prefix, its ancestors and itself, at the
        position its depth gives.
        """
        for ask in asks:
            self.check(ask)
        turns = [self._sync(ask) if isinstance(ask, Sync) else self._grow(ask) for ask in asks]
        pool = asks[0].state.cache.pool
        x = self._embed(list(chain.from_iterable(turn.tokens for turn in turns)))
        rotation = self._rotation(turns)
        *earlier, final = self._layers
        for index, layer in enumerate(earlier):
            x = layer(x, index, Batch(pool, [turn.whole for turn in turns], rotation))
        parts = [turn.last for turn in turns]
        batch = Batch(pool, parts, rotation, self._kept(parts))
        return self._scores(final(x, len(earlier), batch))

    def num_bytes(self, state: GlideState) -> int:
        """See `Scorer.num_bytes`; what is read of the target is the target's."""
        return state.cache.num_bytes

    def close(self, state: GlideState) -> None:
        """Free the state's memory; it cannot be used afterwards."""
        state.cache.close()
        state.tokens, state.target_kv, state.capacity = [], (), 0

    def _sync(self, ask: Sync) -> _Turn:
        state: GlideState = ask.state
        start = state.begin(ask.tokens)
        state.target_kv = self._visible(ask.view, len(ask.tokens))
        count = len(ask.tokens) - start
        slots, seen = _places(state.cache, start, len(ask.tokens))
        last = Rows(slots, seen, count, int(ask.is_scored), None, _before(state, 1), None)
        whole = last
        if len(self._layers) > 1:
            self_mask, cross_mask = self._prefix_masks(state, start)
            whole = Rows(slots, seen, count, count, self_mask, state.target_kv, cross_mask)
        return _Turn(state.tokens[start:], range(start, start + count), last, whole)

    def _grow(self, ask: Grow) -> _Turn:
        state: GlideState = ask.state
        base, count = len(state.tokens), len(ask.tokens)
        old = state.append(ask.parents)
        mask = None
        if not state.is_chain:
            above = self._masks.rows(tuple(state.parents), old).to(self._embeddings.device)
            mask = _tree_mask(above, base, self._embeddings)
        slots, seen = _places(state.cache, base + old, base + old + count)
        rows = Rows(slots, seen, count, count, mask, state.target_kv, None)
        positions = [base - 1 + depth for depth in state.depths[old:]]
        return _Turn(ask.tokens, positions, rows, rows)

    def _scores(self, x: Tensor) -> Scores:
        if not x.size(0):
            empty = x.new_empty(0, len(self.vocab), dtype=torch.float32)
            return Scores(logits=empty, hidden=x)
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
        pairs = [view.layers[layer] for layer in self.config.target_layers]
        return [
            (keys[None, :, :seen].to(self._dtype), values[None, :, :seen].to(self._dtype))
            for keys, values in pairs
        ]

    def _prefix_masks(self, state: GlideState, start: int) -> tuple[Tensor, Tensor]:
        """What the rows from `start` on see of their own and of the target's positions, in a layer
        whose outputs the next layer's keys need."""
        count = len(state.tokens)
        own = torch.arange(start, count, device=self._embeddings.device)[:, None]
        seen = state.target_kv[0][0].shape[2] if state.target_kv else 0
        cross = _additive(torch.arange(seen, device=own.device)[None] < own, self._embeddings)
        mask = _additive(torch.arange(count, device=own.device)[None] <= own, self._embeddings)
        if start == 0 and seen:
            cross[0, 0] = 0  # position 0 has nothing before it; training lets it read itself
        return mask, cross

    def _kept(self, parts: Sequence[Rows]) -> Slots | None:
        """The rows of a pass that go on behind the last layer's keys."""
        if all(rows.num_kept == rows.count for rows in parts):
            return None
        if len(parts) == 1:
            return slice(parts[0].count - parts[0].num_kept, None)
        return torch.tensor(list(_kept_rows(parts)), device=self._embeddings.device)

    def _reach(self, length: int) -> None:
        """Have rotary factors of positions 0..length-1."""
        if len(self._cos) < length:
            tables = self._tables(length)
            self._cos, self._sin = tables.cos, tables.sin

    def _tables(self, length: int) -> Rotation:
        cos, sin = rotary_tables(self._target, length, dtype=self._dtype)
        half = sin.shape[-1] // 2
        return Rotation(cos[:, None], torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)[:, None])

    def _rotation(self, turns: Sequence[_Turn]) -> Rotation:
        """Rotary factors of all rows."""
        positions = list(chain.from_iterable(turn.positions for turn in turns))
        first, last = positions[0], positions[-1]
        is_run = last - first + 1 == len(positions) and turns[0].last.self_mask is None
        if len(turns) == 1 and is_run:
            return Rotation(self._cos[first : last + 1], self._sin[first : last + 1])
        at = torch.tensor(positions, device=self._embeddings.device)
        return Rotation(self._cos[at], self._sin[at])


def _before(state: GlideState, back: int) -> Sequence[tuple[Tensor, Tensor]]:
    """What the row `back` places before the end of the prefix may read: earlier positions."""
    limit = len(state.tokens) - back
    if not state.target_kv or state.target_kv[0][0].shape[2] <= limit:
        return state.target_kv
    pairs = [(keys[:, :, :limit], values[:, :, :limit]) for keys, values in state.target_kv]
    return pairs if limit else ()


def _places(cache: KvCache, start: int, stop: int) -> tuple[Slots, Slots]:
    """Where positions start..stop-1 are in the pool, and all up to them."""
    base = cache.base(stop)
    if base is not None:
        return slice(base + start, base + stop), slice(base, base + stop)
    table = cache.table(stop)
    return table[start:], table


def _kept_rows(parts: Sequence[Rows]) -> Iterator[int]:
    end = 0
    for rows in parts:
        end += rows.count
        yield from range(end - rows.num_kept, end)


def _tree_mask(seen: Tensor, base: int, like: Tensor) -> Tensor:
    """[R, base + nodes], 0 where a node may look, else -inf; seen [R, nodes] of the tree."""
    mask = like.new_zeros(seen.shape[0], base + seen.shape[1])
    mask[:, base:].masked_fill_(~seen, float("-inf"))
    return mask


def _additive(allowed: Tensor, like: Tensor) -> Tensor:
    return like.new_zeros(allowed.shape).masked_fill_(~allowed, float("-inf"))

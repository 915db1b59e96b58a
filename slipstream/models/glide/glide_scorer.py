"""GliDe behind the `Scorer` seam: sessions, prefixes and trees.

On a CPU native code computes (`native/glide.py`), else torch (`glide_torch.py`). Knows nothing of
stop rules, sampling or where the target's keys and values come from.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.core.sequence import common_prefix
from slipstream.models.dtypes import CPU
from slipstream.models.glide.glide_state import GlideState, SessionStep, check_ask
from slipstream.models.glide.glide_weights import GlideWeights, check_target, read_glide
from slipstream.models.glide.target_parts import NativeParts, TargetParts, target_parts
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout, KvPool, round_up
from slipstream.models.memory import temporary_bytes
from slipstream.models.native.glide import NativeGlide
from slipstream.models.native.library import NotNative
from slipstream.models.scorer import Ask, Grow, KvView, Scores, Sync
from slipstream.models.store.folder import reading

if TYPE_CHECKING:
    from slipstream.models.decision import DecisionModel
    from slipstream.models.glide.glide_chains import GlideChains
    from slipstream.models.glide.glide_packed import GlideParts
    from slipstream.models.glide.glide_torch import TorchGlide

_LOG = logging.getLogger("slipstream.models")


class GlideScorer:
    """Scores prefixes and grows token trees with a GliDe draft (see `Scorer`).

    A query reads target positions before its own, as in training, so a `Sync` never reads the
    last token's own position even where the view holds it. In torch a session's scores may differ
    in their last bits with the other sessions of the pass.
    """

    def __init__(
        self,
        weights: GlideWeights,
        target: TargetParts,
        *,
        dtype: "np.dtype[Any]",
        native: bool = True,
    ) -> None:
        """`dtype` is that of keys and values; `native` False leaves all to torch, which alone has
        `parts`."""
        config = self.config = weights.config
        self.vocab = weights.vocab
        self.hidden_size = config.hidden_size
        self.max_lag = config.max_lag or None
        self.context_length: int | None = None
        self.layout = KvLayout(
            config.num_layers, config.num_kv_heads, config.head_dim, dtype, target.device
        )
        made = _native(weights, target, self.layout) if native else None
        self._pass = made or _in_torch(weights, target, self.layout)
        self._length = 0

    @property
    def engine(self) -> str:
        """Return what computes: torch, or native with the name of its kernels."""
        return self._pass.engine

    @property
    def weight_bytes(self) -> int:
        """Bytes of what a step reads, embeddings included, at most."""
        return self._pass.weight_bytes

    def workspace_bytes(self, num_rows: int) -> int:
        """Bytes that a pass of so many rows needs besides, at most: states and scores, and on a
        device the keys that captured chains read."""
        config, device = self.config, self.layout.device
        width = 6 * config.hidden_size + 3 * config.intermediate_size
        gathered = 0 if device == CPU else temporary_bytes(device)
        return num_rows * 4 * (width + 4 * len(self.vocab)) + gathered

    def pool(self, num_pages: int) -> KvPool:
        return KvPool(self.layout, num_pages, scratch_rows=0, buffers=self._pass.buffers)

    def open(self, capacity: int, pool: KvPool | None = None) -> GlideState:
        if capacity < 1:
            raise InvalidRequest(f"capacity is {capacity}, it must be at least 1")
        if pool is None:
            pool = self.pool(round_up(capacity, BLOCK_SIZE) // BLOCK_SIZE)
        cache = KvCache(pool, limit=capacity)
        cache.reserve(capacity)
        self._reach(capacity)
        return GlideState(cache, capacity)

    def parts(self, length: int) -> "GlideParts":
        """Return what torch computes scores with, for positions below `length`."""
        assert not isinstance(self._pass, NativeGlide), "native code has no such parts"
        return self._pass.parts(length)

    def chains(self, context_length: int, decision: "DecisionModel | None") -> "GlideChains | None":
        """Return the chains of a device, which computes them at once; None on a CPU.

        Positions are below `context_length`.
        """
        if self.layout.device == CPU:
            return None
        import torch

        from slipstream.models.cuda.graphs import Replay
        from slipstream.models.glide.glide_chains import GlideChains

        replay = Replay(torch.device(self.layout.device))
        return GlideChains(self, replay, context_length=context_length, decision=decision)

    def skip(self, state: GlideState, skipped: int) -> None:
        state.skip(skipped)
        self._reach(skipped + state.capacity)

    def num_same(self, state: GlideState, tokens: Sequence[int]) -> int:
        return common_prefix(state.tokens, list(tokens))

    def check(self, ask: Ask) -> None:
        check_ask(ask)
        if isinstance(ask, Sync) and ask.view is not None and ask.view.count:
            wanted, seen = self.config.target_layers, ask.view.layers
            if missing := [layer for layer in wanted if layer not in seen]:
                raise ModelMismatch(
                    f"the draft reads target layers {list(wanted)}, the view lacks {missing}"
                )

    def score(self, asks: Sequence[Ask]) -> Scores:
        """See `Scorer.score`.

        Of a prefix only what follows the longest common one is computed, and the last layer's
        outputs of its last token only. A node sees the prefix, its ancestors and itself, at the
        position its depth gives.
        """
        for ask in asks:
            self.check(ask)
        return self._pass.scores([self._step(ask) for ask in asks])

    def num_bytes(self, state: GlideState) -> int:
        """See `Scorer.num_bytes`; what is read of the target is the target's."""
        return state.cache.num_bytes

    def close(self, state: GlideState) -> None:
        """Free the state's memory; it cannot be used afterwards."""
        state.cache.close()
        state.tokens, state.target_kv, state.capacity = [], (), 0

    def _reach(self, length: int) -> None:
        """Compute what positions below `length` need."""
        if length > self._length:
            self._pass.reach(length)
            self._length = length

    def _step(self, ask: Ask) -> SessionStep:
        state, count = ask.state, len(ask.tokens)
        if isinstance(ask, Grow):
            base, old = len(state.tokens), state.append(ask.parents)
            positions = [base - 1 + state.skipped + depth for depth in state.depths[old:]]
            return SessionStep(state, ask.tokens, positions, base + old, count)
        start = state.begin(ask.tokens)
        state.target_kv, state.addresses = self._visible(ask.view, count), None
        tokens = state.tokens[start:]
        return SessionStep(state, tokens, state.positions(start, count), start, int(ask.is_scored))

    def _visible(self, view: KvView | None, count: int) -> list[tuple[Any, Any]]:
        """The view's positions before `count`, per target layer in the config's order."""
        seen = 0 if view is None else min(view.num_held, count)
        if view is None or seen == 0:
            return []
        pairs = [view.layers[layer] for layer in self.config.target_layers]
        return [
            (self._pass.readable(keys[:, :seen]), self._pass.readable(values[:, :seen]))
            for keys, values in pairs
        ]


def load_glide(
    path: Path,
    target: Any,
    *,
    dtype: "np.dtype[Any] | None" = None,
    tokenizer_hash: str | None = None,
) -> GlideScorer:
    """A scorer from a weights directory and its target (a model as `target_parts` takes it, or its
    parts).

    dtype: the target's by default. WeightsError when the files are broken, ModelMismatch when
    they belong to another target.
    """
    parts = target
    if not isinstance(target, TargetParts):
        parts = target_parts(target, tokenizer_hash=tokenizer_hash)
    with reading(path):
        weights = read_glide(path)
        check_target(weights.config, parts)
        return GlideScorer(weights, parts, dtype=parts.dtype if dtype is None else dtype)


def _native(weights: GlideWeights, target: TargetParts, layout: KvLayout) -> NativeGlide | None:
    try:
        if not isinstance(target, NativeParts):
            from slipstream.models.glide.torch_parts import TorchParts, as_native

            assert isinstance(target, TorchParts)
            target = as_native(target)
        return NativeGlide(weights, target, layout)
    except NotNative as reason:
        if layout.device == CPU:
            _LOG.info("torch computes the draft: %s", reason)
        return None


def _in_torch(weights: GlideWeights, target: TargetParts, layout: KvLayout) -> "TorchGlide":
    from slipstream.models.glide.glide_torch import TorchGlide

    return TorchGlide(weights, target, layout)

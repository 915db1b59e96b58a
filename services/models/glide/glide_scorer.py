"""GliDe behind the `Scorer` seam: sessions, prefixes and trees.

On a CPU native code computes (`native/glide.py`), else torch (`glide_torch.py`). Knows nothing of
stop rules, sampling or where the target's keys and values come from.
"""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.core.sequence import common_prefix
from slipstream.models.glide.glide import GlideModel
from slipstream.models.glide.glide_packed import GlideParts
from slipstream.models.glide.glide_state import GlideState, SessionStep, check_ask
from slipstream.models.glide.glide_torch import TorchGlide
from slipstream.models.glide.target_parts import TargetParts
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout, KvPool, round_up
from slipstream.models.memory import temporary_bytes
from slipstream.models.native.glide import NativeGlide
from slipstream.models.native.library import NotNative
from slipstream.models.scorer import Ask, Grow, KvView, Scores, Sync

_LOG = logging.getLogger("slipstream.models")


class GlideScorer:
    """Scores prefixes and grows token trees with a GliDe draft (see `Scorer`).

    A query reads target positions before its own, as in training, so a `Sync` never reads the
    last token's own position even where the view holds it. In torch a session's scores may differ
    in their last bits with the other sessions of the pass.
    """

    def __init__(
        self,
        model: GlideModel,
        vocab: Tensor,
        target: TargetParts,
        *,
        dtype: torch.dtype,
        native: bool = True,
    ) -> None:
        """`native` False leaves all to torch, which alone has `parts`."""
        at = self.config = model.config
        self.vocab = vocab.cpu().numpy()
        self.hidden_size = at.hidden_size
        self.max_lag = at.max_lag or None
        self.context_length: int | None = None
        self.layout = KvLayout(
            at.num_layers, at.num_kv_heads, at.head_dim, dtype, target.embeddings.device
        )
        parts = (model, target.head[vocab], target, self.layout)
        self._pass = (_native(*parts) if native else None) or TorchGlide(*parts)
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
        at, device = self.config, self.layout.device
        width = 6 * at.hidden_size + 3 * at.intermediate_size
        gathered = 0 if device.type == "cpu" else temporary_bytes(device)
        return num_rows * 4 * (width + 4 * len(self.vocab)) + gathered

    def pool(self, num_pages: int) -> KvPool:
        return KvPool(self.layout, num_pages, scratch_rows=0)

    def open(self, capacity: int, pool: KvPool | None = None) -> GlideState:
        if capacity < 1:
            raise InvalidRequest(f"capacity is {capacity}, it must be at least 1")
        if pool is None:
            pool = self.pool(round_up(capacity, BLOCK_SIZE) // BLOCK_SIZE)
        cache = KvCache(pool, limit=capacity)
        cache.reserve(capacity)
        if capacity > self._length:
            self._pass.reach(capacity)
            self._length = capacity
        return GlideState(cache, capacity)

    def parts(self, length: int) -> GlideParts:
        """Return what torch computes scores with, for positions below `length`."""
        assert isinstance(self._pass, TorchGlide), "native code has no such parts"
        return self._pass.parts(length)

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

    @torch.inference_mode()
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

    def _step(self, ask: Ask) -> SessionStep:
        state, count = ask.state, len(ask.tokens)
        if isinstance(ask, Grow):
            base, old = len(state.tokens), state.append(ask.parents)
            positions = [base - 1 + depth for depth in state.depths[old:]]
            return SessionStep(state, ask.tokens, positions, base + old, count)
        start = state.begin(ask.tokens)
        state.target_kv = self._visible(ask.view, count)
        tokens = state.tokens[start:]
        return SessionStep(state, tokens, range(start, count), start, int(ask.is_scored))

    def _visible(self, view: KvView | None, count: int) -> list[tuple[Tensor, Tensor]]:
        """The view's positions before `count`, per target layer in the config's order."""
        seen = 0 if view is None else min(view.count, count)
        if view is None or seen == 0:
            return []
        pairs = [view.layers[layer] for layer in self.config.target_layers]
        dtype = self.layout.dtype
        return [
            (keys[None, :, :seen].to(dtype), values[None, :, :seen].to(dtype))
            for keys, values in pairs
        ]


def _native(
    model: GlideModel, head: Tensor, target: TargetParts, layout: KvLayout
) -> NativeGlide | None:
    try:
        return NativeGlide(model, head, target, layout)
    except NotNative as reason:
        if layout.device.type == "cpu":
            _LOG.info("torch computes the draft: %s", reason)
        return None

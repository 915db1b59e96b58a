"""Plain decoding of many conversations at once, for text in bulk."""

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.models.causal import CausalModel
from slipstream.models.kv.batch import Part
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, round_up
from slipstream.models.torch.arrays import as_tensor


class BulkCache:
    """Caches of B rows in one pool."""

    def __init__(self, caches: Sequence[KvCache]) -> None:
        self.caches = list(caches)

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these, [n] int64."""
        kept = set(rows.tolist())
        for row, cache in enumerate(self.caches):
            if row not in kept:
                cache.close()
        self.caches = [self.caches[row] for row in rows.tolist()]


class BulkModel:
    """A causal model that continues B conversations, a token of each per step."""

    def __init__(self, model: CausalModel, *, max_new_tokens: int) -> None:
        """Up to `max_new_tokens` follow each prompt."""
        self._model = model
        self._max_new_tokens = max_new_tokens

    def open(self, prompts: Sequence[Sequence[int]]) -> tuple[BulkCache, Tensor]:
        """Caches of the prompts and the logits [B, V] behind each one's last token."""
        ends = [round_up(len(prompt) + self._max_new_tokens, BLOCK_SIZE) for prompt in prompts]
        pool = self._model.pool(sum(ends) // BLOCK_SIZE)
        cache = BulkCache([self._model.open_in(pool) for _ in prompts])
        for own, prompt in zip(cache.caches, prompts, strict=True):
            self._model.prefill(own, prompt[:-1])
        return cache, self.step(cache, torch.tensor([prompt[-1] for prompt in prompts]))

    def step(self, cache: BulkCache, tokens: Tensor) -> Tensor:
        """Append a token to every row, [B]; the logits [B, V] behind it."""
        pairs = zip(cache.caches, tokens.tolist(), strict=True)
        hidden, slots = self._model.forward([Part(own, [token]) for own, token in pairs])
        for own, kept in zip(cache.caches, slots, strict=True):
            own.keep(kept)
        return as_tensor(self._model.logits(hidden))

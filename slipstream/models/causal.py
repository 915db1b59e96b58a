"""A causal language model over our own cache, of many sessions and trees."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slipstream.core.errors import ModelError
from slipstream.core.tree import MAX_NODES
from slipstream.core.verify.draws import FindContenders
from slipstream.models.decoder import Decoder
from slipstream.models.dtypes import CPU, Array
from slipstream.models.format.architecture import ModelSizes
from slipstream.models.kv.batch import Batch, Draw, Part
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, SCRATCH_ROWS, KvPool, round_up
from slipstream.models.reference import SAMPLE_TOKENS, sample_tokens
from slipstream.models.scorer import on_host

_CHUNK_ROWS = 256
_OWN_SCRATCH = MAX_NODES


class CausalModel:
    """A target, or a draft, as a forward of the tokens of any number of sessions.

    `dtype` is that of keys and values, `weights_type` names the weights' as results show it;
    `decoder` computes, and `models.loading` chooses it.
    """

    def __init__(self, decoder: Decoder, sizes: ModelSizes) -> None:
        self.decoder, self.numerics, self.engine = decoder, decoder.numerics, decoder.engine
        self.layout, self.num_embeddings = sizes.layout, sizes.num_embeddings
        self.hidden_size, self._mlp_size = sizes.hidden_size, sizes.mlp_size
        self.vocab_size, self.context_length = sizes.vocab_size, sizes.context_length
        self.device, self.dtype = sizes.layout.device, sizes.layout.dtype
        self.weights_type, self.weight_bytes = sizes.weights_type, decoder.weight_bytes
        self.rule, self.draws_on_device = decoder.rule, decoder.draws_on_device
        self.contenders: FindContenders | None = decoder.contenders

    def workspace_bytes(self, num_rows: int) -> int:
        """Return the most bytes that a forward of so many tokens needs besides weights and caches.

        Hidden states and what the widest products make of them, logits in both precisions, on a
        CPU the keys of one layer gathered once, and what the decoder keeps.
        """
        width = 4 * self.hidden_size + 4 * self._mlp_size
        row = width * self.dtype.itemsize + self.vocab_size * (self.dtype.itemsize + 4)
        layer = replace(self.layout, num_layers=1, hidden_layers=()).bytes_per_token
        kept = self.decoder.workspace_bytes(row, self.hidden_size * self.dtype.itemsize)
        gathered = self.context_length * layer if self.device == CPU else 0
        return int(num_rows * row + gathered) + kept

    def pool(self, num_pages: int, *, scratch_rows: int = SCRATCH_ROWS) -> KvPool:
        """Memory for the caches of an engine's sessions."""
        return self.decoder.new_pool(num_pages, scratch_rows)

    def open(self, capacity: int) -> KvCache:
        """An empty cache with room for `capacity` tokens, in memory of its own."""
        num_pages = round_up(capacity, BLOCK_SIZE) // BLOCK_SIZE
        return self.open_in(self.decoder.new_pool(num_pages, _OWN_SCRATCH, lasts=False))

    def open_in(self, pool: KvPool) -> KvCache:
        """An empty cache over an engine's memory, without a page yet."""
        return KvCache(pool, limit=self.context_length)

    def prefill(self, cache: KvCache, tokens: Sequence[int]) -> None:
        """Cache `tokens` at the positions that follow the cache's count, in chunks."""
        for start in range(0, len(tokens), _CHUNK_ROWS):
            _, (slots,) = self.forward([Part(cache, tokens[start : start + _CHUNK_ROWS])])
            cache.keep(slots)

    def forward(self, parts: Sequence[Part]) -> tuple[Any, tuple[tuple[int, ...], ...]]:
        """Return final hidden states [n, d] part by part, pending tokens before nodes, and the
        tokens' slots by part. States are an array of native code, or a tensor of torch's.

        The parts' caches are different ones of one pool. Nothing becomes final: the caller sets
        each cache which slots to `keep`. Raises `ModelError` for a position past the context,
        `CapacityError` for tokens that find no room.
        """
        batch = self._laid_out(parts)
        hidden, _ = self.decoder.forward(parts[0].cache.pool, batch)
        return hidden, batch.slots_by_part()

    def draw(
        self, parts: Sequence[Part], draws: Iterable[Draw]
    ) -> tuple[Any, tuple[tuple[int, ...], ...], list[int]]:
        """Return what `forward` does, and tokens drawn on the device; one transfer brings them, and
        the next forward overwrites the states. For a model that `draws_on_device`."""
        batch = self._laid_out(parts)
        hidden, tokens = self.decoder.forward(parts[0].cache.pool, batch, draws)
        return hidden, batch.slots_by_part(), tokens

    def logits(self, hidden: Any) -> Any:
        """Logits [rows, vocab] for hidden states [rows, d]: both are in the model's dtype, or in
        float32 where native code computes."""
        return self.decoder.logits(hidden)

    def sample(self) -> tuple[Array, Array]:
        """Hidden states of the tokens that models are compared by, and the last logits. They come
        in two forwards, so that the second one needs what the first has cached."""
        cache, tokens = self.open(SAMPLE_TOKENS), sample_tokens(self.vocab_size)
        states = []
        for half in (tokens[: SAMPLE_TOKENS // 2], tokens[SAMPLE_TOKENS // 2 :]):
            hidden, (slots,) = self.forward([Part(cache, half)])
            cache.keep(slots)
            states.append(on_host(hidden))
        return np.concatenate(states), on_host(self.logits(hidden[-1:]))

    def _laid_out(self, parts: Sequence[Part]) -> Batch:
        for part in parts:
            end = part.end + max(part.tree.depths(), default=0)
            if end > self.context_length:
                raise ModelError(
                    f"position {part.end} is past the model's context of {self.context_length}"
                    " tokens"
                )
            part.cache.reserve(part.end)
            part.cache.own(min(end, part.cache.num_slots))
        return Batch.of(parts)

"""A causal language model over our own cache: many sessions, trees of rows.

The forward is native code where there are kernels for model and processor (`native/`), else torch
(`torch_decoder.py`), in fixed shapes on CUDA (`bucketed.py`).
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slipstream.core.errors import ModelError
from slipstream.core.tree import MAX_NODES
from slipstream.core.verify.draws import FindContenders
from slipstream.models.dtypes import CPU, Array
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, SCRATCH_ROWS, KvPool, round_up
from slipstream.models.native.decoder import NativeDecoder
from slipstream.models.native.library import NoLibrary, NotNative
from slipstream.models.native.source import WeightSource
from slipstream.models.numerics.rules import Numerics, RowRule
from slipstream.models.store.folder import reading
from slipstream.models.target.architecture import ModelSizes
from slipstream.models.target.reference import SAMPLE_TOKENS, ReferenceCheck, sample_tokens
from slipstream.models.target.token_layout import Draw, DrawnTokens, Part

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slipstream.models.cuda.bucketed import BucketedForward
    from slipstream.models.cuda.graphs import Replay
    from slipstream.models.parallel.ranks import Ranks
    from slipstream.models.parallel.tensor_parallel import Workers
    from slipstream.models.target.torch_decoder import TorchDecoder

_LOG = logging.getLogger("slipstream.models")

Engine = Literal["native", "torch", "shaped"]
"""Computing engine: native code, torch, or torch in forwards of fixed shape."""

_CHUNK_ROWS = 256
_MAX_SHAPED_ROWS = 512
_OWN_SCRATCH = MAX_NODES


class CausalModel:
    """A target, or a draft, as a forward of the tokens of any number of sessions.

    `invariant` numerics make a token's bits depend on its own prefix only; `fast` ones may
    differ in the last bit with the number of tokens, of all sessions, and the form of the tree.
    `dtype` is that of keys and values, `weights_type` names the weights' as results show it.
    """

    def __init__(
        self,
        model: "WeightSource | PreTrainedModel",
        *,
        numerics: Numerics = "invariant",
        ranks: "Ranks | None" = None,
        engine: Engine | None = None,
    ) -> None:
        """Take the model over: its modules are swapped in place. All `ranks` do so together; None
        is one alone.

        `engine` None is the fastest that there is; a source of weights has native code only.
        Raises `ModelError` for one that can't be used, and when the architecture has parts that
        this cache can't serve.
        """
        self.numerics = numerics
        sizes = sizes_of(model, 1 if ranks is None else ranks.size)
        self.layout, self.num_embeddings = sizes.layout, sizes.num_embeddings
        self.hidden_size, self._mlp_size = sizes.hidden_size, sizes.mlp_size
        self.vocab_size, self.context_length = sizes.vocab_size, sizes.context_length
        self.device, self.dtype = sizes.layout.device, sizes.layout.dtype
        self.weights_type = sizes.weights_type
        with reading(sizes.name):
            known = ReferenceCheck(model, sizes.vocab_size)
            self._decoder = self._chosen(model, ranks, engine)
        self.contenders: FindContenders | None = self._decoder.contenders
        self._shaped = self._with_shapes(engine, ranks)
        known.check(self._sample, sizes.name)

    @property
    def is_native(self) -> bool:
        """Return whether native code computes; else it is torch."""
        return isinstance(self._decoder, NativeDecoder)

    @property
    def engine(self) -> str:
        """Return what computes: torch, shaped, or native with the name of its kernels."""
        if isinstance(self._decoder, NativeDecoder):
            return f"native {self._decoder.kernels}"
        return "torch" if self._shaped is None else "shaped"

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that are here."""
        return self._decoder.weight_bytes

    @property
    def rule(self) -> RowRule:
        """Numbers of tokens that are computed together."""
        return self._decoder.rule

    @property
    def has_shapes(self) -> bool:
        """Return whether forwards over an engine's pool come in fixed shapes."""
        return self._shaped is not None

    @property
    def graphs(self) -> "Replay | None":
        """Return the forwards of fixed shape; None where there are none."""
        return None if self._shaped is None else self._shaped.replay

    def workspace_bytes(self, num_rows: int) -> int:
        """Return the most bytes that a forward of so many tokens needs besides weights and caches.

        Hidden states and what the widest products make of them, logits in both precisions, the
        keys of one layer gathered once, and what captured forwards keep.
        """
        width = 4 * self.hidden_size + 4 * self._mlp_size
        row = width * self.dtype.itemsize + self.vocab_size * (self.dtype.itemsize + 4)
        layer = self.layout.bytes_per_token // self.layout.num_layers
        eager = int(num_rows * row + self.context_length * layer)
        if self._shaped is None:
            return eager
        return eager + self._shaped.static_bytes(row, self.hidden_size * self.dtype.itemsize)

    def pool(self, num_pages: int, *, scratch_rows: int = SCRATCH_ROWS) -> KvPool:
        """Memory for the caches of an engine's sessions."""
        pool = self._new_pool(num_pages, scratch_rows)
        if self._shaped is not None:
            self._shaped.serve(pool)
        return pool

    def drive(self, workers: "Workers") -> None:
        """Drive the other ranks from this one, rank 0, from now on."""
        assert not isinstance(self._decoder, NativeDecoder), "a model that is split is torch's"
        self._decoder.drive(workers)

    def open(self, capacity: int) -> KvCache:
        """An empty cache with room for `capacity` tokens, in memory of its own."""
        num_pages = round_up(capacity, BLOCK_SIZE) // BLOCK_SIZE
        return self.open_in(self._new_pool(num_pages, _OWN_SCRATCH))

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
        for part in parts:
            self._make_room(part)
        pool = parts[0].cache.pool
        drawn = self._drawn(pool, parts)
        if drawn is not None:
            return drawn.hidden.clone(), drawn.places  # the next forward writes over it
        return self._decoder.forward(pool, parts)

    def draw(self, parts: Sequence[Part], draws: Sequence[Draw]) -> DrawnTokens | None:
        """Return what `forward` does, with tokens drawn on the device; one transfer brings them.

        None, and nothing done, where forwards come in no fixed shapes or none of them fits.
        """
        for part in parts:
            self._make_room(part)
        return self._drawn(parts[0].cache.pool, parts, draws)

    def logits(self, hidden: Any) -> Any:
        """Logits [rows, vocab] for hidden states [rows, d]: both are in the model's dtype, or in
        float32 where native code computes."""
        return self._decoder.logits(hidden)

    def _new_pool(self, num_pages: int, scratch_rows: int) -> KvPool:
        if isinstance(self._decoder, NativeDecoder):
            return KvPool(self.layout, num_pages, scratch_rows=scratch_rows)
        return self._decoder.pool(num_pages, scratch_rows)

    def _make_room(self, part: Part) -> None:
        end = part.end + max(part.tree.depths(), default=0)
        if end > self.context_length:
            raise ModelError(
                f"position {part.end} is past the model's context of {self.context_length} tokens"
            )
        part.cache.reserve(part.end)
        part.cache.own(min(end, part.cache.num_slots))

    def _drawn(
        self, pool: KvPool, parts: Sequence[Part], draws: Sequence[Draw] = ()
    ) -> DrawnTokens | None:
        if self._shaped is None:
            return None
        packed = self._shaped.pack(pool, parts, draws)
        if packed is None:
            return None
        hidden, tokens = self._shaped.forward(pool, packed, draws)
        return DrawnTokens(hidden, packed.places, tokens.tolist() if draws else [])

    def _chosen(
        self, model: "WeightSource | PreTrainedModel", ranks: "Ranks | None", engine: Engine | None
    ) -> "NativeDecoder | TorchDecoder":
        if isinstance(model, WeightSource):
            return NativeDecoder(model, self.layout)
        if engine in (None, "native") and ranks is None:
            from slipstream.models.native.in_memory import InMemory

            try:
                source = InMemory(model)
                decoder = NativeDecoder(source, self.layout)
                self.context_length = source.architecture.context_length
                return decoder
            except NotNative as reason:
                if engine is not None:
                    raise ModelError(f"the engine is {engine}, but {reason}") from None
                if self.device == CPU:
                    level = logging.WARNING if isinstance(reason, NoLibrary) else logging.INFO
                    _LOG.log(level, "torch computes %s: %s", type(model).__name__, reason)
        from slipstream.models.target.torch_decoder import TorchDecoder

        return TorchDecoder(model, self.layout, numerics=self.numerics, ranks=ranks)

    def _with_shapes(
        self, engine: Engine | None, ranks: "Ranks | None"
    ) -> "BucketedForward | None":
        decoder, is_alone = self._decoder, ranks is None
        if engine is None and is_alone and self.device != CPU:
            engine = "shaped"
        if engine != "shaped":
            return None
        if not is_alone:
            raise ModelError("a model that is split among processes has no forwards of fixed shape")
        import torch

        from slipstream.models.cuda.attention_kernels import choose_kernel
        from slipstream.models.cuda.bucketed import BucketedForward, buckets_for
        from slipstream.models.cuda.graphs import Replay

        assert not isinstance(decoder, NativeDecoder)
        buckets = buckets_for(
            max_rows=_MAX_SHAPED_ROWS, context_length=self.context_length, rule=decoder.rule
        )
        is_invariant = self.numerics == "invariant"
        kernel = choose_kernel(self.layout, decoder.group, is_invariant=is_invariant)
        return BucketedForward(decoder, kernel, buckets, Replay(torch.device(self.device)))

    def _sample(self) -> tuple[Array, Array]:
        """Hidden states of the tokens that models are compared by, and the last logits. They come
        in two forwards, so that the second one needs what the first has cached."""
        cache, tokens = self.open(SAMPLE_TOKENS), sample_tokens(self.vocab_size)
        states = []
        for half in (tokens[: SAMPLE_TOKENS // 2], tokens[SAMPLE_TOKENS // 2 :]):
            hidden, (slots,) = self.forward([Part(cache, half)])
            cache.keep(slots)
            states.append(hidden)
        found = [*states, self.logits(states[1][-1:])]
        if not isinstance(states[0], np.ndarray):
            from slipstream.models.torch_arrays import as_array

            found = [as_array(it) for it in found]
        return np.concatenate(found[:2]), found[2]


def sizes_of(model: "WeightSource | PreTrainedModel", num_ranks: int = 1) -> ModelSizes:
    """Return the sizes of a model. Raises `ModelError` for one that this cache can't serve."""
    if isinstance(model, WeightSource):
        return model.outline()
    from slipstream.models.target.transformers_model import outline_of

    return outline_of(model, num_ranks)

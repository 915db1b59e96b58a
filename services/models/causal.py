"""A causal language model over our own cache: many sessions, trees of rows.

The forward is native code where there are kernels for model and processor (`native/`), else torch
(`torch_decoder.py`), in fixed shapes on CUDA (`bucketed.py`). Knows no sessions or laws.
"""

import logging
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slipstream.core.errors import ModelError
from slipstream.core.options import MAX_NODES
from slipstream.models.bucketed import BucketedForward, Draw, Drawn, Shaped, buckets_for
from slipstream.models.cache import KvCache
from slipstream.models.gguf_model import weights_type
from slipstream.models.graphs import Replay
from slipstream.models.invariance import Numerics, RowRule
from slipstream.models.kernels import choose_kernel
from slipstream.models.kv_layout import KEY_BLOCK, KvLayout, round_up
from slipstream.models.leading import Followers
from slipstream.models.native.decoder import NativeDecoder
from slipstream.models.native.library import NotBuilt, NotNative
from slipstream.models.pool import SCRATCH_ROWS, KvPool
from slipstream.models.ranks import ALONE, Ranks
from slipstream.models.rows import Part
from slipstream.models.sample import SAMPLE_TOKENS, check_hidden, sample_hidden, sample_tokens
from slipstream.models.torch_decoder import TorchDecoder

_LOG = logging.getLogger("slipstream.models")

Engine = Literal["native", "torch", "shaped"]
"""What computes: native code, torch, or torch in forwards of fixed shape."""

_CHUNK_ROWS = 256
_MAX_SHAPED_ROWS = 512
_OWN_SCRATCH = MAX_NODES


class CausalModel:
    """A target, or a draft, as a forward of the rows of any number of sessions.

    `invariant` numerics make a row's bits depend on its own prefix only; `fast` ones may
    differ in the last bit with the number of rows, whosever they are, and the form of the tree.
    `dtype` is that of keys and values, `weights_type` names the weights' as results show it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        numerics: Numerics = "invariant",
        ranks: Ranks = ALONE,
        engine: Engine | None = None,
    ) -> None:
        """Takes the model over: its modules are swapped in place. All `ranks` do so together.

        `engine` None is the fastest that there is. Raises `ModelError` for one that can't be used,
        and when the architecture has parts that this cache can't serve.
        """
        model.requires_grad_(False).eval()
        self.config = model.config.get_text_config()
        self.numerics = numerics
        self.device = model.device
        self.dtype = model.dtype
        self.weights_type = weights_type(model)
        self.context_length = context_length(self.config)
        self.embedding: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
        self.head_weight = _head_weight(model)
        expected = sample_hidden(model)
        self.layout = _layout(model, ranks)
        self._decoder = self._chosen(model, ranks, engine)
        self._shaped = self._with_shapes(engine, ranks)
        self._check(type(model).__name__, expected)

    @property
    def vocab_size(self) -> int:
        """Number of columns of the logits."""
        return self.head_weight.shape[0]

    @property
    def is_native(self) -> bool:
        """Whether native code computes; else it is torch."""
        return isinstance(self._decoder, NativeDecoder)

    @property
    def engine(self) -> str:
        """What computes: torch, shaped, or native with the name of its kernels."""
        if isinstance(self._decoder, NativeDecoder):
            return f"native {self._decoder.kernels}"
        return "torch" if self._shaped is None else "shaped"

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that are here."""
        return self._decoder.weight_bytes

    @property
    def rule(self) -> RowRule:
        """Numbers of rows that are computed together."""
        return self._decoder.rule

    @property
    def has_shapes(self) -> bool:
        """Whether forwards over an engine's pool come in fixed shapes."""
        return self._shaped is not None

    def workspace_bytes(self, num_rows: int) -> int:
        """Bytes that a forward of so many rows needs besides weights and caches, at most.

        Hidden states and what the widest products make of them, logits in both precisions, and
        the keys of one layer gathered once.
        """
        config = self.config
        width = 4 * config.hidden_size + 4 * getattr(config, "intermediate_size", 0)
        row = width * self.dtype.itemsize + self.vocab_size * (self.dtype.itemsize + 4)
        layer = self.layout.bytes_per_token // self.layout.num_layers
        return int(num_rows * row + self.context_length * layer)

    def pool(self, num_pages: int, *, scratch_rows: int = SCRATCH_ROWS) -> KvPool:
        """Memory for the caches of an engine's sessions."""
        pool = self._new_pool(num_pages, scratch_rows)
        if self._shaped is not None:
            self._shaped.serve(pool)
        return pool

    def lead(self, followers: Followers) -> None:
        """Have the other ranks follow this one, rank 0, from now on."""
        assert isinstance(self._decoder, TorchDecoder), "a model that is split is torch's"
        self._decoder.lead(followers)

    def open(self, capacity: int) -> KvCache:
        """An empty cache with room for `capacity` tokens, in memory of its own."""
        num_pages = round_up(capacity, KEY_BLOCK) // KEY_BLOCK
        return self.open_in(self._new_pool(num_pages, _OWN_SCRATCH))

    def open_in(self, pool: KvPool) -> KvCache:
        """An empty cache over an engine's memory, without a page yet."""
        return KvCache(pool, limit=self.context_length)

    def prefill(self, cache: KvCache, tokens: Sequence[int]) -> None:
        """Cache `tokens` at the positions that follow the cache's count, in chunks."""
        for start in range(0, len(tokens), _CHUNK_ROWS):
            _, (slots,) = self.forward([Part(cache, tokens[start : start + _CHUNK_ROWS])])
            cache.keep(slots)

    @torch.inference_mode()
    def forward(self, parts: Sequence[Part]) -> tuple[Tensor, tuple[tuple[int, ...], ...]]:
        """Final hidden states [rows, d] part by part, pending tokens before nodes, and the rows'
        slots by part.

        The parts' caches are different ones of one pool. Nothing becomes final: the caller tells
        each cache which slots to `keep`. Raises `ModelError` for a position past the context,
        `CapacityError` for rows that find no room.
        """
        for part in parts:
            self._make_room(part)
        pool = parts[0].cache.pool
        drawn = self._drawn(pool, parts)
        if drawn is not None:
            return drawn.hidden.clone(), drawn.places  # the next forward writes over it
        return self._decoder.forward(pool, parts)

    @torch.inference_mode()
    def draw(self, parts: Sequence[Part], draws: Sequence[Draw]) -> Drawn | None:
        """The same forward, with tokens drawn where the logits are; one transfer brings them.

        None, and nothing done, where forwards come in no fixed shapes or none of them fits.
        """
        for part in parts:
            self._make_room(part)
        return self._drawn(parts[0].cache.pool, parts, draws)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab] for hidden states [rows, d]: both are in the model's dtype, or in
        float32 where native code computes."""
        return self._decoder.logits(hidden)

    def _new_pool(self, num_pages: int, scratch_rows: int) -> KvPool:
        pool = KvPool(self.layout, num_pages, scratch_rows=scratch_rows)
        if isinstance(self._decoder, TorchDecoder):
            self._decoder.open(pool)
        return pool

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
    ) -> Drawn | None:
        if self._shaped is None:
            return None
        packed = self._shaped.pack(pool, parts, draws)
        if packed is None:
            return None
        hidden, tokens = self._shaped.forward(pool, packed, draws)
        return Drawn(hidden, packed.places, tokens.tolist() if draws else [])

    def _chosen(
        self, model: PreTrainedModel, ranks: Ranks, engine: Engine | None
    ) -> NativeDecoder | TorchDecoder:
        if engine in (None, "native") and ranks.size == 1:
            try:
                return NativeDecoder(model, self.layout, self.context_length)
            except NotNative as reason:
                if engine is not None:
                    raise ModelError(f"the engine is {engine}, but {reason}") from None
                if self.device.type == "cpu":
                    level = logging.WARNING if isinstance(reason, NotBuilt) else logging.INFO
                    _LOG.log(level, "torch computes %s: %s", type(model).__name__, reason)
        return TorchDecoder(model, self.layout, numerics=self.numerics, ranks=ranks)

    def _with_shapes(self, engine: Engine | None, ranks: Ranks) -> BucketedForward | None:
        decoder, is_alone = self._decoder, ranks.size == 1
        if engine is None and is_alone and self.device.type == "cuda":
            engine = "shaped"
        if engine != "shaped":
            return None
        if not is_alone:
            raise ModelError("a model that is split among processes has no forwards of fixed shape")
        assert isinstance(decoder, TorchDecoder)
        buckets = buckets_for(
            max_rows=_MAX_SHAPED_ROWS, context_length=self.context_length, rule=decoder.rule
        )
        is_invariant = self.numerics == "invariant"
        kernel = choose_kernel(self.layout, decoder.group, is_invariant=is_invariant)
        shaped = Shaped(self.layout, decoder.group, decoder.run, kernel, decoder.head)
        return BucketedForward(shaped, buckets, Replay(self.device))

    def _check(self, name: str, expected: Tensor) -> None:
        cache = self.open(SAMPLE_TOKENS)
        hidden, _ = self.forward([Part(cache, sample_tokens(self.vocab_size))])
        check_hidden(hidden, expected, name)


def _head_weight(model: PreTrainedModel) -> Tensor:
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise ModelError(f"{type(model).__name__} has no language-model head")
    return head.weight


def context_length(config: Any) -> int:
    """Positions a model can be served for, by its text configuration.

    Raises `ModelError` for attention that this cache can't serve.
    """
    limit = int(config.max_position_embeddings)
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        return min(limit, int(window))
    if any(kind != "full_attention" for kind in kinds):
        raise ModelError(f"attention of the kind {sorted(set(kinds))} can't be cached")
    return limit


def _layout(model: PreTrainedModel, ranks: Ranks) -> KvLayout:
    config = model.config.get_text_config()
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    num_kv = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return KvLayout(config.num_hidden_layers, num_kv, dim, model.dtype, model.device, ranks.size)

"""Any causal language model of transformers over our own cache, with trees of rows.

Weights, configuration and modelling code are transformers' own; the cache, the attention
kernel and (see `surgery.py`) the form of its products are ours. Knows no sessions or laws.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from slipstream.core.errors import ModelError
from slipstream.core.tree import EMPTY, TokenTree
from slipstream.models.attention import attend
from slipstream.models.blocks import FastAttention, Rotation, write
from slipstream.models.cache import KvCache, KvLayout
from slipstream.models.products import Products
from slipstream.models.rows import RowPlanner, Rows
from slipstream.models.surgery import operate

Numerics = Literal["invariant", "fast"]

_CHUNK_ROWS = 256
_ATTENTION = "slipstream"
_SAMPLE_TOKENS = 24
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.08, torch.float16: 0.02}


def _attention_interface(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: object, **kwargs: Any
) -> tuple[Tensor, None]:
    """transformers' attention interface for blocks that keep their own module."""
    rows, cache = kwargs["slip_rows"], kwargs["slip_cache"]
    scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
    query = query[0].transpose(0, 1)
    fresh = torch.cat([key[0], value[0]]).transpose(0, 1).contiguous()
    layer = cache.layer(module.layer_idx)
    write(layer, fresh, rows)
    out = attend(query, fresh, layer, rows, scale)
    return out.view(1, len(rows), query.shape[1], -1), None


ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attention_interface)


class CausalModel:
    """A target, or a draft, as forward(cache, rows).

    `invariant` numerics make a row's bits depend on its own prefix only; `fast` ones may
    differ in the last bit with the number of rows and the form of the tree.
    """

    def __init__(self, model: PreTrainedModel, *, numerics: Numerics = "invariant") -> None:
        """Takes the model over: its modules are swapped in place.

        Raises `ModelError` when the architecture has parts that this cache can't serve.
        """
        model.requires_grad_(False).eval()
        self.config = model.config.get_text_config()
        self.numerics = numerics
        self.device = model.device
        self.dtype = model.dtype
        self.context_length = context_length(self.config)
        self.embedding: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ModelError(f"{type(model).__name__} has no language-model head")
        self.head_weight: Tensor = head.weight
        expected = _sample_hidden(model)
        products = Products(is_invariant=numerics == "invariant")
        self._head = products.make([head])
        self._body = model.base_model
        operate(self._body, products, Rotation())
        model.config._attn_implementation = _ATTENTION
        self.layout = _layout(model, self._body)
        group = self.config.num_attention_heads // self.layout.num_kv_heads
        self._planner = RowPlanner(self.layout, group, is_invariant=numerics == "invariant")
        self._check(type(model).__name__, expected)

    @property
    def vocab_size(self) -> int:
        """Number of columns of the logits."""
        return self.head_weight.shape[0]

    def open(self, capacity: int) -> KvCache:
        """An empty cache with room for `capacity` tokens, growing up to the context length."""
        slack = 4 * _CHUNK_ROWS
        return KvCache(self.layout, capacity, limit=self.context_length + slack)

    @torch.inference_mode()
    def prefill(self, cache: KvCache, tokens: Sequence[int]) -> None:
        """Cache `tokens` at the positions that follow the cache's count, in chunks."""
        for start in range(0, len(tokens), _CHUNK_ROWS):
            chunk = tokens[start : start + _CHUNK_ROWS]
            self._forward(cache, self._rows(cache, chunk, EMPTY))
            cache.count += len(chunk)

    @torch.inference_mode()
    def forward(
        self, cache: KvCache, pending: Sequence[int], tree: TokenTree = EMPTY
    ) -> tuple[Tensor, Rows]:
        """Final hidden states [pending + nodes, d] in input order, and the rows' places.

        Nothing becomes final: the caller tells the cache which slots to `keep`.
        """
        rows = self._rows(cache, pending, tree)
        hidden = self._forward(cache, rows)
        if rows.order != tuple(range(len(rows))):
            hidden = hidden[list(rows.order)]
        return hidden, rows

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab] in the model's dtype for hidden states [rows, d]."""
        return self._head(hidden)

    def _rows(self, cache: KvCache, pending: Sequence[int], tree: TokenTree) -> Rows:
        end = cache.count + len(pending)
        if end + max(tree.depths(), default=0) > self.context_length:
            raise ModelError(
                f"position {end} is past the model's context of {self.context_length} tokens"
            )
        cache.reserve(self._planner.num_slots(end, len(tree)))
        return self._planner.plan(cache.count, pending, tree)

    @torch.inference_mode()
    def _forward(self, cache: KvCache, rows: Rows) -> Tensor:
        out = self._body(
            input_ids=rows.tokens[None],
            position_ids=rows.positions[None],
            use_cache=False,
            slip_rows=rows,
            slip_cache=cache,
        )
        hidden: Tensor = out.last_hidden_state[0]
        return hidden

    def _check(self, name: str, expected: Tensor) -> None:
        cache = self.open(_SAMPLE_TOKENS)
        hidden, _ = self.forward(cache, _sample_tokens(self.vocab_size).tolist())
        error = (hidden.float() - expected.float()).norm() / expected.float().norm()
        limit = _TOLERANCE.get(self.dtype, 0.02)
        if not error < limit:
            raise ModelError(
                f"{name} can't be served: hidden states differ from transformers' own by"
                f" {error:.2g} (limit {limit})"
            )


def _sample_tokens(vocab_size: int) -> Tensor:
    noise = torch.Generator().manual_seed(0)
    return torch.randint(vocab_size, (_SAMPLE_TOKENS,), generator=noise)


@torch.inference_mode()
def _sample_hidden(model: PreTrainedModel) -> Tensor:
    tokens = _sample_tokens(model.get_output_embeddings().weight.shape[0])
    out = model.base_model(input_ids=tokens[None].to(model.device), use_cache=False)
    hidden: Tensor = out.last_hidden_state[0]
    return hidden


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


def _layout(model: PreTrainedModel, body: nn.Module) -> KvLayout:
    config = model.config.get_text_config()
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    num_kv = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    count = sum(isinstance(module, FastAttention) for module in body.modules())
    assert count in (0, config.num_hidden_layers), "attention blocks of one form"
    return KvLayout(config.num_hidden_layers, num_kv, dim, model.dtype, model.device)

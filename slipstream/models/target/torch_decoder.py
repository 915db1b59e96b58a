"""A decoder's forward in torch: transformers' modelling code over our cache, many sessions.

Weights, configuration and modelling code are transformers' own; the cache, the attention
kernel and the form of its linear layers (`fast_modules.py`) are ours. Any processor, any
architecture.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from slipstream.core.errors import ModelError
from slipstream.models.kv.paged import PagedTokens
from slipstream.models.kv.pool import KvLayout, KvPool
from slipstream.models.kv.torch_pool import TorchKvPool
from slipstream.models.numerics.invariance import query_rule
from slipstream.models.numerics.linears import Linears
from slipstream.models.numerics.rules import Numerics
from slipstream.models.parallel.ranks import ALONE, Ranks
from slipstream.models.parallel.shards import localise, own_bytes
from slipstream.models.parallel.tensor_parallel import TensorParallelDriver, Workers
from slipstream.models.target.attention import attend
from slipstream.models.target.batched_tokens import BatchedTokens, BatchPlanner
from slipstream.models.target.fast_modules import FastAttention, RotaryTables, patch_modules, write
from slipstream.models.target.token_layout import Part

_ATTENTION = "slipstream"
_OTHER_SCORES = {"softcap": "soft-capping (attn_logit_softcapping)", "s_aux": "sinks"}
"""Arguments of attention that change scores, and what messages call them."""


def _attention_interface(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: object, **kwargs: Any
) -> tuple[Tensor, None]:
    """transformers' attention interface for blocks that keep their own module."""
    if odd := [_OTHER_SCORES[name] for name in _OTHER_SCORES if kwargs.get(name) is not None]:
        raise ModelError(f"its attention has {odd[0]}, which can't be computed here")
    rows, pool = kwargs["slip_rows"], kwargs["slip_pool"]
    scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
    query = query[0].transpose(0, 1)
    fresh = torch.cat([key[0], value[0]]).transpose(0, 1).contiguous()
    layer = pool.layer(module.layer_idx)
    write(layer, fresh, rows)
    out = attend(query, fresh, layer, rows, scale)
    return out.view(1, len(rows), query.shape[1], -1), None


ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attention_interface)


def _finished(
    head: Callable[[Tensor], Tensor], model: PreTrainedModel
) -> Callable[[Tensor], Tensor]:
    """The head with what transformers does to its outputs: scales, then soft-capping."""
    config = model.config.get_text_config()
    divisor = getattr(config, "logits_scaling", None) or 1.0
    factor = getattr(config, "logit_scale", None) or 1.0
    cap = getattr(config, "final_logit_softcapping", None)
    if (divisor, factor, cap) == (1.0, 1.0, None):
        return head

    def finished(hidden: Tensor) -> Tensor:
        logits = head(hidden) / divisor * factor
        return logits if cap is None else torch.tanh(logits / cap) * cap

    return finished


class TorchDecoder:
    """The forward and the head of one model, on this rank.

    `rule`: numbers of tokens that are computed together, `weight_bytes` what its weights take.
    """

    contenders = None  # native code has a way to these

    def __init__(
        self, model: PreTrainedModel, layout: KvLayout, *, numerics: Numerics, ranks: Ranks | None
    ) -> None:
        """Take the model over: its modules are swapped in place. All `ranks` do so together."""
        is_invariant, ranks = numerics == "invariant", ranks or ALONE
        self.weight_bytes, self.layout = own_bytes(model), layout
        if ranks.size > 1:
            localise(model, ranks, in_order=is_invariant)
        linears, self._body = Linears(is_invariant=is_invariant), model.base_model
        self.head = _finished(linears.make([model.get_output_embeddings()]), model)
        patch_modules(self._body, linears, RotaryTables())
        count = sum(isinstance(module, FastAttention) for module in self._body.modules())
        if count not in (0, layout.num_layers):
            raise ModelError(f"{type(model).__name__} has attention of several forms")
        linears.rule = self.rule = ranks.agree_on_rule(linears.rule, model.device)
        model.config._attn_implementation = _ATTENTION
        self._ranks = ranks
        self._driver: TensorParallelDriver | None = None
        self.group: int = model.config.get_text_config().num_attention_heads // layout.num_kv_heads
        rule = query_rule(layout, self.group, is_invariant=is_invariant)
        self._planner = BatchPlanner(layout, self.group, is_invariant=is_invariant, rule=rule)

    def drive(self, workers: Workers) -> None:
        """Drive the other ranks from this one, rank 0, from now on."""
        self._driver = TensorParallelDriver(self._ranks, workers)

    def pool(self, num_pages: int, scratch_rows: int) -> KvPool:
        """Memory for caches; the other ranks make the same."""
        pool = TorchKvPool(self.layout, num_pages, scratch_rows=scratch_rows)
        if self._driver is not None:
            self._driver.open(pool)
        return pool

    @torch.inference_mode()
    def forward(
        self, pool: KvPool, parts: Sequence[Part]
    ) -> tuple[Tensor, tuple[tuple[int, ...], ...]]:
        """Return hidden states [n, d] part by part, and the tokens' slots by part."""
        rows = self._planner.plan(parts)
        if self._driver is None:
            hidden = self._forward(pool, rows)
        else:
            hidden = self._driver.forward(pool, parts, lambda: self._forward(pool, rows))
        if rows.order != tuple(range(len(rows))):
            hidden = hidden[list(rows.order)]
        return hidden, rows.places

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab] in the model's dtype for hidden states [rows, d]."""
        if self._driver is not None:
            return self._driver.logits(hidden, self.head)
        return self.head(hidden)

    def run(
        self, tokens: Tensor, positions: Tensor, rows: BatchedTokens | PagedTokens, pool: KvPool
    ) -> Tensor:
        """The body alone: hidden states [rows, d] in the order of `rows`."""
        out = self._body(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            slip_rows=rows,
            slip_pool=pool,
        )
        hidden: Tensor = out.last_hidden_state[0]
        return hidden

    def _forward(self, pool: KvPool, rows: BatchedTokens) -> Tensor:
        return self.run(rows.tokens, rows.positions, rows, pool)

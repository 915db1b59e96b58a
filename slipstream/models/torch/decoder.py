"""A decoder's forward in torch: transformers' modelling code over our cache, many sessions.

Weights, configuration and modelling code are transformers' own; the cache and the attention over
it are ours. Any processor, any architecture whose attention transformers lets others compute.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from slipstream.core.errors import ModelError
from slipstream.core.verify.draws import FindContenders
from slipstream.models.cuda.layers import FusedLayer, FusedNorm
from slipstream.models.decoder import ANY_ROWS, Decoder, Numerics, RowRule
from slipstream.models.dtypes import CPU
from slipstream.models.kv.batch import Batch, Draw
from slipstream.models.kv.pool import KvLayout, KvPool
from slipstream.models.torch.arrays import TorchBuffers
from slipstream.models.torch.packing import ForwardShape, PackedDraws, PackedForward, pack
from slipstream.models.torch.paged import PagedTokens, attend, num_places, unpack
from slipstream.models.torch.ranks import ALONE, Ranks
from slipstream.models.torch.shards import own_bytes

_ATTENTION = "slipstream"
_OTHER_SCORES = {"softcap": "soft-capping (attn_logit_softcapping)", "s_aux": "sinks"}
"""Arguments of attention that change scores, and what messages call them."""


def _attention_interface(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: object, **kwargs: Any
) -> tuple[Tensor, None]:
    """transformers' attention interface: heads [1, heads, R, d] of one row of R tokens."""
    if odd := [_OTHER_SCORES[name] for name in _OTHER_SCORES if kwargs.get(name) is not None]:
        raise ModelError(f"its attention has {odd[0]}, which can't be computed here")
    tokens: PagedTokens = kwargs["slip_tokens"]
    layer = kwargs["slip_pool"].layer(module.layer_idx)
    layer.index_copy_(1, tokens.slots, torch.cat([key[0], value[0]]))
    scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
    (out,) = attend(query[0].transpose(0, 1), layer, tokens.attended, scale, False)
    return out.view(1, query.shape[2], query.shape[1], -1), None


ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attention_interface)


class TorchDecoder(Decoder):
    """`Decoder` of one model, or of this rank's part of it; every forward has its own shape."""

    draws_on_device = False
    contenders: FindContenders | None = None

    def __init__(
        self,
        model: PreTrainedModel,
        layout: KvLayout,
        rule: RowRule | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Take the model over, which `ranks` share; its numerics are invariant where its products
        obey a `rule`."""
        self.engine = "torch" if layout.device == CPU else "cuda"
        self.numerics: Numerics = "fast" if rule is None else "invariant"
        self.rule, self._ranks = rule or ANY_ROWS, ranks
        self.weight_bytes = own_bytes(model)
        embedding: Any = model.get_input_embeddings().weight
        every = model.named_parameters(remove_duplicate=False)
        is_tied = sum(weight is embedding for _, weight in every) > 1
        self.read_bytes = self.weight_bytes - (0 if is_tied else embedding.nbytes)
        """Bytes of the weights that a step reads: no embedding but that which is the head."""
        self._layout, self._body = layout, model.base_model
        self._head = _finished(model.get_output_embeddings(), model)
        rotary: Any = getattr(self._body, "rotary_emb", None)
        if isinstance(getattr(rotary, "rope_type", None), str):
            # Some kinds read on the host how long texts are; below the context's end nothing hangs
            # on that.
            rotary.rope_type = "default"
        model.config._attn_implementation = _ATTENTION
        group = model.config.get_text_config().num_attention_heads // layout.num_kv_heads
        self._tile = num_places(group) // group
        self._states: dict[int, Tensor] = {}
        for index in layout.hidden_layers:
            self._take(index, partial(self._states.__setitem__, index))

    def new_pool(self, num_pages: int, scratch_rows: int, *, lasts: bool = True) -> KvPool:
        buffers = TorchBuffers(self._layout.device)
        return KvPool(self._layout, num_pages, scratch_rows=scratch_rows, buffers=buffers)

    def forward(
        self, pool: KvPool, batch: Batch, draws: Iterable[Draw] = ()
    ) -> tuple[Tensor, list[int]]:
        """See `Decoder.forward`."""
        return self.compute(pool, *self.pack(batch, draws))

    def pack(
        self, batch: Batch, draws: Iterable[Draw]
    ) -> tuple[PackedForward, Iterable[PackedDraws]]:
        """Return what `compute` takes. Tokens are drawn by their logits."""
        return pack(batch, self._tile), ()

    @torch.inference_mode()
    def compute(
        self, pool: KvPool, packed: PackedForward, draws: Iterable[PackedDraws]
    ) -> tuple[Tensor, list[int]]:
        """Return what `forward` does.

        All ranks of a model call it with the same shape and draws, rank 0 alone with the values.
        """
        return self.run(pool, packed.shape, torch.from_numpy(packed.values)), []

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden)

    def run(self, pool: KvPool, shape: ForwardShape, values: Tensor) -> Tensor:
        """Return hidden states [rows, d]; `values` are packed, of a shape, on the device. Looks at
        no value on the host."""
        ids, tokens = unpack(self._ranks.broadcast(values), shape)
        out = self._body(
            input_ids=ids[None],
            position_ids=tokens.positions[None],
            use_cache=False,
            slip_tokens=tokens,
            slip_pool=pool,
        )
        for index, state in self._states.items():
            halves = state.unflatten(1, (2, -1)).transpose(0, 1)
            pool.layer(self._layout.num_layers + index).index_copy_(1, tokens.slots, halves)
        self._states.clear()
        hidden: Tensor = out.last_hidden_state[0]
        return hidden

    def _take(self, index: int, keep: Callable[[Tensor], None]) -> None:
        """Let `keep` take the inputs [R, d] of a layer, or of the norm behind the last one."""
        layers = getattr(self._body, "layers", ())
        found = layers[index] if index < len(layers) else getattr(self._body, "norm", None)
        if found is None:
            raise ModelError(f"it has no layer {index} whose hidden states can be kept")
        norm = found.first if isinstance(found, FusedLayer) else found
        if isinstance(norm, FusedNorm):
            norm.keep = keep
        else:
            found.register_forward_pre_hook(lambda _, given: keep(given[0][0]))


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

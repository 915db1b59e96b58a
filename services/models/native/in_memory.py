"""Weights of a transformers model in memory, for native code.

What has another form than the native forward computes is refused with a reason.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from slipstream.models.dtypes import Array
from slipstream.models.native.library import NotNative
from slipstream.models.native.source import WeightSource
from slipstream.models.native.weights import Weights, of_type
from slipstream.models.target.architecture import parse
from slipstream.models.target.fast_modules import is_usual_norm
from slipstream.models.target.rope import Rotary
from slipstream.models.torch_arrays import as_array, numpy_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class InMemory(WeightSource):
    """A transformers model; its layers are empty once they have been released."""

    def __init__(self, model: "PreTrainedModel") -> None:
        """Raise `NotNative` for a model that is not a decoder of the usual form."""
        self._model: Any = model
        if model.device.type != "cpu" or model.dtype not in (torch.float32, torch.bfloat16):
            raise NotNative(f"{model.dtype} on {model.device.type} has no native kernels")
        self.architecture = parse(model.config.get_text_config().to_dict())
        _check_modules(model)
        self.name, self.dtype = type(model).__name__, numpy_dtype(model.dtype)
        own: Any = self._model.base_model.rotary_emb
        self.rotary = Rotary(as_array(own.inv_freq.float()), own.attention_scaling)
        ends = (self._model.get_input_embeddings(), self._model.get_output_embeddings())
        self.is_tied = ends[0].weight is ends[1].weight

    def shape(self, name: str) -> tuple[int, ...] | None:
        found = self._find(name)
        return None if found is None else tuple(found.shape)

    def matrix(self, name: str) -> Weights:
        return of_type(self.dense(name), self.dtype)

    def dense(self, name: str) -> Array:
        weight = self._find(name)
        assert weight is not None
        return as_array(weight)

    def reference(self) -> "PreTrainedModel":
        model: PreTrainedModel = self._model
        return model

    def release(self, layer: int) -> None:
        self._model.base_model.layers[layer] = nn.Identity()

    def _find(self, name: str) -> Tensor | None:
        try:
            weight: Tensor | None = self._model.get_parameter(name)
        except AttributeError:
            return None
        return weight


def _check_modules(model: Any) -> None:
    body = model.base_model
    parts = {"embed_tokens", "layers", "norm", "rotary_emb"}
    if {name for name, _ in body.named_children()} != parts:
        raise NotNative(f"{type(model).__name__} has parts besides layers and norms")
    if not is_usual_norm(body.norm):
        raise NotNative(f"its norm is a {type(body.norm).__name__}")
    for layer in body.layers:
        _check_layer(layer)


def _check_layer(layer: nn.Module) -> None:
    parts = {name for name, _ in layer.named_children()}
    if parts != {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}:
        raise NotNative(f"its layers consist of {', '.join(sorted(parts))}")
    block: Any = layer.self_attn
    mlp: Any = layer.mlp
    known = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
    names = {name for name, child in block.named_children() if child is not None}
    if not names <= known or not {"q_proj", "o_proj"} <= names:
        raise NotNative(f"its attention consists of {', '.join(sorted(names))}")
    if not _is_silu(getattr(mlp, "act_fn", None)):
        raise NotNative("its MLP is not gated by SiLU")
    linears = [block.q_proj, block.k_proj, block.v_proj, block.o_proj]
    linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    if not all(type(linear) is nn.Linear for linear in linears):
        raise NotNative("its projections are no plain ones")
    named = (getattr(block, name, None) for name in ("q_norm", "k_norm"))
    norms = [norm for norm in named if norm is not None]
    if not all(map(is_usual_norm, [layer.input_layernorm, *norms])):
        raise NotNative("its norms are not RMS norms")
    if any(norm.weight.numel() != block.head_dim for norm in norms):
        raise NotNative("its norms of queries and keys reach over several heads")


def _is_silu(activation: object) -> bool:
    return isinstance(activation, nn.SiLU) or type(activation).__name__ == "SiLUActivation"

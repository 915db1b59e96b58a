"""A GliDe draft that starts from its target, a transformers causal LM with Llama-like layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from slipstream.core.errors import ModelMismatch
from slipstream.models.glide.glide import GlideModel
from slipstream.models.glide.glide_config import GlideConfig
from slipstream.models.glide.torch_parts import model_parts


@dataclass(frozen=True, slots=True)
class GlideShape:
    """A user's choices about a draft; the rest follows from the target. `max_lag` is 0 where
    no layers are read."""

    target_layers: tuple[int, ...]
    head_size: int
    max_lag: int
    num_layers: int = 1


def config_for_target(
    model: Any, shape: GlideShape, *, name: str, tokenizer_hash: str
) -> GlideConfig:
    """The config of a draft for `model`; ModelMismatch when its layers cannot be copied."""
    parts, text = model_parts(model), model.config.get_text_config()
    beyond = [layer for layer in shape.target_layers if layer >= parts.num_layers]
    if beyond:
        raise ModelMismatch(f"layers {beyond} do not exist, the target has {parts.num_layers}")
    if shape.num_layers > parts.num_layers:
        raise ModelMismatch(f"num_layers is {shape.num_layers}, the target has {parts.num_layers}")
    if getattr(text, "hidden_act", "silu") != "silu":
        raise ModelMismatch(f"the target's activation is {text.hidden_act}, a draft's is silu")
    attention = llama_layers(model)[-1].self_attn
    return GlideConfig(
        target_model=name,
        tokenizer_hash=tokenizer_hash,
        vocab_size=parts.vocab_size,
        head_size=min(shape.head_size, parts.vocab_size),
        hidden_size=parts.hidden_size,
        intermediate_size=int(text.intermediate_size),
        num_heads=parts.num_heads,
        num_kv_heads=parts.num_kv_heads,
        head_dim=parts.head_dim,
        target_layers=shape.target_layers,
        max_lag=shape.max_lag,
        num_layers=shape.num_layers,
        rms_norm_eps=float(text.rms_norm_eps),
        attention_bias=attention.q_proj.bias is not None,
        qk_norm=getattr(attention, "q_norm", None) is not None,
    )


def init_from_target(model: Any, config: GlideConfig) -> GlideModel:
    """A float32 draft: self-attention and MLP from the target's last layers, each
    cross-attention's norm, query and output from the layer it reads, final norm the target's.
    """
    draft, layers = GlideModel(config), llama_layers(model)
    with torch.no_grad():
        for layer, source in zip(draft.layers, layers[-config.num_layers :], strict=True):
            layer.self_norm.weight.copy_(source.input_layernorm.weight)
            layer.mlp_norm.weight.copy_(source.post_attention_layernorm.weight)
            _copy(layer.self_attn, source.self_attn, "qkvo")
            for name in ("gate_proj", "up_proj", "down_proj"):
                copy_linear(getattr(layer.mlp, name), getattr(source.mlp, name), name)
            for cross, index in zip(layer.cross, config.target_layers, strict=True):
                cross.norm.weight.copy_(layers[index].input_layernorm.weight)
                _copy(cross, layers[index].self_attn, "qo")
        draft.norm.weight.copy_(model.get_decoder().norm.weight)
    return draft


def trimmed_vocab(counts: Tensor, size: int, *, forced: Sequence[int]) -> Tensor:
    """The `size` most frequent ids [size] int64, ascending, `forced` always among them.

    counts: [V]; ties go to the lower id (FR-Spec / EAGLE-3 draft vocabularies).
    """
    rank = counts.double().clone()
    rank[list(set(forced))] = float("inf")
    order = torch.sort(rank, descending=True, stable=True).indices
    return order[: max(size, len(set(forced)))].sort().values


def llama_layers(model: Any) -> Sequence[Any]:
    """Return the layers of a model; ModelMismatch where they are not like Llama's."""
    layers = getattr(model.get_decoder(), "layers", None)
    wanted = ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
    if layers is None or not all(hasattr(layers[-1], name) for name in wanted):
        raise ModelMismatch(f"{type(model).__name__} has no Llama-like layers to start from")
    result: Sequence[Any] = layers
    return result


def _copy(into: nn.Module, source: Any, projections: str) -> None:
    """Copy an attention's projections, and the norms of those of heads."""
    norms = [f"{kind}_norm" for kind in projections if kind in "qk"]
    for name in (*(f"{kind}_proj" for kind in projections), *norms):
        copy_linear(getattr(into, name), getattr(source, name, None), name)


def copy_linear(into: nn.Module | None, source: Any, name: str) -> None:
    """Copy weights and biases of a part; ModelMismatch where they do not fit."""
    if into is None and source is None:
        return
    if into is None or source is None:
        raise ModelMismatch(f"the target's layers disagree about {name}")
    for key, value in into.named_parameters():
        other = getattr(source, key, None)
        if other is None or other.shape != value.shape:
            raise ModelMismatch(f"the target's {name}.{key} does not fit the draft's")
        value.copy_(other)
    if getattr(source, "bias", None) is not None and getattr(into, "bias", None) is None:
        raise ModelMismatch(f"the target's {name} has a bias, the draft's has none")

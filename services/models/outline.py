"""Sizes of a model and its keys, as everything that serves it needs them, whatever computes it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from slipstream.core.errors import ModelError
from slipstream.models.architecture import EMBEDDING, served_positions
from slipstream.models.dtypes import dtype_name
from slipstream.models.native.source import WeightSource
from slipstream.models.pool import KvLayout
from slipstream.models.ranks import Ranks

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Outline:
    """A model's sizes; `embedding` [V, d] is what its tokens are looked up in, `weights_type` the
    weights' element type as results show it."""

    name: str
    hidden_size: int
    mlp_size: int
    vocab_size: int
    context_length: int
    layout: KvLayout
    embedding: Tensor
    weights_type: str


def outline_of(model: "WeightSource | PreTrainedModel", ranks: Ranks) -> Outline:
    """Return the outline of a model. Raises `ModelError` for attention that can't be cached."""
    return _of_source(model) if isinstance(model, WeightSource) else _of_model(model, ranks)


def context_length(config: Any) -> int:
    """Return the positions a model can be served for, by its text configuration.

    Raises `ModelError` for attention that the cache can't serve.
    """
    is_on = getattr(config, "use_sliding_window", True)
    window = getattr(config, "sliding_window", None) if is_on else None
    kinds = getattr(config, "layer_types", None)
    return served_positions(int(config.max_position_embeddings), window, kinds)


def _of_source(source: WeightSource) -> Outline:
    at = source.architecture
    layout = KvLayout(
        at.num_layers, at.num_kv_heads, at.head_dim, source.dtype, torch.device("cpu")
    )
    return Outline(
        source.name,
        at.hidden,
        at.mlp,
        at.vocab_size,
        at.context_length,
        layout,
        source.dense(EMBEDDING),
        source.weights_type(),
    )


def _of_model(model: "PreTrainedModel", ranks: Ranks) -> Outline:
    config, head = model.config.get_text_config(), model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise ModelError(f"{type(model).__name__} has no language-model head")
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    num_kv = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return Outline(
        type(model).__name__,
        config.hidden_size,
        getattr(config, "intermediate_size", 0),
        head.weight.shape[0],
        context_length(config),
        KvLayout(config.num_hidden_layers, num_kv, dim, model.dtype, model.device, ranks.size),
        model.get_input_embeddings().weight,  # type: ignore[arg-type]
        dtype_name(model.dtype),
    )

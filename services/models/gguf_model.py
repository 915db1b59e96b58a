"""A model of transformers over a GGUF file, whose layers stay in the file's blocks.

Native code multiplies the blocks as they are. What else needs the weights of a layer, as a
reference does, has them one by one for as long as it runs that layer.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from slipstream.core.errors import WeightsError
from slipstream.models.dtypes import dtype_name
from slipstream.models.native.gguf_weights import check_types, dense
from slipstream.models.native.library import NotNative
from slipstream.models.store.gguf_checkpoint import FAMILIES, GgufCheckpoint
from slipstream.models.store.hub import brief

_BLOCKS = "slip_blocks"


def load_blocks(path: Path, dtype: torch.dtype) -> Any:
    """A causal language model of transformers; `dtype` is that of everything but the blocks.

    Raises `WeightsError` for a broken file, `NotNative` for one that native code can't read.
    """
    checkpoint = GgufCheckpoint(path)
    if checkpoint.family not in FAMILIES:
        raise NotNative(f"GGUF files of {checkpoint.family or 'no family'} have no native reader")
    try:
        config = AutoConfig.for_model(**checkpoint.config)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except (ValueError, TypeError, ZeroDivisionError, RuntimeError) as error:
        raise WeightsError(f"{path.name} does not describe a model ({brief(error)})") from error
    _check(model, checkpoint)
    body: Any = model.base_model
    body.rotary_emb = type(body.rotary_emb)(config=config)
    if checkpoint.rope_factors is not None:
        body.rotary_emb.inv_freq /= checkpoint.rope_factors
    for name in ("embed_tokens", "norm"):
        _fill(body.get_submodule(name), f"model.{name}", checkpoint)
    model.tie_weights()
    if not config.tie_word_embeddings:
        _fill(model.get_output_embeddings(), "lm_head", checkpoint)
    for at, layer in enumerate(body.layers):
        _lend(layer, f"model.layers.{at}", checkpoint)
    setattr(model, _BLOCKS, checkpoint)
    return model


def gguf_blocks(model: Any) -> GgufCheckpoint | None:
    """The file that such a model's layers are in; None for any other model."""
    return getattr(model, _BLOCKS, None)


def weights_type(model: Any) -> str:
    """The element type of a model's weights; of blocks all types, the most frequent first."""
    blocks = gguf_blocks(model)
    if blocks is None:
        return dtype_name(model.dtype)
    return "+".join(blocks.matrix_types())


def _check(model: nn.Module, checkpoint: GgufCheckpoint) -> None:
    """Raise `WeightsError` for a tensor that is missing or of another shape than the model's,
    `NotNative` for one that has no kernels."""
    for name, weight in model.named_parameters():
        shape = checkpoint.shape(name)
        if shape != tuple(weight.shape):
            raise WeightsError(
                f"{name} in {checkpoint.path.name} has the shape {list(shape)}, but must have"
                f" {list(weight.shape)}"
            )
    check_types(checkpoint)


def _lend(layer: nn.Module, name: str, checkpoint: GgufCheckpoint) -> None:
    """Give a layer its weights whenever it runs, and take them back."""
    layer.register_forward_pre_hook(lambda *_: _fill(layer, name, checkpoint))
    layer.register_forward_hook(lambda *_: layer.to("meta") and None)


def _fill(module: nn.Module, name: str, checkpoint: GgufCheckpoint) -> None:
    own = {
        at: dense(checkpoint.rows(f"{name}.{at}"), weight.dtype)
        for at, weight in module.named_parameters()
    }
    module.load_state_dict(own, assign=True)

"""A transformers model whose layers have their weights only for as long as they run.

It computes what our forwards are compared with, and never has all weights in memory.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from slipstream.core.errors import WeightsError
from slipstream.models.architecture import HEAD
from slipstream.models.store.hub import brief

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from slipstream.models.native.source import WeightSource


def lent_model(source: "WeightSource", config: "PretrainedConfig") -> Any:
    """Return a model of a configuration over the weights of a source.

    Raises `WeightsError` for a configuration that describes no model.
    """
    from transformers import AutoModelForCausalLM

    config.tie_word_embeddings = source.is_tied
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=source.dtype)
    except Exception as error:  # a configuration may break anything
        raise WeightsError(f"{source.name} does not describe a model ({brief(error)})") from error
    body: Any = model.base_model
    body.rotary_emb = type(body.rotary_emb)(config=config)
    for name in ("embed_tokens", "norm"):
        _fill(body.get_submodule(name), f"model.{name}", source)
    model.tie_weights()
    if not source.is_tied:
        _fill(model.get_output_embeddings(), HEAD.removesuffix(".weight"), source)
    for at, layer in enumerate(body.layers):
        _lend(layer, at, source)
    return model.eval().requires_grad_(False)


def _lend(layer: nn.Module, index: int, source: "WeightSource") -> None:
    """Give a layer its weights whenever it runs, and take them back."""

    def take_back(*_: Any) -> None:
        layer.to("meta")
        source.release(index)

    layer.register_forward_pre_hook(lambda *_: _fill(layer, f"model.layers.{index}", source))
    layer.register_forward_hook(take_back)


def _fill(module: nn.Module, name: str, source: "WeightSource") -> None:
    own = {at: source.dense(f"{name}.{at}") for at, _ in module.named_parameters()}
    module.load_state_dict(own, assign=True)

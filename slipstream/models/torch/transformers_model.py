"""Models of transformers: sizes, hidden states, and a model over the weights of a source."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from slipstream.core.errors import ModelError
from slipstream.models.cuda.layers import ScaledLinear
from slipstream.models.dtypes import CPU, FP8, Array
from slipstream.models.format.architecture import HEAD, ModelSizes, context_length, parse
from slipstream.models.format.families import FORMS, account_fields, require_harmless, text_config
from slipstream.models.format.folder import reading
from slipstream.models.kv.pool import KvLayout
from slipstream.models.native.library import NotNative
from slipstream.models.native.source import WeightSource
from slipstream.models.torch.arrays import as_array, as_tensor, numpy_dtype, torch_dtype

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

MAKING = Lock()
"""Held while transformers makes a model: it changes functions of its classes meanwhile."""


def account_config(raw: Mapping[str, Any], config: "PretrainedConfig") -> None:
    """Raise `WeightsError` for a field of config.json that transformers does not read, unless it is
    neutral or known to change nothing."""
    if text_config(raw).get("model_type") in FORMS:
        account_fields(raw)
        with suppress(NotNative):
            parse(raw)
        return
    known = {field.name for field in fields(config)} | set(config.attribute_map)
    with suppress(Exception):  # some classes have no defaults
        known |= vars(type(config)()).keys()
    # What the class consumes otherwise is not kept under its own name.
    left = {name: raw[name] for name in raw if name not in known and name in vars(config)}
    require_harmless({**left, "model_type": config.model_type}, ("model_type",))


def outline_of(model: "PreTrainedModel", num_ranks: int) -> ModelSizes:
    """Return the outline of a model. Raises `ModelError` for attention that can't be cached."""
    config, head = model.config.get_text_config(), model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise ModelError(f"{type(model).__name__} has no language-model head")
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    num_kv = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dtype = numpy_dtype(model.dtype)
    is_scaled = any(isinstance(module, ScaledLinear) for module in model.modules())
    return ModelSizes(
        type(model).__name__,
        config.hidden_size,
        getattr(config, "intermediate_size", 0),
        head.weight.shape[0],
        context_length(config),
        KvLayout(config.num_hidden_layers, num_kv, dim, dtype, str(model.device), num_ranks),
        len(model.get_input_embeddings().weight),  # type: ignore[arg-type]
        FP8 if is_scaled else dtype.name,
    )


@torch.inference_mode()
def computed_states(model: "PreTrainedModel", tokens: list[int]) -> tuple[Array, Array]:
    """Return transformers' last hidden states [tokens, d] of a text and logits [1, V]; what 8-bit
    weights multiply is not rounded."""
    embedding: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    ids = torch.tensor([tokens], device=embedding.device)
    kept: list[Tensor] = []
    hook = model.base_model.register_forward_hook(
        lambda _, __, out: kept.append(out.last_hidden_state[0])
    )
    scaled = [module for module in model.modules() if isinstance(module, ScaledLinear)]
    for linear in scaled:
        linear.rounds = False
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[0, -1:]
    for linear in scaled:
        linear.rounds = True
    hook.remove()
    return as_array(kept[0]), as_array(logits)


def model_of(
    source: "WeightSource", config: "PretrainedConfig", *, is_lent: bool, device: str = CPU
) -> Any:
    """Return a model of a configuration over the weights of a source: with `is_lent` a layer has
    its weights only while it runs. The host has no more than one layer of a model on a device.

    Raises `WeightsError` for a configuration that describes no model.
    """
    from transformers import AutoModelForCausalLM

    config.tie_word_embeddings = source.is_tied
    config.pad_token_id = None  # batches are not padded
    with MAKING, reading(source.name), torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch_dtype(source.dtype))
    body: Any = model.base_model
    body.rotary_emb = type(body.rotary_emb)(config=config).to(device)
    if source.architecture.form.has_root_scale:
        scale = body.embed_tokens.scalar_embed_scale
        body.embed_tokens.embed_scale = torch.tensor(scale, device=device)
    for name in ("embed_tokens", "norm"):
        _fill(body.get_submodule(name), f"model.{name}", source, device)
    with MAKING:
        model.tie_weights()
    if not source.is_tied:
        _fill(model.get_output_embeddings(), HEAD.removesuffix(".weight"), source, device)
    for index, layer in enumerate(body.layers):
        for name, shape in source.architecture.linears():  # each has biases of its own, or none
            bias = nn.Parameter(torch.empty(shape[0], device="meta"))
            has_bias = name in source.architecture.biases
            layer.get_submodule(name).register_parameter("bias", bias if has_bias else None)
        fill = partial(_fill, layer, f"model.layers.{index}", source, device)
        if is_lent:  # a layer gets its weights whenever it runs
            layer.register_forward_pre_hook(lambda *_, fill=fill: fill())
            layer.register_forward_hook(partial(_take_back, index, source))
        else:
            fill()
    return model.eval().requires_grad_(False)


def _take_back(index: int, source: "WeightSource", layer: nn.Module, *_: Any) -> None:
    layer.to("meta")
    source.release(index)


def _fill(module: nn.Module, name: str, source: "WeightSource", device: str = CPU) -> None:
    own = {
        param: as_tensor(source.dense(f"{name}.{param}")).to(device)
        for param, _ in module.named_parameters()
    }
    module.load_state_dict(own, assign=True)

"""EAGLE-3 heads that start from their target, a transformers causal LM with Llama-like layers, and
their files as EAGLE's authors publish them, which vLLM and SGLang read too."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.core.errors import ModelMismatch
from slipstream.files import make_folder, write_json
from slipstream.models.eagle.eagle import EagleModel
from slipstream.models.eagle.eagle_weights import D2T, LAYER_IDS, T2D, read_eagle
from slipstream.models.format.rope import Rotary
from slipstream.models.glide.glide_config import (
    CONFIG_NAME,
    WEIGHTS_NAME,
    EagleConfig,
    default_layers,
)
from slipstream.models.glide.glide_files import write_tensors
from slipstream.models.glide.glide_init import (
    GlideShape,
    config_for_target,
    copy_linear,
    llama_layers,
)
from slipstream.models.torch.arrays import as_array, as_tensor


def head_config(model: Any, layers: tuple[int, ...], head_size: int) -> EagleConfig:
    """Return the config of a head for `model` that reads the inputs of `layers`.

    Its layer is a plain Llama layer, without biases and norms of queries. ModelMismatch where the
    target's cannot be copied.
    """
    shape = GlideShape(layers, head_size, max_lag=1)
    sizes = config_for_target(model, shape, name="", tokenizer_hash="")
    rotary = model.get_decoder().rotary_emb
    if 2 * len(rotary.inv_freq) != sizes.head_dim:
        raise ModelMismatch("the target rotates a part of each head, EAGLE-3 rotates all of it")
    shared = {own.name for own in fields(EagleConfig)} & {own.name for own in fields(sizes)}
    own = {name: getattr(sizes, name) for name in shared - {"attention_bias", "qk_norm"}}
    frequencies = Rotary(as_array(rotary.inv_freq.float()), float(rotary.attention_scaling))
    return EagleConfig(**own, target_hidden_size=sizes.hidden_size, rotary=frequencies)


@torch.no_grad()
def head_from_target(model: Any, config: EagleConfig, vocab: Tensor) -> EagleModel:
    """Return a float32 head: the feature is the last state that is read, the layer the target's
    last one, whose attention reads the token as its first one does; `vocab` [V_d] are the rows of
    the target's head."""
    head, layers, size = EagleModel(config), llama_layers(model), config.hidden_size
    first, last, own = layers[0], layers[-1], head.midlayer
    head.fc.weight.zero_()[:, -size:] = torch.eye(size)
    own.input_layernorm.weight.copy_(first.input_layernorm.weight)
    own.hidden_norm.weight.copy_(last.input_layernorm.weight)
    own.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
    for name in ("q_proj", "k_proj", "v_proj"):
        parts = [getattr(layer.self_attn, name).weight for layer in (first, last)]
        getattr(own.self_attn, name).weight.copy_(torch.cat(parts, 1))
    own.self_attn.o_proj.weight.copy_(last.self_attn.o_proj.weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        copy_linear(getattr(own.mlp, name), getattr(last.mlp, name), name)
    head.norm.weight.copy_(model.get_decoder().norm.weight)
    head.lm_head.weight.copy_(model.get_output_embeddings().weight[vocab.to(model.device)])
    return head


def save_eagle(head: EagleModel, vocab: Tensor, published: dict[str, Any], directory: Path) -> None:
    """Write weights in bfloat16 and `published`, their config.json; vocab [V_d] int64 holds the
    target id of each head column, which the file has as offsets from the columns."""
    make_folder(directory)
    tensors = {name: value.detach().bfloat16() for name, value in head.state_dict().items()}
    vocab, size = vocab.cpu(), head.config.vocab_size
    if len(vocab) < size:
        tensors[D2T] = vocab - torch.arange(len(vocab))
        tensors[T2D] = torch.zeros(size, dtype=torch.bool).index_fill_(0, vocab, True)
    write_tensors(tensors, directory / WEIGHTS_NAME)
    write_json(directory / CONFIG_NAME, published)


def load_eagle(directory: Path, config: EagleConfig, num_layers: int) -> tuple[EagleModel, Tensor]:
    """Return the float32 head in a directory, and its vocab [V_d], of its own size; ModelMismatch
    where its other shapes, for a target of so many layers, are not those of the config."""
    weights = read_eagle(directory, num_layers)
    head = EagleModel(replace(config, head_size=len(weights.vocab)))
    try:
        head.load_state_dict({name: as_tensor(own) for name, own in weights.tensors.items()})
    except RuntimeError:
        raise ModelMismatch(f"the weights in {directory} are of another target or shape") from None
    if weights.config.target_layers != config.target_layers:
        raise ModelMismatch(f"the head in {directory} reads layers {weights.config.target_layers}")
    return head, as_tensor(weights.vocab)


def published_config(model: Any, config: EagleConfig) -> dict[str, Any]:
    """Return a head's config.json. Layers beside the usual ones (2, half, last but two) are named
    as inputs, as vLLM counts them, and as outputs in `eagle_config`, as SGLang does."""
    text, count = model.config.get_text_config(), len(llama_layers(model))
    rope = dict(text.rope_parameters)
    theta, kind = rope.pop("rope_theta"), rope.get("rope_type", "default")
    layers: dict[str, Any] = {}
    if config.target_layers != default_layers(count):
        layers = {LAYER_IDS: list(config.target_layers)}
        outputs = [layer - 1 for layer in config.target_layers]
        layers["eagle_config"] = {LAYER_IDS: outputs, "use_aux_hidden_state": True}
    same = ("vocab_size", "hidden_size", "intermediate_size", "head_dim", "rms_norm_eps")
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": config.head_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        **{name: getattr(config, name) for name in same},
        **{name: getattr(text, name) for name in _FROM_TARGET},
        "hidden_act": "silu",
        "rope_theta": theta,
        "rope_scaling": None if kind == "default" else rope,
        **dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), False),
        "torch_dtype": "bfloat16",
        **layers,
    }


_FROM_TARGET = ("max_position_embeddings", "bos_token_id", "eos_token_id")

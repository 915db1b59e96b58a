"""Families of decoders: fields of config.json with transformers' defaults, and forms.

What else config.json may have is accounted for here: it is known to change nothing, at its neutral
value, or refused by its name.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slipstream.core.errors import WeightsError

Norms = Literal["before", "after", "both"]
"""Where a block has norms: of its input, of its output, or of both."""
HeadNorms = Literal["none", "head", "all"]
"""What one norm of queries or keys is of: nothing, each head, or all heads together."""
QKV = frozenset(f"self_attn.{part}_proj" for part in "qkv")
ATTENTION = QKV | {"self_attn.o_proj"}
MLP = frozenset(f"mlp.{part}_proj" for part in ("gate", "up", "down"))
GELU = {"gelu_pytorch_tanh", "gelu_new"}
SILU = {"silu", "swish"}


@dataclass(frozen=True, slots=True)
class Form:
    """What all models of a family have alike.

    is_fused: queries, keys and values are one matrix in files, and so are gate and up projection;
    has_unit_offset: norms multiply by 1 + weight; has_root_scale: embeddings are multiplied by the
    root of their size, rounded to their type; window_every: of so many layers the last sees all
    positions; biases: linears that always have one.
    """

    norms: Norms = "before"
    head_norms: HeadNorms = "none"
    is_fused: bool = False
    has_unit_offset: bool = False
    has_root_scale: bool = False
    window_every: int = 0
    biases: frozenset[str] = frozenset()


FORMS = {
    "llama": Form(),
    "mistral": Form(),
    "ministral": Form(),
    "qwen2": Form(biases=QKV),
    "qwen3": Form(head_norms="head"),
    "smollm3": Form(),
    "granite": Form(),
    "olmo2": Form("after", "all"),
    "olmo3": Form("after", "all", window_every=4),
    "phi3": Form(is_fused=True),
    "gemma": Form(has_unit_offset=True, has_root_scale=True),
    "gemma3_text": Form("both", "head", has_unit_offset=True, has_root_scale=True, window_every=6),
}
_LLAMA: dict[str, Any] = {
    **{"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008},
    **{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": None},
    **{"head_dim": None, "hidden_act": "silu", "max_position_embeddings": 2048},
    **{"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "eos_token_id": 2},
    **{"rope_theta": 10000.0, "rope_parameters": None, "rope_scaling": None},
    "original_max_position_embeddings": None,
}
_MISTRAL = _LLAMA | {
    **{"intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096},
    "max_position_embeddings": 131072,
}
_QWEN2 = _LLAMA | {
    **{"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32},
    **{"max_position_embeddings": 32768, "eos_token_id": None, "use_sliding_window": False},
    **{"sliding_window": 4096, "max_window_layers": 28, "layer_types": None},
}
_OLMO2 = _LLAMA | {
    **{"vocab_size": 50304, "rms_norm_eps": 1e-5, "eos_token_id": 50279, "attention_bias": False}
}
_GEMMA = _LLAMA | {
    **{"vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "eos_token_id": 1},
    **{"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16},
    **{"head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 8192},
    **{"tie_word_embeddings": True, "attention_bias": False},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _LLAMA | {"attention_bias": False, "mlp_bias": False},
    "mistral": _MISTRAL,
    "ministral": _MISTRAL | {"layer_types": None},
    "qwen2": _QWEN2,
    "qwen3": _QWEN2 | {"head_dim": 128, "attention_bias": False},
    "smollm3": _LLAMA
    | {
        **{"vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36},
        **{"num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768},
        **{"tie_word_embeddings": True, "eos_token_id": 128001, "rope_theta": 2000000.0},
        **{"use_sliding_window": False, "sliding_window": None, "layer_types": None},
        **{"no_rope_layers": None, "no_rope_layer_interval": 4},
        **{"attention_bias": False, "mlp_bias": False},
    },
    "granite": _LLAMA
    | {
        **{"attention_bias": False, "mlp_bias": False, "embedding_multiplier": 1.0},
        **{"logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0},
    },
    "olmo2": _OLMO2,
    "olmo3": _OLMO2 | {"rope_theta": 500000.0, "sliding_window": 4096, "layer_types": None},
    "phi3": _LLAMA
    | {
        **{"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192},
        **{"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "eos_token_id": 32000},
        **{"original_max_position_embeddings": 4096, "sliding_window": None},
        "partial_rotary_factor": 1.0,
    },
    "gemma": _GEMMA,
    "gemma3_text": _GEMMA
    | {
        **{"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216},
        **{"num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4},
        **{"max_position_embeddings": 131072, "rope_theta": 1000000.0, "sliding_window": 4096},
        **{"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256},
        **{"rope_local_base_freq": 10000.0, "sliding_window_pattern": 6, "layer_types": None},
    },
}
"""Fields that are read, with their defaults."""
del FAMILIES["gemma3_text"]["hidden_act"]
_WRAPPERS = {"gemma3": "gemma3_text"}
"""Models of images and text, whose text alone is served, and the family of that."""
_TYPES: dict[str, type] = {
    **dict.fromkeys(("num_key_value_heads", "head_dim", "sliding_window"), int),
    **dict.fromkeys(("layer_types", "no_rope_layers"), list),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), dict),
    **{"original_max_position_embeddings": int, "query_pre_attn_scalar": float},
}
_EOS = "eos_token_id"
_NULL = {"sliding_window", _EOS, "original_max_position_embeddings"}
"""Fields that may be null whatever their default is."""

_HARMLESS = re.compile(
    r"_.*|unsloth_.*|transformers[._].*|.*(dropout|pdrop)|.*_token_id|.*_token_index|.*_version"
    r"|.*initializer_range|.*(description|comment|notes?|license|author|date|url|name_or_path)"
    r"|torch_dtype|dtype|architectures|auto_map|model_type|use_cache|pretraining_tp|name|torchscript"
    r"|output_(attentions|hidden_states|scores|router_logits)|return_dict.*|use_bfloat16|id2label"
    r"|label2id|num_labels|problem_type|finetuning_task|task_specific_params|tokenizer_class"
    r"|cache_implementation|max_sequence_length|model_max_length|max_length|min_length|do_sample"
    r"|temperature|top_[kp]|typical_p|num_(beams|beam_groups|return_sequences)|early_stopping"
    r"|(repetition|length|diversity)_penalty|(encoder_)?no_repeat_ngram_size|bad_words_ids"
    r"|(begin_)?suppress_tokens|is_llama_config|gradient_checkpointing|.*attn_implementation"
    r"|router_aux_loss_coef|head_dim|rope_theta|rope_scaling|rope_parameters|finetuned"
)
"""Names of fields that change nothing here, as how a model was trained, saved or should be sampled,
and of those that transformers reads itself wherever a model has them."""
_OF_FAMILY: dict[str, dict[str, tuple[Any, ...]]] = {
    "qwen2": {"attention_bias": (True, False), "qkv_bias": (True,)},
    "gemma": {"hidden_activation": ("gelu_pytorch_tanh",)},
    "gemma3_text": {"hidden_act": ("gelu_pytorch_tanh",)},
    "phi3": {"full_attn_mod": (1,), "interpolate_factor": (1,)},
    "smollm3": {"max_window_layers": (28,)},
}
"""Values of fields that are not read, which say what is so anyway."""
_SCALE = re.compile(r".*(scale|scaling|multiplier|factor|scalar)")
UNREAD_TENSORS = re.compile(
    r".*rotary_emb\.(inv_freq|cos_cached|sin_cached)|.*\.attn\.(masked_)?bias|.*\._extra_state"
)
"""Tensors that are computed anew."""


def fields_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a family has, checked, with defaults for those that are not given.

    Raises `WeightsError` for a value of another type.
    """
    found = dict(FAMILIES[config["model_type"]])
    for name, default in found.items():
        if name in config:
            kind = _TYPES.get(name, type(default))
            is_null = config[name] is None and (default is None or kind is bool or name in _NULL)
            found[name] = default if is_null and kind is bool else config[name]
            if not is_null and not _is_of(name, config[name], kind):
                raise WeightsError(f"config.json has {name} of {_brief(config[name])}")
    return found


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config.json that describes a decoder of text."""
    family = _WRAPPERS.get(str(config.get("model_type")))
    own = config.get("text_config")
    if family is None or not isinstance(own, dict):
        return config
    outer = {name: config[name] for name in ("tie_word_embeddings", _EOS) if name in config}
    return {**outer, **own, "model_type": family}


def account_fields(config: Mapping[str, Any]) -> None:
    """Raise `WeightsError` for a field of a family's config.json that is not read, unless it is
    neutral or known to change nothing."""
    own = text_config(config)
    if own is not config:
        known = {"text_config", "vision_config", "mm_tokens_per_image", "tie_word_embeddings"}
        require_harmless(config, known)
    family = own["model_type"]
    usual = _OF_FAMILY.get(family, {})
    known = {name for name, values in usual.items() if own.get(name) in values}
    require_harmless(own, {*FAMILIES[family], *known})


def require_harmless(config: Mapping[str, Any], known: Iterable[str], prefix: str = "") -> None:
    """Raise `WeightsError` for a field that is neither known nor harmless nor neutral."""
    known = set(known)
    for name, value in config.items():
        is_harmless = name in known or (not prefix and _HARMLESS.fullmatch(name))
        if not is_harmless and not _is_neutral(name, value):
            raise WeightsError(
                f"config.json has {prefix}{name} of {_brief(value)}, which models of type"
                f" {config.get('model_type')} have no reading of here"
            )


def require_read(names: Iterable[str], where: str, family: str) -> None:
    """Raise `WeightsError` for tensors, by name, that nothing reads and that are not computed."""
    if left := sorted(name for name in names if not UNREAD_TENSORS.fullmatch(name)):
        raise WeightsError(
            f"the weights in {where} have {left[0]} ({len(left)} in all), which models of type"
            f" {family} have no reading of here"
        )


def is_number(value: object) -> bool:
    """Return whether a value is a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > 0


def _is_neutral(name: str, value: Any) -> bool:
    if value is None or value is False or value in ("", [], {}):
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == (1 if _SCALE.fullmatch(name) else 0)


def _is_of(name: str, value: Any, kind: type) -> bool:
    if name == _EOS:
        ids = value if isinstance(value, list) else [value]
        return all(isinstance(token, int) and not isinstance(token, bool) for token in ids)
    if kind is float:
        return is_number(value)
    if kind is int:
        return isinstance(value, int) and is_number(value)
    return isinstance(value, kind)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

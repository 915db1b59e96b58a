"""Tiny random models of every family with a native forward, each with what it has of its own."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

FIELD_CASES = json.loads((Path(__file__).parent / "field_cases.json").read_text())
"""Fields of files with values that change answers, and that change nothing."""
SIZES = {
    **{"vocab_size": 48, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512},
    "initializer_range": 0.12,
    **dict.fromkeys(("pad_token_id", "bos_token_id"), None),
    "eos_token_id": 0,
}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0]}
BOTH = ["sliding_attention", "full_attention"] * 2
OPTIONS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 21},
    "ministral": {"sliding_window": 21, "layer_types": BOTH, "head_dim": 16},
    "qwen2": {"use_sliding_window": True, "sliding_window": 30, "max_window_layers": 2},
    "qwen3": {"use_sliding_window": True, "layer_types": BOTH, "sliding_window": 3, "head_dim": 16},
    "smollm3": {"use_sliding_window": True, "sliding_window": 19},
    "granite": {
        **{"embedding_multiplier": 3.3, "logits_scaling": 1.7, "residual_multiplier": 0.6},
        **{"attention_multiplier": 0.4, "attention_bias": True, "mlp_bias": True},
    },
    "olmo2": {"attention_bias": True},
    "olmo3": {"sliding_window": 17},
    "phi3": {
        "rope_parameters": {**LONG, "long_factor": [2.0] * 6, "partial_rotary_factor": 0.75},
        **{"original_max_position_embeddings": 256, "sliding_window": 33},
    },
    "gemma": {"head_dim": 24, "attention_bias": True},
    "gemma3_text": {
        **{"head_dim": 24, "sliding_window": 25, "query_pre_attn_scalar": 40},
        **{"sliding_window_pattern": 3, "rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    },
}


def family_model(family: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """A transformers model of a family, whose norms and biases are not what they begin with."""
    torch.manual_seed(5)
    config = AutoConfig.for_model(family, **{**SIZES, **OPTIONS[family], **options})
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                weight.add_(torch.randn_like(weight), alpha=0.2)
    return model.to(dtype).eval()


def odd_model(dtype: torch.dtype = torch.float32) -> Any:
    """Sizes that are no multiples of anything, biases everywhere, as many key heads as others."""
    sizes = {"vocab_size": 83, "hidden_size": 60, "intermediate_size": 75, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 12}
    return family_model("llama", dtype, **sizes, **heads)


def grouped_model(dtype: torch.dtype = torch.float32) -> Any:
    """Six query heads for each key head, heads of 80, frequencies that are scaled."""
    heads = {"num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 80}
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
    more = {"rope_parameters": rope, "sliding_window": None, "num_hidden_layers": 2}
    return family_model("mistral", dtype, hidden_size=96, **heads, **more)


def uneven_model(dtype: torch.dtype = torch.float32) -> Any:
    """Three query heads for each of three key heads, which two threads can't divide; a window."""
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    more = {"sliding_window": 50, "num_hidden_layers": 2}
    return family_model("mistral", dtype, hidden_size=144, **heads, **more)


def faint_model(dtype: torch.dtype = torch.float32) -> Any:
    """Some outputs' weights are so small that products with them are subnormal."""
    model = family_model("llama", dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "proj" in name or "head" in name:
                weight[::3] *= 2.0**-118
    return model


MAKERS = {family: partial(family_model, family) for family in OPTIONS}

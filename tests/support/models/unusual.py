"""Tiny models of sizes and weights that native code has to take a special way for."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from support.models import tiny


def odd_model(dtype=torch.float32):
    """Sizes that are no multiples of anything, biases everywhere, as many key heads as others."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=83,
        hidden_size=60,
        intermediate_size=75,
        num_hidden_layers=2,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=12,
        max_position_embeddings=256,
        attention_bias=True,
        mlp_bias=True,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def grouped_model(dtype=torch.float32):
    """Six query heads for each key head, heads of 80, frequencies that are scaled."""
    torch.manual_seed(4)
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
    config = MistralConfig(
        vocab_size=96,
        hidden_size=96,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=1,
        head_dim=80,
        max_position_embeddings=512,
        rope_parameters=rope,
        sliding_window=None,
        initializer_range=0.15,
    )
    return MistralForCausalLM(config).to(dtype).eval()


def faint_model(dtype=torch.float32):
    """Some outputs' weights are so small that products with them are subnormal."""
    model = tiny.hf_model(dtype=dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "proj" in name or "head" in name:
                weight[::3] *= 2.0**-118
    return model

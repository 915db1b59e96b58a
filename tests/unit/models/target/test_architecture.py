"""What config.json says of a decoder is what transformers makes of it; odd ones are refused."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, MistralConfig

from slipstream.core.errors import ModelError
from slipstream.models.dtypes import FLOAT32
from slipstream.models.format.architecture import context_length, parse
from slipstream.models.format.rope import Rotary, rotary_tables
from slipstream.models.native.library import NotNative
from support.models.in_memory import causal_model

SIZES = {
    **{"vocab_size": 48, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096},
    **{"rms_norm_eps": 1e-5, "pad_token_id": 0},
}
LONG = {"original_max_position_embeddings": 1024}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
DEEPSEEK = {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0, "beta_fast": 16}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, **LONG}
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 100000.0},
    "linear": {"rope_type": "linear", "factor": 2.5, "rope_theta": 5000},
    "llama3": {**LLAMA3, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {**YARN, **LONG},
    "yarn of DeepSeek": {**YARN, **DEEPSEEK, "truncate": False},
    "yarn with a factor": {**YARN, "rope_theta": 1e6, "attention_factor": 0.8, "beta_slow": 2},
}


def test_torch_whose_attention_has_no_windows_has_no_more_context_than_the_smallest():
    assert context_length(LlamaConfig(**SIZES)) == SIZES["max_position_embeddings"]
    assert context_length(MistralConfig(**SIZES, sliding_window=512)) == 512


def require_same_frequencies(raw, config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    theirs = type(model.model.rotary_emb)(config=config)
    [ours] = parse(raw).rotaries()
    assert ours.inv_freq.dtype == FLOAT32
    # Powers of float32 are rounded twice: of the base, then of what is divided by a factor.
    np.testing.assert_array_max_ulp(ours.inv_freq, theirs.inv_freq.numpy(), maxulp=2)
    assert ours.attention_scaling == theirs.attention_scaling
    same = Rotary(theirs.inv_freq.numpy(), theirs.attention_scaling)
    tables = theirs(torch.empty(0), torch.arange(3000)[None])
    for own, both_halves in zip(rotary_tables(same, 3000), tables, strict=True):
        assert own.dtype == FLOAT32
        expected = np.split(both_halves[0].numpy(), 2, axis=1)
        np.testing.assert_array_max_ulp(own, expected[0], maxulp=2)
        np.testing.assert_array_max_ulp(own, expected[1], maxulp=2)


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("head_dim", [16, 80, 128])
def test_frequencies_are_those_of_transformers_up_to_the_last_place(kind, head_dim):
    config = LlamaConfig(**SIZES, head_dim=head_dim, rope_parameters=dict(ROPES[kind]))
    require_same_frequencies(config.to_dict(), config)


ODD = [
    ({"model_type": "gpt_neox"}, "models of type gpt_neox"),
    ({"hidden_act": "gelu"}, "gated by gelu, not by SiLU"),
    ({"hidden_size": 66}, "do not divide"),
    ({"head_dim": 15}, "an odd number"),
    ({"rope_parameters": {"rope_type": "dynamic"}}, "of the kind dynamic"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "has no factor"),
]


@pytest.mark.parametrize(("change", "reason"), ODD)
def test_what_has_no_native_forward_is_refused_with_the_reason(change, reason):
    with pytest.raises(NotNative, match=reason):
        parse({**SIZES, "model_type": "llama", **change})


def test_layers_that_can_not_be_cached_are_refused():
    with pytest.raises(ModelError, match="'sliding_attention'"):
        parse({**SIZES, "model_type": "qwen2", "layer_types": ["sliding_attention"] * 2})
    for kinds in (["full_attention"], ["chunked_attention"] * 2, [3] * 2):
        with pytest.raises(ModelError, match="can't be cached"):
            parse({**SIZES, "model_type": "gemma3_text", "layer_types": kinds})


OTHERS = {
    **dict.fromkeys(("glm", "cohere", "ernie4_5", "hunyuan_v1_dense", "phimoe"), None),
    **{
        "gemma2": "attn_logit_softcapping",
        "gpt_oss": "sinks",
        "gemma4_text": "per-layer attribute",
    },
    **{"diffllama": "hidden states differ", "stablelm": "can't run over our cache"},
}


@pytest.mark.parametrize("family", OTHERS)
def test_attention_of_another_form_is_computed_as_it_is_or_refused_in_a_sentence(family):
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(family, vocab_size=200, **heads, **sizes)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    reason = OTHERS[family]
    with pytest.raises(ModelError, match=reason) if reason else nullcontext():
        causal_model(model, engine="torch")  # which compares it

"""Heads are read as each publisher lays them out, and refused for what can't be computed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream.core.errors import ModelMismatch, WeightsError
from slipstream.models.eagle.eagle_weights import check_eagle_target, read_eagle
from slipstream.models.format.resolve import resolve_head
from slipstream.models.glide.load import target_parts
from support.models import tiny_eagle, tiny_glide
from support.models.tiny_checkpoint import change_config, change_weights

IDS, LAYER = "eagle_aux_hidden_state_layer_ids", "layers.0."
NUM_LAYERS = 4
USUAL = {"use_aux_hidden_state": True, "use_last_layernorm": True, "next_layer_regular": True}
USUAL |= {"use_mtp_layernorm": False, "parallel_draft_step": None}


def head(**changes):
    return tiny_eagle.model(tiny_eagle.config(tiny_glide.llama(), **changes))


def in_speculators(made):
    """Fields of speculators: those of the layer are apart, and null on top."""
    fields = tiny_eagle.fields_of(made)
    own = {IDS, "draft_vocab_size", "architectures", "torch_dtype", "bos_token_id"}
    layer = {name: value for name, value in fields.items() if name not in own}
    more = {"speculators_model_type": "eagle3", "speculators_config": {"algorithm": "eagle3"}}
    flags = {"norm_before_residual": True, "target_hidden_size": None}
    hidden = dict.fromkeys(layer)
    return {**hidden, **more, **flags, "transformer_layer_config": {**layer, "model_type": "qwen3"}}


PUBLISHERS = {
    "EAGLE": ({}, "midlayer.", lambda made: {"eagle_config": None}),
    "SpecForge": (
        {"norms_each_state": True, "norms_output": True},
        "model.midlayer.",
        lambda made: {
            **{"fc_norm": True, "norm_output": True, "max_window_layers": 48},
            **{"sliding_window": None, "use_sliding_window": False, "rope_scaling": None},
        },
    ),
    "ModelOpt": (
        {"norms_states": True},
        LAYER,
        lambda made: {IDS: None, "eagle_config": {**USUAL, IDS: [0, 1, 2], "norm_before_fc": True}},
    ),
    "speculators": ({"norms_residual": True, "qk_norm": True}, LAYER, in_speculators),
    "with biases and all tokens": (
        {"attention_bias": True, "head_size": tiny_glide.VOCAB},
        "midlayer.",
        lambda made: {"attention_bias": True},
    ),
}


@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_a_head_of_each_publisher_is_what_was_saved(publisher, tmp_path):
    changes, layer, fields = PUBLISHERS[publisher]
    made = head(**changes)
    tiny_eagle.save(tmp_path, made, layer=layer, **fields(made.config))
    found, expected = read_eagle(resolve_head(str(tmp_path)), NUM_LAYERS), tiny_eagle.weights(made)
    np.testing.assert_array_equal(found.config.rotary.inv_freq, made.config.rotary.inv_freq)
    assert replace(found.config, rotary=made.config.rotary) == made.config
    assert found.tensors.keys() == expected.tensors.keys()
    for name, value in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], value)
    np.testing.assert_array_equal(found.vocab, expected.vocab)
    check_eagle_target(found.config, target_parts(tiny_glide.llama()))


def test_shards_are_one_head_and_without_names_the_usual_layers_are_read(tmp_path):
    tiny_eagle.save(tmp_path, head(), **{IDS: None})
    tensors, names = load_file(tmp_path / "model.safetensors"), {}
    for number in range(2):
        part = dict(list(tensors.items())[number::2])
        save_file(part, tmp_path / f"model-{number}.safetensors")
        names |= dict.fromkeys(part, f"model-{number}.safetensors")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    found = read_eagle(tmp_path, 30)
    assert found.config.target_layers == (2, 15, 27)
    assert {*found.tensors, "d2t", "t2d"} == {*tensors}


ONES = torch.ones(2)
REFUSED = {
    "num_hidden_layers of 2": {"num_hidden_layers": 2},
    "hidden_act": {"hidden_act": "gelu_pytorch_tanh"},
    "sliding_window": {"sliding_window": 512},
    "logit_scale of 2.0": {"logit_scale": 2.0},
    "use_mtp_layernorm": {"eagle_config": {"use_mtp_layernorm": True}},
    "use_aux_hidden_state": {"eagle_config": {"use_aux_hidden_state": False}},
    "tie_word_embeddings": {"tie_word_embeddings": True},
    "of the kind dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "draft_vocab_size 99 is none of 61": {"draft_vocab_size": 99},
    "norm_output of 1": {"norm_output": 1},
    "lacks norm.weight": {"norm.weight": None},
    "has extra.weight": {"extra.weight": ONES},
    "fc.weight of the shape": {"fc.weight": torch.ones(32, 64)},
    "EAGLE-1 and EAGLE-2": {"lm_head.weight": None, "midlayer.hidden_norm.weight": None},
    "neither d2t nor t2d": {"d2t": None, "t2d": None},
    "name other tokens": {"d2t": torch.zeros(49, dtype=torch.int64)},
    "don't ascend": {"d2t": 60 - 2 * torch.arange(49), "t2d": None},
    "fc.weight quantised": {"fc.weight": torch.ones(32, 96).to(torch.float8_e4m3fn)},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_head_that_would_be_computed_otherwise_is_refused(sentence, tmp_path):
    tiny_eagle.save(tmp_path, head())
    changes = REFUSED[sentence]
    is_weights = any(isinstance(value, torch.Tensor | None) for value in changes.values())
    (change_weights if is_weights else change_config)(tmp_path, **changes)
    with pytest.raises(WeightsError, match=sentence):
        read_eagle(tmp_path, NUM_LAYERS)


def test_pickled_weights_are_refused_with_the_way_to_convert_them(tmp_path):
    tiny_eagle.save(tmp_path, head())
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"convert them with `python -c"):
        read_eagle(tmp_path, NUM_LAYERS)


def test_a_head_of_another_target_is_refused(tmp_path):
    tiny_eagle.save(tmp_path, head())
    with pytest.raises(ModelMismatch, match=r"layers \[1, 2, 3\], the target has 2"):
        read_eagle(tmp_path, 2)
    config = read_eagle(tmp_path, NUM_LAYERS).config
    for sizes, sentence in (({"hidden_size": 48}, "hidden_size of 32"), ({"vocab_size": 64}, "61")):
        with pytest.raises(ModelMismatch, match=sentence):
            check_eagle_target(config, target_parts(tiny_glide.llama(**sizes)))

"""Weights in FP8 are those numbers times their scales; all other quantised ones are refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from slipstream.core.errors import ModelError, WeightsError
from slipstream.models.glide.load import load_parts
from slipstream.models.loading import load_model
from slipstream.models.native.checkpoint import is_fp8
from slipstream.models.torch.loading import check_ranks, load_target_parts
from support.models import tiny
from support.models.in_memory import causal_model
from support.models.tiny_checkpoint import WEIGHTS, change_config, change_weights, save_checkpoint

LOADERS = (load_model, load_target_parts)
ROW, TENSOR = (1, 10**6), (10**6, 10**6)
BLOCKS = {"quant_method": "fp8", "weight_block_size": [24, 20]}
FLOATS = {"quant_method": "compressed-tensors", "format": "float-quantized"}
GROUPS = {"a": {"weights": {"block_structure": [24, 20]}}}
KINDS = [
    (BLOCKS, (24, 20), "_scale_inv"),
    ({**FLOATS, "config_groups": GROUPS}, (24, 20), "_scale"),
    ({"quant_method": "fp8"}, TENSOR, "_scale_inv"),
    (FLOATS, ROW, "_scale"),
    ({"quant_method": "fbgemm_fp8"}, ROW, "_scale"),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, TENSOR, "_scale"),
]


@pytest.fixture
def checkpoint(tmp_path):
    return save_checkpoint(tmp_path / "tiny")


def to_fp8(folder, about, block, ending):
    """Round the linears of a checkpoint to FP8 in blocks, and return what they stand for."""
    dense, codes = {}, {}
    for name, weight in load_file(folder / WEIGHTS).items():
        if name.endswith("_proj.weight"):
            rows, columns = map(lambda n, b: torch.arange(n) // b, weight.shape, block)
            scale = torch.rand(rows[-1] + 1, columns[-1] + 1) / 1000 + 1e-4
            codes[name] = (weight / scale[rows][:, columns]).to(torch.float8_e4m3fn)
            codes[name + ending] = scale.squeeze() if block == TENSOR else scale
            dense[name] = codes[name].float() * scale[rows][:, columns]
    change_weights(folder, **codes)
    change_config(folder, quantization_config=about)
    return dense


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize("kind", KINDS)
def test_fp8_weights_are_the_numbers_that_they_stand_for(checkpoint, tmp_path, load, kind):
    plain = save_checkpoint(tmp_path / "plain")
    change_weights(plain, **to_fp8(checkpoint, *kind))
    for name in ("mlp.up_proj.input_scale", "self_attn.k_proj.k_scale"):
        change_weights(checkpoint, **{f"model.layers.0.{name}": torch.ones(1)})
    for dtype in ("float32", "bfloat16", "float16"):
        both = (causal_model(load(str(at), dtype=dtype).model) for at in (checkpoint, plain))
        results = (tiny.whole(model, tiny.tokens(60)) for model in both)
        assert all(map(np.array_equal, *results))


@pytest.mark.parametrize("load", LOADERS)
def test_fp8_weights_without_scales_of_their_shape_are_refused(checkpoint, load):
    to_fp8(checkpoint, {**BLOCKS, "weight_block_size": [16, 16]}, *KINDS[0][1:])
    with pytest.raises(WeightsError, match=r"has the shape .*, but .* in blocks of \[16, 16\]"):
        causal_model(load(str(checkpoint)).model)
    change_weights(checkpoint, **{"model.layers.0.mlp.up_proj.weight_scale_inv": None})
    with pytest.raises(WeightsError, match=r"lack the scales of .*up_proj\.weight, in FP8"):
        load(str(checkpoint))


@pytest.mark.parametrize("load", LOADERS)
def test_weights_in_whole_numbers_need_a_word_of_how_they_are_quantised(checkpoint, load):
    name = "model.layers.0.mlp.up_proj.weight"
    change_weights(checkpoint, **{name: load_file(checkpoint / WEIGHTS)[name].to(torch.int8)})
    with pytest.raises(WeightsError, match=rf"{name} in .* is quantised \(I8\), unknown how"):
        load(str(checkpoint))


OTHER_KINDS = [
    *(("config.json", {"quant_method": name}, name) for name in ("gptq", "awq", "bitsandbytes")),
    ("config.json", {**FLOATS, "format": "pack-quantized"}, "compressed-tensors pack-quantized"),
    ("config.json", {}, "an unnamed method"),
    ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, "NVFP4"),
    ("quantize_config.json", {"bits": 4}, "an unnamed method"),
    ("quant_config.json", ["w4"], r"\['w4'\]"),
]


@pytest.mark.parametrize(("file", "about", "how"), OTHER_KINDS)
def test_weights_that_are_quantised_otherwise_are_refused_by_name(checkpoint, file, about, how):
    if file == "config.json":
        change_config(checkpoint, quantization_config=about)
        with pytest.raises(ModelError, match=f"quantised by {how} "):
            is_fp8(checkpoint, {"text_config": {"compression_config": about}})
    else:
        (checkpoint / file).write_text(json.dumps(about))
    wanted = rf"quantised by {how} \(.*{file}\), which are not computed here: take .* in FP8"
    for load in (*LOADERS, load_parts):
        for dtype in ("auto", "float16"):
            with pytest.raises(ModelError, match=wanted):
                load(str(checkpoint), dtype=dtype)
    with pytest.raises(ModelError, match=wanted):
        check_ranks(checkpoint, 2)

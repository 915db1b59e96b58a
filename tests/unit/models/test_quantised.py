"""Weights in FP8 are those numbers times their scales; all other quantised ones are refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from slipstream.core.errors import ModelError, WeightsError
from slipstream.models.glide.load import load_parts
from slipstream.models.loading import causal_model, load_model
from slipstream.models.native.checkpoint import is_fp8
from slipstream.models.torch.loading import check_ranks, load_target_parts
from support.models import tiny
from support.models.tiny_checkpoint import (
    WEIGHTS,
    change_config,
    change_weights,
    save_checkpoint,
)

LOADERS = (load_model, load_target_parts)


@pytest.fixture
def checkpoint(tmp_path):
    return save_checkpoint(tmp_path / "tiny")


def to_fp8(folder, block, name, about):
    """Round the linears of a checkpoint to FP8 in blocks, and return what they stand for."""
    dense, codes = {}, {}
    for own, weight in load_file(folder / WEIGHTS).items():
        if own.endswith("_proj.weight"):
            rows, columns = (min(pair) for pair in zip(weight.shape, block, strict=True))
            counts = [
                -(-size // part) for size, part in zip(weight.shape, (rows, columns), strict=True)
            ]
            scale = torch.rand(counts) / 1000 + 1e-4
            spread = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
            spread = spread[: len(weight), : weight.shape[1]]
            codes[own] = (weight / spread).to(torch.float8_e4m3fn)
            codes[f"{own}{name}"] = scale.squeeze() if block == TENSOR else scale
            dense[own] = codes[own].float() * spread
    change_weights(folder, **codes)
    change_config(folder, quantization_config=about)
    return dense


TENSOR, ROW = (10**6, 10**6), (1, 10**6)
BLOCKS = {"quant_method": "fp8", "weight_block_size": [24, 20]}
FLOATS = {"quant_method": "compressed-tensors", "format": "float-quantized"}
KINDS_OF_FP8 = [
    ((24, 20), "_scale_inv", BLOCKS),
    (TENSOR, "_scale_inv", {"quant_method": "fp8"}),
    (ROW, "_scale", FLOATS),
    (ROW, "_scale", {"quant_method": "fbgemm_fp8"}),
    (TENSOR, "_scale", {"quant_method": "modelopt", "quant_algo": "FP8"}),
]


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(("block", "name", "about"), KINDS_OF_FP8)
def test_fp8_weights_are_served_as_the_numbers_that_they_stand_for(
    checkpoint, tmp_path, load, block, name, about
):
    dense = to_fp8(checkpoint, block, name, about)
    change_weights(checkpoint, **{"model.layers.0.mlp.up_proj.input_scale": torch.ones(1)})
    plain = save_checkpoint(tmp_path / "plain")
    change_weights(plain, **dense)
    for dtype in ("float32", "bfloat16", "float16"):
        both = (causal_model(load(str(at), dtype=dtype).model) for at in (checkpoint, plain))
        results = (tiny.whole(model, tiny.tokens(60)) for model in both)
        assert all(map(np.array_equal, *results))


@pytest.mark.parametrize("load", LOADERS)
def test_fp8_weights_without_scales_of_their_shape_are_refused(checkpoint, load):
    to_fp8(checkpoint, (24, 20), "_scale_inv", {**BLOCKS, "weight_block_size": [16, 16]})
    with pytest.raises(WeightsError, match=r"has the shape .*, but .* in blocks of \[16, 16\]"):
        causal_model(load(str(checkpoint)).model)
    change_weights(checkpoint, **{"model.layers.0.mlp.up_proj.weight_scale_inv": None})
    with pytest.raises(WeightsError, match=r"lack the scales of .*up_proj\.weight, in FP8"):
        load(str(checkpoint))


OTHER_KINDS = [
    ("config.json", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
    ("config.json", {"quantization_config": {"quant_method": "awq"}}, "awq"),
    ("config.json", {"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"),
    (
        "config.json",
        {"quantization_config": {**FLOATS, "format": "int-quantized"}},
        "int-quantized",
    ),
    ("config.json", {"quantization_config": {}}, "an unnamed method"),
    ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, "NVFP4"),
    ("quantize_config.json", {"bits": 4}, "an unnamed method"),
    ("quant_config.json", ["w4"], r"\['w4'\]"),
]


@pytest.mark.parametrize(("file", "about", "how"), OTHER_KINDS)
def test_weights_that_are_quantised_otherwise_are_refused_by_name(checkpoint, file, about, how):
    if file == "config.json":
        change_config(checkpoint, **about)
    else:
        (checkpoint / file).write_text(json.dumps(about))
    wanted = rf"quantised by .*{how} \(.*{file}\), which are not computed here: take .* in FP8"
    for load in (*LOADERS, load_parts):
        for dtype in ("auto", "float16"):
            with pytest.raises(ModelError, match=wanted):
                load(str(checkpoint), dtype=dtype)
    with pytest.raises(ModelError, match=wanted):
        check_ranks(checkpoint, 2)
    if file == "config.json":
        with pytest.raises(ModelError, match=wanted):
            is_fp8(checkpoint, {"text_config": about})

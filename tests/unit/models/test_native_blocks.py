"""Laws of products with weights in the blocks of GGUF files."""

from dataclasses import replace

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from slipstream.config import NATIVE_VARIABLE
from slipstream.core.errors import ModelError
from slipstream.models.dtypes import BFLOAT16, FLOAT32
from slipstream.models.native import library, weights
from slipstream.models.native.library import NativeShape
from slipstream.models.native.model import NativeModel
from slipstream.models.native.weights import BlockWeights, Weights
from slipstream.models.threads import set_num_threads
from support.models import tiny_gguf
from support.models.instruction_sets import available

OUTPUTS, INPUTS, ROWS = 53, 768, 21
NAMES = list(weights.KINDS)
RNG = np.random.default_rng(7)

pytestmark = pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")


BLOCKS = {name: tiny_gguf.random_blocks(name, OUTPUTS, INPUTS, RNG) for name in NAMES}
SCALES_AT = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}
"""Where the scales of a block are that does not begin with them."""
TOKENS = RNG.standard_normal((ROWS, INPUTS), dtype=np.float32)
TOKENS[:, 32:64] = 0.0
TOKENS[3] *= 1e-35  # too small to be divided by
TOKENS[4] *= 1e20


def product_with(name):
    """The head of a model that consists of nothing else."""
    shape = NativeShape(0, INPUTS, 1, 1, 64, 64, 0, 0, 1e-5, 1.0)
    model = NativeModel(shape, weights.plain(np.zeros((1, INPUTS), np.float32)))
    head = Weights(weights.KINDS[name], BLOCKS[name])
    model.set_head(np.ones(INPUTS, np.float32), head)
    return model


def dense(name):
    values = quants.dequantize(BLOCKS[name], GGMLQuantizationType[name])
    return values.astype(np.float32).reshape(OUTPUTS, INPUTS)


def blocks_of_any_bits(name):
    """Every bit at random, but that scales are below 2: of files there are no others."""
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = RNG.integers(0, 256, (OUTPUTS, INPUTS // elements, size), dtype=np.uint8)
    first = SCALES_AT.get(name, 0)
    if name != "MXFP4":  # which has exponents
        blocks[..., first + 1 : first + 4 : 2] &= 0xBF
    return blocks.reshape(OUTPUTS, -1)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_stand_for_the_weights_that_gguf_says(name):
    raw = blocks_of_any_bits(name)
    own = Weights(weights.KINDS[name], raw)
    found = own.dense(FLOAT32)
    with np.errstate(over="ignore"):
        expected = quants.dequantize(raw, GGMLQuantizationType[name])
    assert np.array_equal(found, expected.reshape(found.shape))
    assert np.array_equal(own.dense(BFLOAT16), found.astype(BFLOAT16))


def encoded(tokens):
    """Tokens as 8-bit codes stand for them, each 32 elements with a scale of their own."""
    groups = tokens.reshape(len(tokens), -1, 32)
    most = np.abs(groups).max(2, keepdims=True)
    most = np.where(most < 1e-30, np.float32(0), most)
    factors = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    codes = np.rint(groups * factors).astype(np.float64)
    return (codes * (most / np.float32(127)).astype(np.float64)).reshape(tokens.shape)


@pytest.mark.parametrize("name", NAMES)
def test_a_product_is_that_of_the_encoded_tokens_and_the_weights(name):
    matrix = dense(name).astype(np.float64)
    expected = encoded(TOKENS) @ matrix.T
    found = product_with(name).logits(TOKENS).astype(np.float64)
    size = np.maximum(np.abs(encoded(TOKENS)) @ np.abs(matrix).T, 1e-30)
    assert (np.abs(found - expected) / size).max() < 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_a_token_has_the_same_bits_in_any_company(name):
    model = product_with(name)
    together = model.logits(TOKENS)
    for size in range(1, ROWS):
        parts = [model.logits(TOKENS[at : at + size]) for at in range(0, ROWS, size)]
        assert np.array_equal(np.concatenate(parts), together)


@pytest.mark.parametrize("name", NAMES)
def test_all_kernels_and_any_number_of_threads_give_the_same_bits(name, monkeypatch):
    seen = {}
    for kernel in available():
        for threads in (1, 2, 4):
            monkeypatch.setenv(NATIVE_VARIABLE, kernel)
            set_num_threads(threads)
            seen[kernel, threads] = product_with(name).logits(TOKENS)
    first = next(iter(seen.values()))
    for key, values in seen.items():
        assert np.array_equal(values, first), key


def test_float16_weights_are_those_of_float32_in_half_the_memory():
    matrix = RNG.standard_normal((OUTPUTS, 75)).astype(np.float16)
    shape = NativeShape(0, 75, 1, 1, 64, 64, 0, 0, 1e-5, 1.0)
    models = [NativeModel(shape, weights.plain(np.zeros((1, 75), np.float32))) for _ in range(2)]
    kinds = (weights.FLOAT16, weights.FLOAT32)
    for model, kind, own in zip(models, kinds, (matrix, matrix.astype(np.float32)), strict=True):
        model.set_head(np.ones(75, np.float32), Weights(kind, own))
    tokens = RNG.standard_normal((ROWS, 75), dtype=np.float32)
    half, whole = (model.logits(tokens) for model in models)
    assert np.array_equal(half, whole)
    assert models[0].weight_bytes - 300 == (models[1].weight_bytes - 300) / 2


ODD = {
    "too few bytes": Weights(weights.Q8_0, np.zeros((4, 33), np.uint8)),
    "inputs of no whole block": Weights(weights.FLOAT32, np.zeros((4, 33), np.float32)),
    "a bias of another length": Weights(
        weights.FLOAT32, np.zeros((4, 64), np.float32), np.zeros(3, np.float32)
    ),
    "an unknown type": Weights(99, np.zeros((4, 64), np.float32)),
}


@pytest.mark.parametrize("name", ODD)
def test_the_library_refuses_a_matrix_of_other_sizes(name):
    shape = NativeShape(1, 64, 1, 1, 64, 64, 0, 0, 1e-5, 1.0)
    model = NativeModel(shape, weights.plain(np.zeros((4, 64), np.float32)))
    with pytest.raises(ModelError, match="native code refuses set_matrices"):
        model.set_head(np.ones(64, np.float32), ODD[name])


@pytest.mark.parametrize("place", ["norm", "query_norm", "key_norm", "into", "out"])
def test_the_library_refuses_a_block_of_other_sizes(place):
    shape = NativeShape(1, 64, 1, 1, 64, 64, 0, 0, 1e-5, 1.0)
    model = NativeModel(shape, weights.plain(np.zeros((4, 64), np.float32)))
    square, short = weights.plain(np.zeros((64, 64), np.float32)), np.ones(18, np.float32)
    block = BlockWeights(np.ones(64, np.float32), [square] * 3, square)
    model.set_layer(0, [block])
    odd = {"into": [square] * 2, "out": weights.plain(np.zeros((48, 64), np.float32))}
    with pytest.raises(ModelError, match="types or lengths are not the model's"):
        model.set_layer(0, [replace(block, **{place: odd.get(place, short)})])

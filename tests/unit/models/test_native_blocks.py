"""Products with weights in the blocks of GGUF files, rounding to blocks of 8 bits, and candidates
for draws, by native code."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from slipstream.config import NATIVE_VARIABLE
from slipstream.core.errors import ModelError
from slipstream.core.types import SamplingParams, Session
from slipstream.core.verify.draws import draw_among, draw_keys
from slipstream.models.dtypes import BFLOAT16, FLOAT32
from slipstream.models.native import library, weights
from slipstream.models.native.library import NativeShape
from slipstream.models.native.model import NativeModel
from slipstream.models.native.weights import BlockWeights, Weights
from slipstream.models.threads import set_num_threads
from support.models import tiny_gguf
from support.models.instruction_sets import available, teams
from support.models.toy import choose

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


def narrow_model(layers, inputs=64):
    shape = NativeShape(layers, inputs, 1, 1, 64, 64, 0, 0, 1e-5, 1.0)
    return NativeModel(shape, weights.plain(np.zeros((4, inputs), np.float32)))


def product_with(name):
    """The head of a model that consists of nothing else."""
    model = narrow_model(0, INPUTS)
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
    for kernel, threads in teams():
        monkeypatch.setenv(NATIVE_VARIABLE, kernel)
        set_num_threads(threads)
        seen[kernel, threads] = product_with(name).logits(TOKENS)
    first = next(iter(seen.values()))
    for key, values in seen.items():
        assert np.array_equal(values, first), key


def test_float16_weights_are_those_of_float32_in_half_the_memory():
    matrix = RNG.standard_normal((OUTPUTS, 75)).astype(np.float16)
    models = [narrow_model(0, 75) for _ in range(2)]
    kinds = (weights.FLOAT16, weights.FLOAT32)
    for model, kind, own in zip(models, kinds, (matrix, matrix.astype(np.float32)), strict=True):
        model.set_head(np.ones(75, np.float32), Weights(kind, own))
    tokens = RNG.standard_normal((ROWS, 75), dtype=np.float32)
    half, whole = (model.logits(tokens) for model in models)
    assert np.array_equal(half, whole)
    embedding = 4 * 75 * 4
    assert models[0].weight_bytes - embedding == (models[1].weight_bytes - embedding) / 2


ODD = {
    "too few bytes": Weights(weights.Q8_0, np.zeros((4, 33), np.uint8)),
    "inputs of no whole block": Weights(weights.FLOAT32, np.zeros((4, 33), np.float32)),
    "a bias of another length": Weights(
        weights.FLOAT32, np.zeros((4, 64), np.float32), np.zeros(3, np.float32)
    ),
    "an unknown type": Weights(99, np.zeros((4, 64), np.float32)),
}


@pytest.mark.parametrize("name", [*ODD, "norm", "query_norm", "key_norm", "into", "out"])
def test_the_library_refuses_a_matrix_or_a_block_of_other_sizes(name):
    model = narrow_model(1)
    if name in ODD:
        with pytest.raises(ModelError, match="native code refuses set_matrices"):
            model.set_head(np.ones(64, np.float32), ODD[name])
        return
    square, short = weights.plain(np.zeros((64, 64), np.float32)), np.ones(18, np.float32)
    block = BlockWeights(np.ones(64, np.float32), [square] * 3, square)
    model.set_layer(0, [block])
    odd = {"into": [square] * 2, "out": weights.plain(np.zeros((48, 64), np.float32))}
    with pytest.raises(ModelError, match="types or lengths are not the model's"):
        model.set_layer(0, [replace(block, **{name: odd.get(name, short)})])


GROUP = 32
SAMPLES = {
    "normal": RNG.standard_normal((200, GROUP)) * 0.05,
    "uniform": RNG.random((200, GROUP)),
    "outliers": RNG.standard_t(2, (200, GROUP)),
    "one sign": RNG.random((200, GROUP)) + 3,
    "two values": RNG.integers(0, 2, (200, GROUP)) * 0.7 - 0.1,
    "small": RNG.standard_normal((200, GROUP)) * 1e-6,
    "large": RNG.standard_normal((200, GROUP)) * 1e3,
}
SAMPLES = {name: values.astype(np.float32) for name, values in SAMPLES.items()}


@pytest.mark.parametrize("name", SAMPLES)
def test_bytes_are_the_nearest_multiples_of_a_127th_of_the_largest(name):
    values = SAMPLES[name].copy()
    values[0] = 0
    values[1] *= 1e-4  # the scale has fewer bits as float16
    scales = np.abs(values).max(1, keepdims=True) / np.float32(127)
    codes = np.rint(np.divide(values, scales, where=scales > 0, out=np.zeros_like(values)))
    expected = [scales.astype(np.float16).view(np.uint8), codes.astype(np.int8).view(np.uint8)]
    assert np.array_equal(weights.eight_bits(values).matrix, np.concatenate(expected, 1))


def test_rows_without_numbers_have_none_and_those_of_no_whole_blocks_stay_as_they_are():
    values = np.full((2, GROUP), 0.25, np.float32)
    values[1, 5] = np.nan
    found = weights.eight_bits(values).dense(np.dtype(np.float32))
    assert np.allclose(found[0], 0.25, rtol=1e-3)
    assert np.isnan(found[1]).all()
    assert weights.eight_bits(np.full((2, 33), 1.1, np.float32)).kind == weights.FLOAT32
    assert weights.eight_bits(np.ones((2, 33), np.float32)).kind == weights.NARROW_FLOAT32


# Recorded on an AMD EPYC; other processors have to give the same.
KNOWN_DIGEST = "57a168c9b79b0bce6293b9633e0f9599646860320f6a04eccfad112db015d60d"


def test_machines_make_the_same_blocks():
    numbers = np.arange(3200, dtype=np.uint64) * 2_654_435_761 % 2**32
    values = ((numbers >> 8).astype(np.float32) / 2**23 - 1) ** 3
    blocks = weights.eight_bits(values.reshape(-1, GROUP)).matrix
    assert hashlib.sha256(blocks.tobytes()).hexdigest() == KNOWN_DIGEST


@pytest.fixture(params=available() if library.PATH.is_file() else [])
def model(request, monkeypatch):
    monkeypatch.setenv(NATIVE_VARIABLE, request.param)
    return narrow_model(1)


def logits_of(count, seed):
    """From flat to peaked."""
    return np.random.default_rng(seed).standard_normal(count, np.float32) * 2 * (1 + seed % 5)


@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("count", [1, 5, 16, 300, 49_152])
def test_a_draw_among_contenders_is_that_among_all_tokens(model, count, temperature):
    numbers, num_draws = [], 40 if count < 1000 else 8
    for seed in range(num_draws):
        logits, position = logits_of(count, seed), 3 + seed
        sampling = SamplingParams(temperature=temperature, seed=seed)
        expected = choose(Session("s", 3, 100, sampling), logits, range(position))
        assert draw_among(logits, sampling, position, model.contenders) == expected
        found = model.contenders(logits, temperature, draw_keys(sampling, position))
        assert found[1] == logits.max()
        assert found[0].tolist() == sorted(set(found[0].tolist()))
        numbers.append(len(found[0]))
    assert sum(numbers) <= 1.1 * num_draws, "the noise of most draws leaves no doubt"


def test_excluded_tokens_are_never_drawn_and_no_distribution_has_no_contenders(model):
    sampling = SamplingParams(temperature=1.0, seed=1)
    logits = logits_of(1000, 1)
    logits[10:] = -np.inf
    drawn = {draw_among(logits, sampling, at, model.contenders) for at in range(50)}
    assert drawn <= set(range(10))
    for bad in (np.nan, np.inf):
        logits[17] = bad
        assert draw_among(logits, sampling, 3, model.contenders) is None
    assert model.contenders(np.full(20, -np.inf, np.float32), 1.0, (1, 2)) is None

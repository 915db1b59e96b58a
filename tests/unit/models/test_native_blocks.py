"""Laws of products with weights in the blocks of GGUF files."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from slipstream.config import NATIVE_VARIABLE
from slipstream.models.native import library, weights
from slipstream.models.native.library import NativeShape
from slipstream.models.native.model import NativeModel
from slipstream.models.native.weights import Weights
from slipstream.models.threads import num_threads, set_num_threads
from support.models.instruction_sets import available

OUTPUTS, INPUTS, ROWS = 53, 768, 21
NAMES = ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"]
RNG = np.random.default_rng(7)

pytestmark = pytest.mark.skipif(
    not library.PATH.is_file(),
    reason="no native kernels were built",
)


def random_blocks(name):
    """Every bit at random, but for scales, which are finite and not all of one size."""
    kind = GGMLQuantizationType[name]
    size = {"Q4_K": 144, "Q6_K": 210}.get(name)
    if size is None:
        return quants.quantize(RNG.standard_normal((OUTPUTS, INPUTS), dtype=np.float32) * 0.1, kind)
    blocks = RNG.integers(0, 256, (OUTPUTS, INPUTS // 256, size), dtype=np.uint8)
    scales = (RNG.random((OUTPUTS, INPUTS // 256, 2)) * 1e-3).astype(np.float16)
    where = slice(0, 4) if name == "Q4_K" else slice(208, 210)
    blocks[..., where] = scales.view(np.uint8)[..., : where.stop - where.start]
    return blocks.reshape(OUTPUTS, -1)


BLOCKS = {name: np.ascontiguousarray(random_blocks(name)) for name in NAMES}
TOKENS = RNG.standard_normal((ROWS, INPUTS), dtype=np.float32)
TOKENS[:, 32:64] = 0.0
TOKENS[3] *= 1e-35  # too small to be divided by
TOKENS[4] *= 1e20


def product_with(name):
    """The head of a model that consists of nothing else."""
    shape = NativeShape(0, INPUTS, 1, 1, 64, 64, 0, 0, 1e-5, 1.0)
    model = NativeModel(shape, weights.plain(np.zeros((1, INPUTS), np.float32)))
    head = Weights(getattr(weights, name), BLOCKS[name])
    model.set_head(np.ones(INPUTS, np.float32), head)
    return model


def dense(name):
    values = quants.dequantize(BLOCKS[name], GGMLQuantizationType[name])
    return values.astype(np.float32).reshape(OUTPUTS, INPUTS)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_stand_for_the_weights_that_gguf_says(name):
    found = np.empty((OUTPUTS, INPUTS), np.float32)
    raw = BLOCKS[name]
    library.library().slipstream_dequantise(
        getattr(weights, name), raw.ctypes.data, found.size, found.ctypes.data
    )
    assert np.array_equal(found, dense(name))


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
def test_rounding_of_tokens_to_eight_bits_changes_little(name):
    exact = TOKENS[:3].astype(np.float64) @ dense(name).astype(np.float64).T
    found = product_with(name).logits(TOKENS[:3]).astype(np.float64)
    assert np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.01


@pytest.mark.parametrize("name", NAMES)
def test_a_token_has_the_same_bits_in_any_company(name):
    model = product_with(name)
    together = model.logits(TOKENS)
    for size in range(1, ROWS):
        parts = [model.logits(TOKENS[at : at + size]) for at in range(0, ROWS, size)]
        assert np.array_equal(np.concatenate(parts), together)


@pytest.mark.parametrize("name", NAMES)
def test_all_kernels_and_any_number_of_threads_give_the_same_bits(name, monkeypatch):
    seen, before = {}, num_threads()
    try:
        for kernel in available():
            for threads in (1, 2, 4):
                monkeypatch.setenv(NATIVE_VARIABLE, kernel)
                set_num_threads(threads)
                seen[kernel, threads] = product_with(name).logits(TOKENS)
    finally:
        set_num_threads(before)
    first = next(iter(seen.values()))
    for key, values in seen.items():
        assert np.array_equal(values, first), key

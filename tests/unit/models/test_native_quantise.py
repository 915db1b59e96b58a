"""Laws of rounding weights to blocks of 8 bits in native code."""

import hashlib

import numpy as np
import pytest

from slipstream.models.native import library
from slipstream.models.native.weights import FLOAT32, NARROW_FLOAT32, eight_bits

pytestmark = pytest.mark.skipif(not library.PATH.is_file(), reason="no kernels were built")

GROUP = 32
RNG = np.random.default_rng(11)
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
    assert np.array_equal(eight_bits(values).matrix, np.concatenate(expected, 1))


def test_scales_are_rounded_to_float16_as_numpy_rounds_them():
    sizes = np.geomspace(1e-9, 65_519, 20_000, dtype=np.float32) * 127
    values = np.repeat(sizes[:, None], GROUP, 1)
    scales = np.ascontiguousarray(eight_bits(values).matrix[:, :2]).view(np.float16)
    assert np.array_equal(scales[:, 0], (sizes / np.float32(127)).astype(np.float16))


def test_what_is_no_number_makes_its_block_none():
    values = np.full((2, GROUP), 0.25, np.float32)
    values[1, 5] = np.nan
    found = eight_bits(values).dense(np.dtype(np.float32))
    assert np.allclose(found[0], 0.25, rtol=1e-3)
    assert np.isnan(found[1]).all()


def test_rows_of_no_whole_blocks_stay_as_they_are():
    values = np.full((2, 33), 1.1, np.float32)
    assert eight_bits(values).kind == FLOAT32
    assert eight_bits(np.ones((2, 33), np.float32)).kind == NARROW_FLOAT32


# Recorded on an AMD EPYC; other processors have to give the same.
KNOWN_DIGEST = "57a168c9b79b0bce6293b9633e0f9599646860320f6a04eccfad112db015d60d"


def test_machines_make_the_same_blocks():
    numbers = np.arange(3200, dtype=np.uint64) * 2_654_435_761 % 2**32
    values = ((numbers >> 8).astype(np.float32) / 2**23 - 1) ** 3
    blocks = eight_bits(values.reshape(-1, GROUP)).matrix
    assert hashlib.sha256(blocks.tobytes()).hexdigest() == KNOWN_DIGEST

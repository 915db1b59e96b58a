"""Laws of rounding weights to blocks in native code."""

import hashlib

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from slipstream.models.native import library, weights

pytestmark = pytest.mark.skipif(not library.PATH.is_file(), reason="no kernels were built")

GROUP, LEVELS = 32, 15
BYTES = {weights.Q8_0: 34, weights.Q4_1: 20}
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


def quantised(kind, values):
    values = np.ascontiguousarray(values, np.float32)
    out = np.empty((values.size // GROUP, BYTES[kind]), np.uint8)
    address = (values.ctypes.data, values.size, out.ctypes.data)
    assert library.library().slipstream_quantise(kind, *address) == 0
    return out


def dequantised(kind, blocks):
    out = np.empty((len(blocks), GROUP), np.float32)
    library.library().slipstream_dequantise(kind, blocks.ctypes.data, out.size, out.ctypes.data)
    return out


def squared_errors(values, found):
    return ((values.astype(float) - found.astype(float)) ** 2).sum(1)


@pytest.mark.parametrize("name", SAMPLES)
def test_bytes_are_the_nearest_multiples_of_a_127th_of_the_largest(name):
    values = SAMPLES[name].copy()
    values[0] = 0
    values[1] *= 1e-4  # the scale has fewer bits as float16
    scales = np.abs(values).max(1, keepdims=True) / np.float32(127)
    codes = np.rint(np.divide(values, scales, where=scales > 0, out=np.zeros_like(values)))
    expected = [scales.astype(np.float16).view(np.uint8), codes.astype(np.int8).view(np.uint8)]
    assert np.array_equal(quantised(weights.Q8_0, values), np.concatenate(expected, 1))


def test_numbers_are_rounded_to_float16_as_numpy_rounds_them():
    sizes = np.geomspace(1e-9, 65_519, 20_000, dtype=np.float32)
    values = np.repeat(np.concatenate([sizes, -sizes, [65_520.0]])[:, None], GROUP, 1)
    minimum = np.ascontiguousarray(quantised(weights.Q4_1, values)[:, 2:4]).view(np.float16)
    with np.errstate(over="ignore"):
        assert np.array_equal(minimum[:, 0], values[:, 0].astype(np.float16))


def plain(values):
    """Codes that span from the least value to the largest, as GGUF files have them."""
    return quants.dequantize(
        quants.quantize(values, GGMLQuantizationType.Q4_1), GGMLQuantizationType.Q4_1
    )


def thorough(values):
    """The least squared errors that a long search in float64 finds."""
    x = values.astype(float)
    low, span = x.min(1, keepdims=True), np.ptp(x, 1)[:, None]
    best = np.full(len(x), np.inf)
    for excess in np.linspace(-0.1, 0.25, 36):
        scale, minimum = span * (1 - 2 * excess) / LEVELS, low + excess * span
        for _ in range(12):
            codes = np.clip(np.rint((x - minimum) / np.where(scale > 0, scale, 1)), 0, LEVELS)
            best = np.minimum(best, ((scale * codes + minimum - x) ** 2).sum(1))
            centred = codes - codes.mean(1, keepdims=True)
            spread = (centred**2).sum(1, keepdims=True)
            scale = (centred * x).sum(1, keepdims=True) / np.where(spread > 0, spread, 1)
            minimum = x.mean(1, keepdims=True) - scale * codes.mean(1, keepdims=True)
    return best


@pytest.mark.parametrize("name", SAMPLES)
def test_nibbles_are_never_worse_than_plain_rounding(name):
    values = SAMPLES[name]
    found = squared_errors(values, dequantised(weights.Q4_1, quantised(weights.Q4_1, values)))
    assert (found <= squared_errors(values, plain(values)) * (1 + 1e-5) + 1e-30).all()


@pytest.mark.parametrize("name", ["normal", "uniform", "outliers"])
def test_nibbles_are_nearly_as_good_as_a_long_search_in_float64(name):
    values = SAMPLES[name]
    found = squared_errors(values, dequantised(weights.Q4_1, quantised(weights.Q4_1, values)))
    assert found.sum() < 0.86 * squared_errors(values, plain(values)).sum()
    assert found.sum() < 1.06 * thorough(values).sum()


def test_values_that_nibbles_hold_exactly_keep_their_codes():
    blocks = RNG.integers(0, 256, (300, 20), dtype=np.uint8)
    scales = np.stack([RNG.random(300) + 0.01, RNG.standard_normal(300)], 1).astype(np.float16)
    blocks[:, :4] = scales.view(np.uint8)
    blocks[:, 4] = 0xF0  # the first code is 0, another is 15
    values = dequantised(weights.Q4_1, blocks)
    again = dequantised(weights.Q4_1, quantised(weights.Q4_1, values))
    assert np.array_equal(again, values)


@pytest.mark.parametrize("kind", BYTES)
def test_equal_values_have_one_code_and_no_number_stays_none(kind):
    values = np.full((3, GROUP), 0.25, np.float32)
    values[1] = 0
    values[2, 5] = np.nan
    found = dequantised(kind, quantised(kind, values))
    assert np.allclose(found[0], 0.25, rtol=1e-3)
    assert (found[1] == 0).all()
    assert np.isnan(found[2]).all()


# Recorded on an AMD EPYC; other processors have to give the same.
KNOWN_DIGEST = "a1315221fc340ec371bfd87081917da26c31e30512b37d79aed9bedc2f881937"


def test_machines_make_the_same_blocks():
    numbers = np.arange(3200, dtype=np.uint64) * 2_654_435_761 % 2**32
    values = ((numbers >> 8).astype(np.float32) / 2**23 - 1) ** 3
    blocks = b"".join(quantised(kind, values).tobytes() for kind in BYTES)
    assert hashlib.sha256(blocks).hexdigest() == KNOWN_DIGEST


@pytest.mark.parametrize(("kind", "count"), [(weights.Q4_K, 256), (weights.Q8_0, 33)])
def test_other_kinds_and_parts_of_blocks_are_refused(kind, count):
    values, out = np.zeros(count, np.float32), np.zeros(2 * count, np.uint8)
    address = (values.ctypes.data, count, out.ctypes.data)
    assert library.library().slipstream_quantise(kind, *address) == -1
    assert not out.any()

"""Noise is a function of (seed, position, purpose, index), well mixed and the same everywhere."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.verify.keyed_noise import Purpose, gumbel_of, uniform
from slipstream.core.verify.noise import MAX_GUMBEL, gumbel, uniforms

SEEDS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**24)


@settings(max_examples=50, deadline=None)
@given(SEEDS, POSITIONS, st.sampled_from(Purpose), st.lists(st.integers(0, 2**31 - 1), min_size=1))
def test_one_number_alone_has_the_bits_it_has_among_many(seed, position, purpose, ids):
    many = uniforms(seed, position, np.array(ids), purpose=purpose)
    assert many.tolist() == [uniform(seed, position, purpose, index) for index in ids]


def test_the_bits_are_pinned():
    # Whoever changes these breaks every seed in use, and the agreement of old and new replicas.
    pinned = [0.07449964433908463, 0.12482178211212158, 0.010516339913010597]
    assert [uniform(seed, 7, Purpose.DRAW, 11) for seed in (0, 1, 2**64 - 1)] == pinned


def test_the_noise_of_one_token_is_its_noise_among_many():
    whole = gumbel(5, 9, 1000, purpose=Purpose.DRAW)
    alone = [gumbel_of(5, 9, token, purpose=Purpose.DRAW) for token in range(1000)]
    assert alone == pytest.approx(whole.tolist(), rel=1e-5, abs=1e-5)


def test_noise_is_that_of_double_precision_up_to_one_rounding():
    u = uniforms(5, 9, 50_000, purpose=Purpose.DRAW)
    exact = -np.log(-np.log1p(-u.astype(float)))
    assert np.abs(gumbel(5, 9, 50_000, purpose=Purpose.DRAW) - exact).max() < 2e-6


def test_noise_is_finite_at_both_ends_of_the_hash_and_never_exceeds_its_bound():
    smallest = 0.5 * 2.0**-32
    assert 22.8 < -math.log(-math.log1p(-smallest)) < MAX_GUMBEL
    noise = np.concatenate([gumbel(1, at, 50_000, purpose=Purpose.DRAW) for at in range(40)])
    assert noise.dtype == np.float32 and np.isfinite(noise).all()
    u = np.concatenate([uniforms(1, at, 50_000, purpose=Purpose.DRAW) for at in range(40)])
    assert u.dtype == np.float32 and u.min() > 0 and u.max() < 1


@pytest.mark.parametrize("vary", ["id", "position", "seed", "high bits of the seed"])
def test_numbers_are_uniform_along_every_argument(vary):
    count, cells = 1 << 14, 64
    if vary == "id":
        u = uniforms(3, 17, count, purpose=Purpose.DRAW)
    else:
        keys = {
            "position": lambda i: (3, i),
            "seed": lambda i: (i, 17),
            "high bits of the seed": lambda i: (i << 50, 17),
        }[vary]
        u = np.array([uniform(*keys(i), Purpose.DRAW, 42) for i in range(count)])
    observed = np.histogram(u, bins=cells, range=(0, 1))[0]
    expected = count / cells
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    # Mean 63, deviation 11.2: six deviations leave a chance far below one in a million.
    assert 63 - 6 * 11.2 < chi_square < 63 + 6 * 11.2


@pytest.mark.parametrize(
    "other",
    [(3, 18, Purpose.DRAW), (4, 17, Purpose.DRAW), (3, 17, Purpose.CANDIDATE)],
    ids=["position", "seed", "purpose"],
)
def test_neighbouring_streams_are_not_correlated(other):
    count = 1 << 16
    a = uniforms(3, 17, count, purpose=Purpose.DRAW)
    b = uniforms(other[0], other[1], count, purpose=other[2])
    assert abs(np.corrcoef(a, b)[0, 1]) < 6 / math.sqrt(count)
    assert abs(np.corrcoef(a[1:], b[:-1])[0, 1]) < 6 / math.sqrt(count)


def test_every_purpose_has_a_stream_of_its_own():
    streams = [tuple(uniforms(3, 17, 8, purpose=purpose).tolist()) for purpose in Purpose]
    assert len(set(streams)) == len(Purpose)


def test_flipping_any_input_bit_flips_half_of_the_output_bits():
    def bits(ids):
        return (uniforms(3, 17, ids, purpose=Purpose.DRAW).astype(float) * 2**24).astype(int)

    ids = np.arange(2000)
    base = bits(ids)
    for bit in range(16):
        changed = base ^ bits(ids ^ (1 << bit))
        # The upper bits of the number; the lowest ones round away for numbers near 1.
        share = sum(float((changed >> b & 1).mean()) for b in range(8, 24)) / 16
        assert abs(share - 0.5) < 0.03, f"bit {bit}"

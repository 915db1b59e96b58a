"""The distribution of a slot is what its parameters say, whatever shortcut computes it."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.errors import InvalidRequest, check_token_ids
from slipstream.core.types import SamplingParams
from slipstream.core.verify.distribution import SamplingDistribution
from slipstream.core.verify.keyed_noise import Purpose, gumbels_of, uniform
from slipstream.core.verify.noise import MAX_GUMBEL, gumbel, uniforms
from support.models import oracle

PROMPT = [3, 5, 5]


def scores_of(logits, **params):
    return SamplingDistribution(SamplingParams(**params), 0).scores(np.float32(logits), ())


def kept(scores):
    return {token for token, score in enumerate(scores.tolist()) if score > -math.inf}


def naive_penalties(logits, prefix, sampling, num_prompt_tokens):
    """Token by token, as the documentation of the parameters words it."""
    out = list(logits)
    for token, bias in sampling.logit_bias:
        out[token] += bias
    output = prefix[num_prompt_tokens:]
    for token in range(len(out)):
        if token in prefix:
            factor = sampling.repetition_penalty
            out[token] = out[token] / factor if out[token] > 0 else out[token] * factor
        out[token] -= sampling.presence_penalty * (token in output)
        out[token] -= sampling.frequency_penalty * output.count(token)
    return out


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-9, 9, width=32), min_size=8, max_size=8),
    st.lists(st.integers(0, 7), max_size=9),
    st.tuples(st.floats(0.5, 2), st.floats(-2, 2), st.floats(-2, 2)),
    st.lists(st.tuples(st.integers(0, 7), st.floats(-5, 5)), max_size=2, unique_by=lambda b: b[0]),
)
def test_bias_and_penalties_are_those_of_the_prefix_of_the_slot(logits, output, penalties, bias):
    names = "repetition_penalty", "presence_penalty", "frequency_penalty"
    given = dict(zip(names, penalties, strict=True))
    sampling = SamplingParams(**given, logit_bias=tuple(bias))
    prefix = PROMPT + output
    found = SamplingDistribution(sampling, len(PROMPT)).scores(np.float32(logits), prefix)
    expected = naive_penalties(logits, prefix, sampling, len(PROMPT))
    assert found.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_logits_are_never_written_to():
    logits = np.float32([1.0, 2.0, 3.0, 4.0])
    sampling = SamplingParams(
        temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=2.0, logit_bias=((1, 2),)
    )
    SamplingDistribution(sampling, 1).scores(logits, [1, 2])
    assert logits.tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 0.7, 100.0])
def test_every_temperature_gives_a_law(temperature):
    logits, sampling = [5.0, 7.0, -900.0], SamplingParams(temperature=temperature)
    probs = SamplingDistribution(sampling, 1).probs(np.float32(logits), [])
    expected = torch.softmax((torch.tensor(logits, dtype=torch.float64) - 7) / temperature, -1)
    assert probs.tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_greedy_law_is_one_hot_at_the_first_best_token():
    greedy = SamplingDistribution(SamplingParams(top_k=1, top_p=0.1), 1)
    assert greedy.probs(np.float32([1.0, 3, 3]), []).tolist() == [0, 1, 0]


WEIGHTS = st.lists(st.sampled_from([1, 2, 4, 8, 64]), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(WEIGHTS, st.integers(1, 1000))
def test_top_p_keeps_what_the_sorted_definition_keeps_ties_included(weights, thousandths):
    # Powers of two: their ratios are exact in floating point, so ties and borders are, too.
    top_p = thousandths / 1000
    logits = np.log2(np.float32(weights)) * math.log(2)
    expected = oracle.top_p([Fraction(weight) for weight in weights], Fraction(top_p))
    mass = sum(Fraction(weights[token]) for token in expected)
    worst = min(Fraction(weights[token]) for token in expected)
    total = sum(weights)
    near = min(abs(mass - Fraction(top_p) * total), abs(mass - worst - Fraction(top_p) * total))
    if top_p < 1 and 0 < near < Fraction(total, 10**6):
        return  # closer to the border than exp() is exact
    assert kept(scores_of(logits.tolist(), temperature=1, top_p=top_p)) == expected


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_partial_selection_agrees_with_a_full_sort_on_a_large_row(scale):
    tied = torch.randn(20_000, generator=torch.Generator().manual_seed(1)) * scale
    logits = tied.bfloat16().float().numpy()
    order = sorted(range(20_000), key=lambda token: (-float(logits[token]), token))
    weights = np.exp(logits - logits.max()).astype(float)
    count = 1 + int((weights[order].cumsum(0)[:-1] < 0.9 * weights.sum()).sum())
    scores = SamplingDistribution(SamplingParams(temperature=1, top_p=0.9), 1).scores(logits, [])
    assert kept(scores) == set(order[:count])


def logs(*weights):
    return [math.log(weight) for weight in weights]


@pytest.mark.parametrize(
    ("logits", "params", "expected"),
    [
        ([1.0, 2.0], {"top_k": 99}, {0, 1}),
        ([1.0, 2.0, 2.0, 2.0], {"top_k": 2}, {1, 2}),  # smaller ids first among equals
        ([0.0] * 1000, {"top_p": 0.5}, set(range(500))),  # as many of equals as the mass needs
        ([0.0, 3.0, 3.0], {"top_p": 1e-9}, {1}),  # at least one
        ([0.0, 3.0, 3.0], {"top_k": 1}, {1}),
        ([0.0, 3.0, 3.0], {"min_p": 1.0}, {1, 2}),
        (logs(8, 4, 1.9, 1), {"min_p": 0.25}, {0, 1}),  # relative to the best token
        # Each filter works on what the one before left over: after top_k 2 the masses are 2/3 and
        # 1/3, so that top_p 0.6 keeps one token, where of the whole vocabulary it keeps two.
        (logs(8, 4, 2, 2), {"top_p": 0.6}, {0, 1}),
        (logs(8, 4, 2, 2), {"top_k": 2, "top_p": 0.6}, {0}),
        # Temperature comes before the filters.
        (logs(4, 2, 1, 1), {"top_p": 0.6}, {0, 1}),
        (logs(4, 2, 1, 1), {"temperature": 0.5, "top_p": 0.6}, {0}),
    ],
)
def test_filters_keep_what_they_say_in_their_order(logits, params, expected):
    assert kept(scores_of(logits, **{"temperature": 1, **params})) == expected


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-5, 5, width=32), min_size=3, max_size=12, unique=True),
    st.integers(1, 12),
    st.floats(0.05, 1),
    st.floats(0, 1),
)
def test_scores_and_probabilities_are_two_views_of_one_law(logits, top_k, top_p, min_p):
    sampling = SamplingParams(temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p)
    context = SamplingDistribution(sampling, 1)
    row = np.float32(logits)
    scores, probs = context.scores(row, []), context.probs(row, [])
    values, ids = context.support(row, [])
    assert torch.softmax(torch.from_numpy(scores), -1).tolist() == pytest.approx(
        probs.tolist(), abs=1e-6
    )
    if ids is not None:
        assert ids.tolist() == sorted(kept(scores))
        assert np.array_equal(scores[ids], values)


def test_a_bias_on_a_token_outside_the_vocabulary_is_refused():
    check_token_ids("logit_bias", [99, 100], 101)
    with pytest.raises(InvalidRequest, match="token id 100, not 0 to 99"):
        check_token_ids("logit_bias", [99, 100], 100)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 1e-38), ("temperature", math.nan), ("repetition_penalty", 0.001)],
)
def test_a_divisor_that_would_overflow_the_scores_is_refused(name, value):
    with pytest.raises(InvalidRequest, match=name):
        SamplingParams(**{name: value})


def test_the_smallest_divisors_together_leave_numbers():
    sampling = SamplingParams(temperature=1e-30, repetition_penalty=0.01)
    scores = SamplingDistribution(sampling, 1).scores(np.float32([3e4, -3e4, 0.0]), (0, 1))
    assert scores.max() == 0
    assert not np.isnan(scores).any()


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
    alone = gumbels_of(5, 9, range(1000), purpose=Purpose.DRAW)
    assert alone == pytest.approx(whole.tolist(), rel=1e-5, abs=1e-5)


def test_noise_is_that_of_double_precision_up_to_one_rounding():
    exact = -np.log(-np.log1p(-uniforms(5, 9, 50_000, purpose=Purpose.DRAW).astype(float)))
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

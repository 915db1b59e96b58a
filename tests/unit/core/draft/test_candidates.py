"""Candidates come in exact order, and draws have the distribution they claim."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.draft import candidates
from slipstream.core.draft.candidates import draw_without_replacement
from slipstream.core.errors import ModelError
from slipstream.core.types import SparseDistribution
from slipstream.core.verify.distribution import argmax_first, ordered_top
from support.models import oracle

# Few values: ties everywhere, as in bf16.
TIED = st.lists(st.sampled_from([-0.0, 0.0, 1.5, -2.0, 3.0, float("-inf")]), min_size=1)


def by_definition(scores, k):
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]


@settings(max_examples=200, deadline=None)
@given(TIED, st.integers(1, 60))
def test_the_order_is_value_descending_then_id_ascending(scores, k):
    values, ids = ordered_top(np.float32(scores), k)
    assert ids.tolist() == by_definition(scores, k)
    assert values.tolist() == [scores[i] for i in ids.tolist()]


@pytest.mark.parametrize("k", [1, 7, 64, 1000, 5000])
def test_large_tied_rows_are_selected_without_their_order_being_lost(k):
    for row in (np.random.default_rng(k).standard_normal((3, 5000)) * 12).round() / 4:
        assert ordered_top(np.float32(row), k)[1].tolist() == by_definition(row.tolist(), k)


@settings(max_examples=100, deadline=None)
@given(TIED.filter(lambda scores: max(scores) > -math.inf))
def test_the_best_token_is_the_first_among_equals(scores):
    assert argmax_first(np.float32(scores)) == by_definition(scores, 1)[0]


@pytest.mark.parametrize("bad", [-math.inf, math.inf, math.nan])
def test_scores_whose_best_is_no_finite_number_have_no_best_token(bad):
    with pytest.raises(ModelError, match="the best score of a position"):
        argmax_first(np.float32([bad, bad]))


@pytest.mark.parametrize("size", [3, 500])
def test_more_of_the_best_than_there_are_numbers_is_an_error(size):
    with pytest.raises(ModelError, match="no numbers"):
        ordered_top(np.full(size, math.nan, np.float32), 2)


def test_a_sparse_law_is_the_best_tokens_that_can_be_drawn_renormalised():
    distribution = candidates.sparse_distribution(np.log(np.float32([1, 4, 2, 4])), 3)
    assert distribution.tokens == (1, 3, 2)
    assert distribution.probs == pytest.approx((0.4, 0.4, 0.2))
    assert candidates.sparse_distribution(np.float32([0, -math.inf, 0]), 3).tokens == (0, 2)


def test_draws_without_replacement_differ_and_are_capped_by_the_support():
    distribution = SparseDistribution((5, 6, 7), (0.5, 0.5, 0.0))
    for seed in range(50):
        assert sorted(draw_without_replacement(distribution, 3, seed=seed, position=1)) == [5, 6]


@pytest.mark.parametrize("replacement", [False, True])
def test_ordered_draws_have_the_law_of_sequential_sampling(replacement):
    q, count = oracle.distribution(4, 2, 1, 1), 6_000
    distribution = SparseDistribution((10, 20, 30, 40), tuple(float(x) for x in q))
    draw = candidates.draw_with_replacement if replacement else draw_without_replacement
    seen = Counter(draw(distribution, 2, seed=seed, position=9) for seed in range(count))
    expected = {
        tuple((10, 20, 30, 40)[i] for i in tokens): chance
        for tokens, chance in oracle.draws(q, 2, replacement=replacement)
    }
    assert set(seen) <= set(expected)
    observed = [Fraction(seen[pair], count) for pair in expected]
    # Up to 16 cells of 6000 draws: the expected distance is about 0.015.
    assert oracle.total_variation(observed, list(expected.values())) < 0.04


def test_draws_do_not_depend_on_the_order_the_law_is_listed_in():
    distribution = SparseDistribution((1, 2, 3), (0.5, 0.3, 0.2))
    turned = SparseDistribution((3, 1, 2), (0.2, 0.5, 0.3))
    for seed in range(20):
        one, other = (
            draw_without_replacement(at, 3, seed=seed, position=4) for at in (distribution, turned)
        )
        assert one == other

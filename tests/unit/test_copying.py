"""How far to copy: as far as it is likely to be right, which each session learns for itself."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.copying import Chances, Copying
from slipstream.core.errors import InvalidRequest

OUTCOMES = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 6), st.integers(0, 6)), max_size=9)


def taught(outcomes):
    chances = Chances()
    for match, num_kept, num_wrong in outcomes:
        copied = [1] * num_kept + [2] * num_wrong
        chances.learn(match, copied, [1] * len(copied))
    return chances


def test_longer_matches_are_trusted_more_before_anything_is_known():
    chances = [Chances().of(match) for match in range(1, 65)]
    assert all(low < high for low, high in itertools.pairwise(chances))
    assert chances[0] == pytest.approx(1 / 3)


@given(OUTCOMES, st.integers(1, 80))
def test_a_chance_is_a_probability(outcomes, match):
    assert 0 < taught(outcomes).of(match) < 1


@given(OUTCOMES, st.integers(1, 12), st.integers(1, 20))
def test_every_further_token_of_a_copy_is_less_likely(outcomes, match, depth):
    reaches = taught(outcomes).reaches(match, depth)
    assert len(reaches) == depth
    assert all(before > after for before, after in itertools.pairwise((1.0, *reaches)))


def test_kept_copies_are_trusted_further_and_failed_copies_less():
    fresh = Chances().reaches(2, 20)
    assert taught([(2, 9, 0)] * 5).reaches(2, 20) > fresh
    assert taught([(2, 0, 9)] * 5).reaches(2, 20) < fresh


def test_what_fails_behind_short_matches_says_nothing_of_long_ones():
    chances = taught([(1, 0, 1)] * 50)
    assert chances.of(1) < 0.1
    assert chances.of(8) == Chances().of(8)


def test_only_the_first_wrong_token_of_a_copy_counts_against_it():
    once, long = taught([(6, 0, 1)]), taught([(6, 0, 9)])
    assert once.of(6) == long.of(6)


def test_a_copy_that_was_right_as_far_as_the_text_goes_did_not_fail():
    chances = Chances()
    chances.learn(6, [1, 2, 3], [1])
    assert chances.of(6) > Chances().of(6)


@pytest.mark.parametrize(
    "rule",
    [
        {"shortest": 0, "max_depth": 1},
        {"shortest": 1, "max_depth": 0},
        {"shortest": 1, "max_depth": 1, "alone": float("nan")},
    ],
)
def test_rules_that_mean_nothing_are_refused(rule):
    with pytest.raises(InvalidRequest, match="must be"):
        Copying(**rule)

"""How far to trust copies: as far as they were right, which each session learns for itself."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.draft.ngram import Acceptance, MatchAcceptance
from slipstream.core.errors import InvalidRequest
from slipstream.core.tree import Copying

OUTCOMES = st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=60)


def taught(outcomes):
    acceptance = MatchAcceptance()
    for match, is_right in outcomes:
        acceptance.learn(match, is_right=is_right)
    return acceptance


def test_longer_matches_are_trusted_more_before_anything_is_known():
    fresh = [MatchAcceptance().of(match) for match in range(1, 65)]
    assert all(low < high for low, high in itertools.pairwise(fresh))
    assert fresh[0] == pytest.approx(1 / 3)


@given(OUTCOMES, st.integers(1, 80))
def test_what_is_trusted_is_a_probability(outcomes, match):
    assert 0 < taught(outcomes).of(match) < 1


def test_copies_that_were_right_are_trusted_more_and_wrong_ones_less():
    fresh = MatchAcceptance().of(2)
    assert taught([(2, True)] * 5).of(2) > fresh > taught([(2, False)] * 5).of(2)


def test_what_fails_behind_short_matches_says_nothing_of_long_ones():
    acceptance = taught([(1, False)] * 50)
    assert acceptance.of(1) < 0.1
    assert acceptance.of(8) == MatchAcceptance().of(8)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60))
def test_a_source_is_never_believed_more_than_it_says(outcomes):
    store = Acceptance(0.7)
    for expected, is_right in outcomes:
        store.learn(expected, is_right=is_right)
        assert 0 < store.share <= 1


def test_a_source_is_believed_as_far_as_it_holds():
    right, wrong = Acceptance(0.7), Acceptance(0.7)
    assert right.share == pytest.approx(0.7)
    for _ in range(200):
        right.learn(0.5, is_right=True)
        wrong.learn(0.5, is_right=False)
    assert right.share == 1
    assert wrong.share < 0.1


NAN = float("nan")


@pytest.mark.parametrize("rule", [(0, 1), (1, 0), (1, 1, NAN)])
def test_rules_that_mean_nothing_are_refused(rule):
    with pytest.raises(InvalidRequest, match="must be"):
        Copying(*rule)

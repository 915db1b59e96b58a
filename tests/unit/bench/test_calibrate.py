"""Calibration: what is fitted is what was seen, and the best of each form goes on."""

from dataclasses import replace

import pytest

from slipstream.bench.calibrate import BEFORE, Timed, combined, finalists, name_of, settings
from slipstream.core.policy.fit import fit_calibration, monotone
from slipstream.core.policy.profile import Profile
from slipstream.core.types import Shape, StopPolicy

BASE = Profile(lookup=1)


def coin(hits, misses, *, top_prob):
    """Outcomes of tokens of one confidence."""
    return [(top_prob, True)] * hits + [(top_prob, False)] * misses


def test_a_calibration_is_the_share_of_right_tokens_at_that_confidence():
    calibration = fit_calibration(coin(300, 100, top_prob=0.5) + coin(380, 20, top_prob=1.0))
    assert calibration.probability(0.5) == pytest.approx(0.75, abs=0.01)
    assert calibration.probability(1.0) == pytest.approx(0.95, abs=0.01)
    assert list(calibration.points) == sorted(calibration.points)


def test_without_any_token_a_calibration_takes_the_draft_at_its_word():
    assert fit_calibration([]).points == tuple(i / 10 for i in range(11))


def test_violations_of_order_are_pooled_by_weight():
    assert monotone([0.1, 0.5, 0.2, 0.9], [1, 1, 2, 1]) == pytest.approx([0.1, 0.3, 0.3, 0.9])
    assert monotone([0.3, 0.2, 0.1], [1, 1, 1]) == pytest.approx([0.2] * 3)


@pytest.mark.parametrize("has_decision_model", [True, False])
def test_every_policy_is_tried_as_a_chain_and_with_leaves(has_decision_model):
    tried = settings(BASE, depth=5, has_decision_model=has_decision_model)
    stops = {StopPolicy.FIXED, StopPolicy.SVIP, StopPolicy.COST}
    assert {item.stop for item in tried} - {StopPolicy.DECISION} == stops
    assert (StopPolicy.DECISION in {item.stop for item in tried}) == has_decision_model
    assert {item.shape for item in tried} == {Shape.CHAIN, Shape.CAPE}
    assert len({name_of(item) for item in tried}) == len(tried)
    assert max(item.max_depth for item in tried) == 5


def timed(threshold, greedy, sampled, **changes):
    both = {"threshold": threshold, "threshold_sampled": threshold}
    profile = replace(BASE, stop=StopPolicy.SVIP, **both, **changes)
    return Timed(name_of(profile), profile, {"ratio_decode": greedy}, {"ratio_decode": sampled})


def test_a_form_has_the_best_threshold_of_each_kind_and_the_fastest_form_leads():
    cape = [timed(0.2, 2.0, 1.0), timed(0.4, 1.5, 1.4)]
    chain = [timed(0.3, 1.9, 1.3, shape=Shape.CHAIN)]
    best = combined([*chain, *cape])
    assert [item.shape for item in best] == [Shape.CAPE, Shape.CHAIN]
    assert (best[0].threshold, best[0].threshold_sampled) == (0.2, 0.4)
    assert chain[0].ratio == pytest.approx((1.9 * 1.3) ** 0.5)


def test_finalists_are_the_best_with_every_lookup_beside_the_profile_from_before():
    best = combined([timed(0.2, 2.0, 1.0), timed(0.3, 1.9, 1.3, shape=Shape.CHAIN)])
    named = finalists(Profile(), best, 1)
    assert {item.lookup for name, item in named.items() if name != BEFORE} == {0, 1, 3}
    assert next(iter(named)) == BEFORE
    assert set(finalists(None, best, 2)) == {*map(name_of, best), *named} - {BEFORE}

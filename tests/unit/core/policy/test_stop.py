"""Each stop policy stops where its paper says, and falls back to the simpler one."""

import math

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.stop import Calibration, StopSignal, make_stop
from slipstream.core.types import StopPolicy

SURE, UNSURE = 0.1, 2.0
ENTROPY_AT_DEFAULT = 0.3**2 / 0.15  # 0.6 nats


def signal(depth=1, top_prob=0.9, entropy=SURE, score=None, path_prob=1.0):
    return StopSignal(depth, top_prob, entropy, score, path_prob)


def test_a_fixed_length_is_drafted_whatever_the_signal():
    stop = make_stop(StopPolicy.FIXED, max_depth=3)
    stops = [stop.should_stop(signal(depth, entropy=UNSURE)) for depth in (1, 2, 3)]
    assert stops == [False, False, True]


def test_svip_stops_above_an_entropy_of_six_tenths_of_a_nat():
    stop = make_stop(StopPolicy.SVIP)
    for entropy in (ENTROPY_AT_DEFAULT - 1e-6, -1e-9):  # rounding goes below zero
        assert not stop.should_stop(signal(entropy=entropy))
    for entropy in (ENTROPY_AT_DEFAULT + 1e-6, math.inf):
        assert stop.should_stop(signal(entropy=entropy))


@pytest.mark.parametrize(
    ("policy", "threshold", "lacking"),
    [(StopPolicy.SVIP, None, "entropy"), (StopPolicy.COST, 0.5, "path_prob")],
)
def test_a_policy_without_its_signal_drafts_to_the_limit(policy, threshold, lacking):
    stop = make_stop(policy, threshold, max_depth=4)
    assert not stop.should_stop(signal(3, **{lacking: math.nan}))
    assert stop.should_stop(signal(4, **{lacking: math.nan}))


def test_a_decision_stops_at_its_threshold_and_below():
    for is_sampled, threshold in ((False, 0.4), (True, 0.6)):
        stop = make_stop(StopPolicy.DECISION, is_sampled=is_sampled)
        assert stop.should_stop(signal(score=threshold))
        assert not stop.should_stop(signal(score=threshold + 0.01))
        named = make_stop(StopPolicy.DECISION, 0.2, is_sampled=is_sampled)
        assert not named.should_stop(signal(score=0.21))


@pytest.mark.parametrize("score", [None, math.nan])
def test_a_decision_without_a_score_is_left_to_svip(score):
    stop = make_stop(StopPolicy.DECISION)
    assert stop.should_stop(signal(score=score, entropy=UNSURE))
    assert not stop.should_stop(signal(score=score, entropy=SURE))
    assert not stop.should_stop(signal(score=score, entropy=math.nan))


def test_cost_goes_on_while_the_next_token_is_worth_the_step():
    stop = make_stop(StopPolicy.COST, 0.25)
    assert not stop.should_stop(signal(top_prob=0.5, path_prob=0.5))
    assert stop.should_stop(signal(top_prob=0.5, path_prob=0.49))


def test_cost_prefers_the_decision_models_score_to_calibrated_confidence():
    stop = make_stop(StopPolicy.COST, 0.25, calibration=Calibration((0.0, 0.2)))
    assert stop.should_stop(signal(top_prob=1.0))
    assert not stop.should_stop(signal(top_prob=1.0, score=0.3))
    assert stop.should_stop(signal(top_prob=1.0, score=math.nan))


@pytest.mark.parametrize("policy", [policy for policy in StopPolicy])
def test_no_policy_drafts_past_its_limit(policy):
    stop = make_stop(policy, cost_ratio=1e-9, max_depth=7)
    certain = {"top_prob": 1.0, "entropy": 0.0, "score": 1.0}
    assert not stop.should_stop(signal(6, **certain))
    assert stop.should_stop(signal(7, **certain))


def test_cost_without_any_ratio_is_refused():
    with pytest.raises(InvalidRequest, match="needs a measured cost ratio"):
        make_stop(StopPolicy.COST)


def test_a_length_out_of_range_is_refused_at_birth():
    for length in (0, 41):
        with pytest.raises(InvalidRequest, match="length is"):
            make_stop(StopPolicy.FIXED, max_depth=length)


def test_calibration_is_linear_between_its_points():
    calibration = Calibration((0.0, 0.2, 1.0))
    assert [calibration.probability(x) for x in (0.0, 0.25, 0.5, 0.75, 1.0)] == pytest.approx(
        [0.0, 0.1, 0.2, 0.6, 1.0]
    )
    assert calibration.probability(1.5) == 1.0
    assert calibration.probability(math.nan) == 0.0


@pytest.mark.parametrize("points", [(0.5,), (0.0, 1.1), (math.nan, 1.0)])
def test_calibration_points_that_are_no_probabilities_are_refused(points):
    with pytest.raises(InvalidRequest, match="calibration"):
        Calibration(points)

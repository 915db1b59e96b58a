"""Overlap that does not pay is tried ever less often."""

import pytest

from slipstream.core.policy.backoff import OverlapGain


def share_on(gain, cost_on, rounds):
    """The share of rounds with overlap, where they cost so much and the others 1."""
    num_on = 0
    for _ in range(rounds):
        is_on = gain.is_on
        num_on += is_on
        gain.record(2, cost_on if is_on else 1.0, is_on=is_on)
    return num_on / rounds


@pytest.mark.parametrize("cost_on", [0.99, 1.0, 1.3])
def test_overlap_that_does_not_pay_is_tried_ever_less_often(cost_on):
    gain = OverlapGain()
    first = share_on(gain, cost_on, 20 * gain.PHASE)
    later = share_on(gain, cost_on, 200 * gain.PHASE)
    assert 0 < later < 0.05
    assert later < first


@pytest.mark.parametrize(("before", "after"), [(1.2, 0.6), (0.6, 1.2)])
def test_a_change_is_noticed(before, after):
    gain = OverlapGain()
    share_on(gain, before, 50 * gain.PHASE)
    share_on(gain, after, 50 * gain.PHASE)
    assert (share_on(gain, after, 40 * gain.PHASE) > 0.8) is (after < 1)


def test_rounds_that_are_shorter_and_bring_fewer_tokens_do_not_pay():
    gain = OverlapGain()
    assert not gain.is_on
    for _ in range(20 * gain.PHASE):
        gain.record(1 if gain.is_on else 2, 0.6 if gain.is_on else 1.0, is_on=gain.is_on)
    assert not gain.is_on

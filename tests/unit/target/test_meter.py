"""What is offered shrinks with the batch, follows what pays, and does not flicker."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.policy.cost_curve import CostCurve
from slipstream.verifying.meter import Activity, LoadMeter, StepCost, TimeSpent
from support.models.hand_clock import HandClock

TILE = 32


def curve_of(rows=(1, 16, 32, 33, 64, 65, 96)):
    return CostCurve([(at, 0.02 * -(-at // TILE) + 0.0002 * at) for at in rows], tile=TILE)


def offered(sessions, curve=None):
    return LoadMeter(curve or curve_of()).offer(sessions)


@pytest.mark.parametrize(("sessions", "rows"), [(1, 32), (2, 16), (4, 8), (8, 4), (16, 2), (32, 1)])
def test_a_tile_is_shared_evenly(sessions, rows):
    assert offered(sessions).rows == rows


@pytest.mark.parametrize("sessions", [1, 2, 3, 8, 16, 30])
def test_an_offer_has_the_cost_of_every_step_of_the_staircase(sessions):
    curve = curve_of(rows=(1, 32, 33, 64, 65, 96))
    offer = offered(sessions, curve)
    assert offer.round_s == curve.seconds(sessions, sessions)
    for rows in range(1, offer.rows + 1):
        expected = curve.seconds(rows * sessions, sessions) / curve.seconds(sessions, sessions)
        if TILE // sessions >= 8:
            assert offer.costs.of(rows) == pytest.approx(expected, rel=0.02)
        assert 1 <= offer.costs.of(rows) <= offer.costs.of(rows + 1)


def test_a_crowd_is_met_at_once_and_leaves_after_a_few_steps():
    meter = LoadMeter(curve_of())
    assert meter.offer(1).rows == 32
    assert meter.offer(8).rows == 4
    assert [meter.offer(2).rows for _ in range(9)] == [4] * 7 + [16] * 2


def test_steps_that_only_read_prompts_say_nothing_about_the_crowd():
    meter = LoadMeter(curve_of())
    meter.offer(8)
    assert {meter.offer(0).rows for _ in range(40)} == {4}


TIMES = st.floats(allow_nan=True)
STEPS = st.tuples(st.integers(1, 64), st.integers(1, 256), st.integers(0, 10**9), TIMES)


@settings(deadline=None, max_examples=50)
@given(st.lists(STEPS, max_size=20))
def test_whatever_steps_took_every_one_has_an_offer(taken):
    meter = LoadMeter(curve_of())
    for sessions, rows, keys, seconds in taken:
        offer = meter.offer(sessions)
        assert 0 < offer.round_s < math.inf
        assert 1 <= offer.rows * sessions <= 512
        meter.record(StepCost(rows, sessions, keys, seconds))


def test_the_share_of_waiting_is_that_of_the_last_window_only():
    clock, shares = HandClock(1000.0), []
    spent = TimeSpent(clock)
    for second in range(90):
        spent.turn(Activity.WAITING if second < 30 else Activity.BUSY)
        clock.now += 1
        shares.append(spent.waiting_share())
    assert shares == [1.0] * 30 + [(30 - past) / 30 for past in range(1, 31)] + [0.0] * 30
    assert spent.totals() == {Activity.BUSY: 60, Activity.WAITING: 30, Activity.IDLE: 0}

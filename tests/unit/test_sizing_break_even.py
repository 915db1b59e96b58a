"""Where drafting begins to pay: by hand where that can be done, and as the calculator has it."""

from dataclasses import replace

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.break_even import PayOff, Setting, acceptance_of, pay_off
from slipstream.sizing.calculator import Pools, estimate
from slipstream.sizing.making import expected_tokens
from slipstream.sizing.recording import Devices, Work

DEVICES = Devices(
    ((1, 0.020), (16, 0.020), (32, 0.030), (128, 0.090)), 0.004, wire_s=0.0005, router_s=0.0002
)


def test_one_session_pays_for_verifying_for_each_drafted_token_and_for_the_way():
    found = pay_off(DEVICES, Setting(4, cost_ratio=0.1, rtt_s=0.005))
    plain_s = 0.020 + 0.0005 + 0.0002
    round_s = 0.020 + 4 * 0.1 * 0.020 + 0.005 + 2 * 0.0005 + 0.0002
    assert found.round_cost == pytest.approx(round_s / plain_s)
    assert found.speedup(0.5) == pytest.approx(
        (1 + 0.5 + 0.25 + 0.125 + 0.0625) * plain_s / round_s
    )


def test_free_drafts_of_one_session_pay_whatever_they_are_right_about():
    devices = replace(DEVICES, wire_s=1e-9, router_s=0.0)
    found = pay_off(devices, Setting(8))
    assert found.round_cost == pytest.approx(1, rel=1e-6)
    assert found.speedup(1.0) == pytest.approx(9, rel=1e-6)
    assert found.speedup(0.0) == pytest.approx(1, rel=1e-6)


def test_sessions_that_share_a_step_pay_for_all_of_its_rows():
    found = pay_off(DEVICES, Setting(4, sessions=4))
    curve = DEVICES.curve()
    plain_s, round_s = curve.seconds(4) + 0.0007, curve.seconds(20) + 0.0012
    assert found.round_cost == pytest.approx(round_s / plain_s, rel=1e-6)


@pytest.mark.parametrize("sessions", [1, 4, 16])
def test_the_speedup_is_the_gain_of_the_calculator(sessions):
    setting = Setting(5, cost_ratio=0.15, sessions=sessions)
    devices = replace(DEVICES, level_s=0.15 * 0.020)
    for acceptance in (0.2, 0.7, 0.95):
        work = Work(5, 5, expected_tokens(acceptance, 5))
        gain = estimate(devices, work, Pools(sessions, 1, sessions)).gain
        assert pay_off(DEVICES, setting).speedup(acceptance) == pytest.approx(gain)


def test_the_curve_crosses_one_at_the_break_even_and_rises_on():
    found = pay_off(DEVICES, Setting(4, cost_ratio=0.2, rtt_s=0.002))
    at = found.acceptance
    assert at is not None
    assert found.speedup(at) == pytest.approx(1)
    values = [found.speedup(step / 50) for step in range(51)]
    assert values == sorted(values)


@pytest.mark.parametrize("change", [{"cost_ratio": 0.2}, {"rtt_s": 0.02}, {"sessions": 16}])
def test_what_makes_rounds_dearer_asks_for_better_drafts(change):
    base = Setting(4, cost_ratio=0.05, rtt_s=0.001)
    cheap, dear = (pay_off(DEVICES, at) for at in (base, replace(base, **change)))
    assert cheap.acceptance is not None and dear.acceptance is not None
    assert cheap.acceptance < dear.acceptance


def test_no_draft_is_right_often_enough_for_a_round_that_costs_more_than_it_can_bring():
    assert PayOff(4, 5.01).acceptance is None
    assert PayOff(4, 5.0).acceptance == pytest.approx(1)
    assert PayOff(4, 0.9).acceptance == 0


def test_the_acceptance_of_a_number_of_tokens_is_the_one_that_makes_them():
    for acceptance in (0.1, 0.5, 0.9):
        tokens = expected_tokens(acceptance, 6)
        assert acceptance_of(tokens, 6) == pytest.approx(acceptance)


@pytest.mark.parametrize(
    "values", [{"depth": 0}, {"sessions": 0}, {"cost_ratio": -0.1}, {"rtt_s": float("inf")}]
)
def test_a_setting_that_there_is_none_of_is_refused(values):
    with pytest.raises(InvalidRequest):
        Setting(**{"depth": 4, **values})

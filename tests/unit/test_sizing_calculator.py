"""Formulas of drafts and targets: exact where that can be worked out, bounded elsewhere."""

from dataclasses import replace

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.calculator import Pools, drafts_needed, estimate
from slipstream.sizing.making import Guess, made
from slipstream.sizing.mean_values import System, bound, mean_values
from slipstream.sizing.recording import Devices, Work
from slipstream.sizing.simulator import Crowd, Fleet, simulate

DEVICES = Devices(
    ((1, 0.04), (32, 0.044), (256, 0.15)), 0.008, 0.0004, 0.001, wire_s=0.002, router_s=0.001
)
WORK = Work(4, 4, 3.0)


def test_one_session_goes_round_undisturbed():
    found = estimate(DEVICES, WORK, Pools(1, 1, 1))
    verify_s = DEVICES.curve().seconds(5)
    round_s = 4 * 0.008 + verify_s + 2 * 0.002 + 0.001
    assert found.tokens_per_s == pytest.approx(3 / round_s)
    assert found.bound_tokens_per_s == pytest.approx(3 / round_s)
    assert found.target_utilisation == pytest.approx(verify_s / round_s)
    assert found.draft_utilisation == pytest.approx(4 * 0.008 / round_s)


def test_plain_rounds_of_all_sessions_share_every_step():
    found = estimate(DEVICES, WORK, Pools(0, 2, 12))
    step_s = DEVICES.curve().seconds(6, 6)
    assert found.tokens_per_s == pytest.approx(12 / (step_s + 0.003))
    assert found.gain == pytest.approx(1)
    assert found.draft_utilisation == 0


def test_plain_rounds_are_what_the_simulator_finds():
    recording = made(Guess(0.7, 0, 64, 1), DEVICES)
    run = simulate(recording, Fleet(0, 1), Crowd(32, 8))
    found = estimate(DEVICES, recording.work(), Pools(0, 1, 8))
    assert found.tokens_per_s == pytest.approx(run.tokens_per_s, rel=0.02)


@pytest.mark.parametrize("level_s", [0.0001, 0.001, 0.002])
def test_sessions_whose_drafts_are_quick_share_every_step_as_in_the_simulator(level_s):
    devices = replace(DEVICES, level_s=level_s, level_row_s=0.0)
    recording = made(Guess(0.7, 4, 96, 1), devices, num_requests=32)
    run = simulate(recording, Fleet(8, 1), Crowd(32, 8))
    found = estimate(devices, recording.work(), Pools(8, 1, 8))
    assert found.tokens_per_s == pytest.approx(run.tokens_per_s, rel=0.05)
    assert found.step_size == 8


@pytest.mark.parametrize(("drafts", "targets", "sessions"), [(1, 1, 2), (1, 1, 8), (3, 2, 16)])
@pytest.mark.parametrize("level_s", [0.004, 0.008, 0.02])
def test_the_estimate_is_near_the_simulator_and_the_bound_above_it(
    drafts, targets, sessions, level_s
):
    devices = replace(DEVICES, level_s=level_s)
    recording = made(Guess(0.75, 4, 64, 16), devices, num_requests=4 * sessions)
    run = simulate(recording, Fleet(drafts, targets), Crowd(4 * sessions, sessions))
    found = estimate(devices, recording.work(), Pools(drafts, targets, sessions))
    assert found.tokens_per_s == pytest.approx(run.tokens_per_s, rel=1 / 3)
    assert found.tokens_per_s <= found.bound_tokens_per_s
    assert run.tokens_per_s <= found.bound_tokens_per_s * 1.05  # the first tokens are no round's


def test_twice_of_everything_does_twice_as_much():
    once, twice = (estimate(DEVICES, WORK, Pools(n, n, 6 * n)) for n in (1, 2))
    assert twice.tokens_per_s == pytest.approx(2 * once.tokens_per_s, rel=0.1)
    assert twice.plain_tokens_per_s == pytest.approx(2 * once.plain_tokens_per_s)


def test_more_drafts_never_do_less():
    rates = [estimate(DEVICES, WORK, Pools(n, 1, 12)).tokens_per_s for n in range(1, 13)]
    assert rates == sorted(rates)


def test_the_drafts_needed_are_the_fewest_that_reach_the_share():
    devices = replace(DEVICES, level_s=0.02, level_row_s=0.01)
    needed = drafts_needed(devices, WORK, targets=2, sessions=16, share=0.9)
    rates = [estimate(devices, WORK, Pools(n, 2, 16)).tokens_per_s for n in range(1, 17)]
    assert needed == 1 + next(at for at, rate in enumerate(rates) if rate >= 0.9 * rates[-1])
    assert 1 < needed < 16


def test_the_slower_role_is_the_bottleneck():
    slow_draft = replace(DEVICES, level_s=0.1)
    slow_wire = replace(DEVICES, wire_s=1.0)
    assert estimate(DEVICES, WORK, Pools(1, 1, 4)).bottleneck == "target"
    assert estimate(slow_draft, WORK, Pools(1, 1, 4)).bottleneck == "draft"
    assert estimate(slow_wire, WORK, Pools(1, 1, 4)).bottleneck == "wire"


def test_drafting_pays_above_the_break_even():
    at = estimate(DEVICES, WORK, Pools(1, 1, 4))
    for final, pays in ((at.break_even_final * 1.01, True), (at.break_even_final * 0.99, False)):
        found = estimate(DEVICES, replace(WORK, final=final), Pools(1, 1, 4))
        assert (found.gain > 1) is pays


def test_an_engine_lets_no_more_through_than_at_its_best():
    system = System(2, 3, lambda n: 0.1 * n, lambda n: 0.01, 4, 0.0)
    assert bound(system, 100) == pytest.approx(2 / 0.1)
    assert mean_values(system, 100).rounds_per_s <= 2 / 0.1 * 1.5


@pytest.mark.parametrize("numbers", [(-1, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_pools_have_somebody_in_them(numbers):
    with pytest.raises(InvalidRequest):
        Pools(*numbers)


def test_nobody_is_asked_for_more_than_all_of_it():
    with pytest.raises(InvalidRequest, match="the share is"):
        drafts_needed(DEVICES, WORK, targets=1, sessions=4, share=1.5)

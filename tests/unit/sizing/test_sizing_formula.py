"""The formula of drafts and targets: worked out by hand, and laws of any system."""

from dataclasses import replace

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.formula import DeviceTimes, MeanRound, Pools, drafts_needed, estimate

TIMES = DeviceTimes(((1, 0.04), (32, 0.044), (256, 0.15)), 0.008, 0.0004, 0.001, call_s=0.002)
ROUND = MeanRound(4, 3.0)


def test_one_session_is_never_disturbed():
    found = estimate(TIMES, ROUND, Pools(1, 1, 1))
    round_s = 4 * 0.008 + TIMES.curve().seconds(5) + 2 * 0.002
    assert found.tokens_per_s == pytest.approx(3 / round_s)
    assert found.verify_s + found.draft_s + found.calls_s == pytest.approx(round_s)


def test_plain_rounds_of_all_sessions_share_every_step():
    found = estimate(TIMES, ROUND, Pools(0, 2, 12))
    assert found.tokens_per_s == pytest.approx(12 / (TIMES.curve().seconds(6, 6) + 0.002))
    assert found.tokens_per_s == found.plain_tokens_per_s


def test_chains_have_the_expected_acceptance():
    # (1 - a^(d + 1)) / (1 - a): Leviathan et al. 2023, eq. 1.
    found = MeanRound.of_chain(0.75, 4, prompt_share=0.5)
    assert found.final == pytest.approx((1 - 0.75**5) / (1 - 0.75))
    assert found.prompt == pytest.approx(found.final / 2)
    assert MeanRound.of_chain(1.0, 4).final == 5
    assert MeanRound.of_chain(0.0, 4).final == MeanRound.of_chain(0.9, 0).final == 1


def test_twice_of_everything_does_twice_as_much():
    once, twice = (estimate(TIMES, ROUND, Pools(n, n, 6 * n)) for n in (1, 2))
    assert twice.tokens_per_s == pytest.approx(2 * once.tokens_per_s)
    assert twice.plain_tokens_per_s == pytest.approx(2 * once.plain_tokens_per_s)


def test_more_drafts_never_do_less():
    rates = [estimate(TIMES, ROUND, Pools(n, 1, 12)).tokens_per_s for n in range(1, 13)]
    assert rates == sorted(rates)


def test_the_drafts_needed_are_the_fewest_that_reach_the_share():
    times = replace(TIMES, level_s=0.02, level_token_s=0.01)
    needed = drafts_needed(times, ROUND, targets=2, sessions=16, share=0.9)
    rates = [estimate(times, ROUND, Pools(n, 2, 16)).tokens_per_s for n in range(1, 17)]
    assert needed == 1 + next(at for at, rate in enumerate(rates) if rate >= 0.9 * rates[-1])
    assert 1 < needed < 16


def test_drafting_pays_above_the_break_even():
    at = estimate(TIMES, ROUND, Pools(1, 1, 4))
    for final, pays in ((at.break_even_final * 1.01, True), (at.break_even_final * 0.99, False)):
        found = estimate(TIMES, replace(ROUND, final=final), Pools(1, 1, 4))
        assert (found.tokens_per_s > found.plain_tokens_per_s) is pays


@pytest.mark.parametrize("numbers", [(-1, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_pools_without_engines_or_sessions_are_refused(numbers):
    with pytest.raises(InvalidRequest):
        Pools(*numbers)


def test_needs_that_cannot_be_met_are_refused():
    with pytest.raises(InvalidRequest, match="the share is"):
        drafts_needed(TIMES, ROUND, targets=1, sessions=4, share=1.5)
    with pytest.raises(InvalidRequest, match="nothing is drafted"):
        drafts_needed(TIMES, MeanRound(0, 1.0), targets=1, sessions=4)


@pytest.mark.parametrize(
    "wrong", [{"level_s": 0.0}, {"call_s": -1.0}, {"verify": ((2, 0.1), (3, 0.1))}]
)
def test_devices_take_time(wrong):
    with pytest.raises(InvalidRequest):
        replace(TIMES, **wrong)

"""`slipstream size`: its formula, worked out by hand, laws of any system, and what it prints."""

import json
from dataclasses import replace

import pytest

from slipstream.cli.main import exit_code
from slipstream.cli.size import SizePlan

PLAN = SizePlan(sessions=1, acceptance=0.75, verify_session_ms=1.0, draft_ms=8.0, wire_ms=2.0)


def test_one_session_is_never_disturbed():
    # (1 - a^(d + 1)) / (1 - a): Leviathan et al. 2023, eq. 1.
    assert PLAN.final == pytest.approx((1 - 0.75**5) / (1 - 0.75))
    assert PLAN.round_ms(1) == (40.0, 4 * 8.0, 2 * 2.0)
    assert PLAN.tokens_per_s(1) == pytest.approx(1000 * PLAN.final / 76)


def test_all_sessions_of_a_target_share_a_step():
    plan = replace(PLAN, sessions=16, targets=2)
    # A pending token, four drafted ones and the prompt's share of each of 8 sessions, 32 for free.
    num_tokens = round(8 * (5 + plan.final / 2))
    assert plan.round_ms(16)[0] == pytest.approx(40 + 0.2 * (num_tokens - 32) + 7)
    assert plan.tokens_per_s(0) == pytest.approx(1000 * 16 / (40 + 7 + 2))


def test_twice_of_everything_does_twice_as_much():
    once, twice = (replace(PLAN, sessions=6 * n, targets=n) for n in (1, 2))
    for drafts in (0, 1, 3):
        assert twice.tokens_per_s(2 * drafts) == pytest.approx(2 * once.tokens_per_s(drafts))


def test_the_drafts_needed_are_the_fewest_that_reach_the_share_and_more_never_do_less():
    plan = replace(PLAN, sessions=16, targets=2, draft_ms=20.0, draft_row_ms=10.0, share=0.9)
    rates = [plan.tokens_per_s(n) for n in range(1, 17)]
    assert rates == sorted(rates)
    first = next(index for index, rate in enumerate(rates) if rate >= 0.9 * rates[-1])
    assert plan.drafts_needed == first + 1
    assert 1 < plan.drafts_needed < 16


def test_drafting_pays_above_the_break_even():
    plan = replace(PLAN, sessions=4, prompt_tokens=1)
    for acceptance in (0.2, 0.3, 0.4, 0.5, 0.6):
        other = replace(plan, acceptance=acceptance)
        pays = other.tokens_per_s(1) > other.tokens_per_s(0)
        assert pays is (other.final > other.break_even(1))


def printed(capsys, *args):
    assert exit_code(("size", *args)) == 0
    return capsys.readouterr().out


def test_size_prints_how_many_drafts_are_needed(capsys):
    values = json.loads(printed(capsys, "--sessions", "16", "--json"))
    assert values["drafts_needed"] == values["drafts"] >= 1
    assert values["gain"] == values["tokens_per_s"] / values["plain_tokens_per_s"]
    assert f"drafts needed   {values['drafts_needed']} for" in printed(capsys, "--sessions", "16")


@pytest.mark.parametrize("args", [("--depth", "0"), ("--verify-ms", "inf"), ("--wire-ms", "nan")])
def test_what_makes_no_sense_is_refused_in_a_sentence(capsys, args):
    assert exit_code(("size", *args)) == 2
    assert capsys.readouterr().err.startswith("error: ")

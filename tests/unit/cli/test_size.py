"""`slipstream size`: rounds worked out by hand, laws of any system, and what it prints."""

import json
from dataclasses import replace

import pytest

from slipstream.cli.main import exit_code
from slipstream.cli.size import Simulation, SizePlan, most_requests

PLAN = SizePlan(output_tokens=31, verify_session_ms=1.0, draft_ms=8.0, wire_ms=2.0)
RARELY = 1e-6
"""Requests a second of which none meets another."""


@pytest.mark.parametrize(
    ("drafts", "acceptance", "token_ms"),
    [
        (0, 0.0, 40 + 2),
        (1, 0.0, 40 + 4 * 8 + 2 * 2),
        (1, 1.0, (40 + 4 * 8 + 2 * 2) / 5),
        (None, 1.0, (40 + 4 * 8) / 5),
    ],
)
def test_a_request_alone_takes_the_times_of_its_steps_proposals_and_calls(
    drafts, acceptance, token_ms
):
    found = Simulation(replace(PLAN, acceptance=acceptance), drafts).run(RARELY)
    wire_ms = 0 if drafts is None else 2
    assert found["first_ms"] == pytest.approx(40 + 0.2 * (64 - 32) + wire_ms)
    # The last token has no room for a draft.
    assert found["token_ms"] == pytest.approx(token_ms, rel=0.04)


def test_requests_that_come_together_share_steps_and_passes():
    plan = replace(PLAN, acceptance=1.0, prompt_tokens=1)
    together = Simulation(plan, 1).run(1e9)
    round_ms = plan.step_ms(5 * 200, 200) + 4 * plan.level_ms(200) + 4
    assert together["token_ms"] == pytest.approx(round_ms / 5, rel=0.02)


def test_more_devices_answer_more_and_some_goals_are_met_with_drafts_alone():
    plan = replace(PLAN, draft_row_ms=4.0, token_ms=38.0)
    most = [most_requests(plan, drafts) for drafts in (1, 2, 4)]
    assert 0 < most[0] < most[1] < most[2]
    assert 0 < most_requests(plan, None) < most[2]
    assert most_requests(replace(plan, targets=2), 4) > 1.9 * most[1]
    assert most_requests(plan, 0) == most_requests(replace(plan, acceptance=0.0), 1) == 0


def test_size_prints_latencies_and_the_most_requests(capsys):
    printed = []
    for args in (("--json",), ()):
        assert exit_code(("size", "--output-tokens", "9", *args)) == 0
        printed.append(capsys.readouterr().out)
    settings = json.loads(printed[0])["settings"]
    for (name, found), line in zip(settings.items(), printed[1].splitlines(), strict=True):
        assert line.startswith(name)
        assert line.endswith(f"up to {found['requests_per_s']:.2f} requests/s")


@pytest.mark.parametrize("args", [("--depth", "0"), ("--verify-ms", "inf"), ("--wire-ms", "nan")])
def test_what_makes_no_sense_is_refused_in_a_sentence(capsys, args):
    assert exit_code(("size", *args)) == 2
    assert capsys.readouterr().err.startswith("error: ")

"""Pauses of a speculation that does not pay grow, and are short again once it has paid."""

from dataclasses import replace

import pytest

from slipstream.core.policy.backoff import Backoff, GainPrior
from slipstream.core.policy.planner import Planner
from slipstream.core.request.options import Mode, SpeculationOptions
from slipstream.core.request.profile import Profile
from slipstream.core.request.settings import resolve
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, Verdict
from support.models.rounds import round_of


def pause_after_failing(backoff):
    backoff.record(0.0)
    pause = 0
    while not backoff.allows():
        pause += 1
    return pause


def test_pauses_are_short_again_once_speculation_has_paid():
    backoff = Backoff()
    backoff.record(-9.0)
    assert [pause_after_failing(backoff) for _ in range(3)][-1] > Backoff.FIRST_PAUSE
    backoff.record(1 + 4 * 9.0)
    assert backoff.gain >= 1
    backoff.record(-99.0)
    assert pause_after_failing(backoff) == 2 * Backoff.FIRST_PAUSE


def planner_of(*, step_cost, experience=None):
    """The planner of a request that copies beside a draft whose steps cost so much."""
    profile = Profile(step_cost=step_cost, row_cost=0.02, lookup=2, lookup_alone=3.0)
    options = SpeculationOptions(mode=Mode.AUTO)
    settings = resolve(options, profile, drafter="glide", has_decision_model=False)
    return Planner(replace(settings, experience=experience))


@pytest.mark.parametrize(
    ("step_cost", "pause"), [(0.02, 0), (0.16, Backoff.LATE), (0.3, Backoff.LONGEST_PAUSE)]
)
def test_the_dearer_draft_steps_are_the_later_the_draft_is_tried_beside_copies(step_cost, pause):
    planner = planner_of(step_cost=step_cost)
    asked = []
    for _ in range(70):
        asked.append(planner.plan(1000, Verdict((0,), 0)).lookup.alone > 0)
        planner.record(
            round_of(
                Proposal(TokenTree.chain(range(3))) if asked[-1] else Proposal(), Verdict((0,), 0)
            )
        )
    assert asked.index(True) == pause


@pytest.mark.parametrize("num_accepted", [0, 7])
def test_a_request_begins_with_what_earlier_ones_gained_by_the_draft(num_accepted):
    experience = GainPrior()
    verdict = Verdict(tuple(range(num_accepted + 1)), num_accepted)

    def begun():
        planner = planner_of(step_cost=0.12, experience=experience)
        return planner, planner.plan(1000, Verdict((0,), 0)).lookup.alone > 0

    for _ in range(60):
        planner, _ = begun()
        planner.record(round_of(Proposal(TokenTree.chain(range(7))), verdict))
    assert begun()[1] == (num_accepted == 7)

"""Speculation that does not pay pauses; beside copies a draft is asked where it is worth a step."""

from dataclasses import replace

import pytest

from slipstream.core.draft.ngram_tree import LEAST
from slipstream.core.policy.backoff import GainPrior, OverlapGain
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.policy.planner import DRAFT_GAIN, Planner
from slipstream.core.policy.profile import Profile, resolve
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, Verdict
from support.models.rounds import round_of


def planner_of(*, step_cost, experience=None):
    """The planner of a request that copies beside a draft whose steps cost so much."""
    profile = Profile(step_cost=step_cost, row_cost=0.02, lookup=2)
    options = SpeculationOptions(mode=Mode.AUTO)
    settings = resolve(options, profile, drafter="glide", has_decision_model=False)
    return Planner(replace(settings, experience=experience))


@pytest.mark.parametrize("pace", [1, 3])
@pytest.mark.parametrize("step_cost", [0.0, 0.05, 0.1, 0.3])
def test_the_draft_is_spared_where_what_copies_leave_over_is_not_worth_a_step(step_cost, pace):
    """The time of a step brings as many tokens as the request's pace says."""
    planner, brought = planner_of(step_cost=step_cost), Verdict(tuple(range(pace)), pace - 1)
    for _ in range(400):
        planner.record(round_of(Proposal(), brought))
    limit = planner.plan(1000, brought).lookup.alone
    assert limit == pytest.approx(max(1 - pace * step_cost / DRAFT_GAIN, LEAST))


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

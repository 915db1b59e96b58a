"""Under load plans follow the prices of rows and drafts; alone they go by what was calibrated."""

from dataclasses import replace

from slipstream.core.offer import Offer
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.planner import Planner, Profile, resolve
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, Verdict

ALONE = Offer(8)
LOADED = Offer(8, row_cost=0.1, round_s=0.02)
FREE = replace(LOADED, row_cost=0.0)
COPIES = Profile(row_cost=0.02, lookup=2)


def planner_of(profile=None):
    options = SpeculationOptions(mode=Mode.AUTO)
    settings = resolve(options, profile or Profile(), drafter="glide", has_decision_model=True)
    return Planner(settings)


def verdict_of(accepted, offer):
    return Verdict(tuple(range(accepted + 1)), accepted, offer=offer)


def chain(depth, waited_s=None):
    return Proposal(TokenTree.chain(range(depth)), waited_s=waited_s)


def test_under_load_a_node_must_be_worth_its_row_and_alone_the_profile_decides():
    planner = planner_of(COPIES)
    alone = planner.plan(99, verdict_of(0, ALONE))
    assert (alone.worth, alone.lookup.worth) == (None, COPIES.row_cost)
    loaded = planner.plan(99, verdict_of(0, LOADED))
    assert loaded.worth == loaded.lookup.worth >= LOADED.row_cost
    assert planner.plan(99, verdict_of(0, ALONE)) == alone


def test_rows_are_worth_more_to_who_gains_more():
    worth = []
    for accepted in (1, 3, 7):
        planner = planner_of()
        for _ in range(50):
            planner.plan(999, verdict_of(0, LOADED))
            planner.record(chain(7), verdict_of(accepted, LOADED))
        worth.append(planner.plan(999, verdict_of(0, LOADED)).worth)
    assert worth == sorted(worth)
    assert worth[0] < worth[-1] <= 1


def speculated(planner, offer, *, waited_s, rounds=60):
    """How many of 64 rounds speculate, after `rounds` others. With a draft one brings 2 tokens."""
    depths = []
    for _ in range(rounds + 64):
        depths.append(planner.plan(999, verdict_of(0, offer)).max_depth)
        drafted = chain(depths[-1], waited_s) if depths[-1] else Proposal()
        planner.record(drafted, verdict_of(min(depths[-1], 1), offer))
    return sum(depth > 0 for depth in depths[rounds:])


SHORT = Profile(step_cost=0.01, max_depth=4)


def test_under_load_drafts_that_keep_everybody_waiting_are_given_up():
    assert speculated(planner_of(SHORT), FREE, waited_s=0.002) == 64
    assert speculated(planner_of(SHORT), FREE, waited_s=0.060) <= 16


def test_alone_what_was_calibrated_counts_however_long_a_draft_took():
    assert speculated(planner_of(SHORT), ALONE, waited_s=0.060) == 64


def test_the_first_draft_of_a_request_which_reads_its_prompt_is_not_held_against_it():
    planner = planner_of(SHORT)
    planner.plan(999, verdict_of(0, FREE))
    planner.record(chain(4, 9.0), verdict_of(1, FREE))
    assert speculated(planner, FREE, waited_s=0.002, rounds=1) == 64


def test_rounds_whose_rows_cost_more_than_they_bring_are_given_up():
    assert speculated(planner_of(), LOADED, waited_s=0.0) == 64
    assert speculated(planner_of(), replace(LOADED, row_cost=0.5), waited_s=0.0) <= 16


def test_forced_speculation_goes_on_with_the_one_node_that_is_left():
    options = SpeculationOptions(mode=Mode.FORCED)
    settings = resolve(options, Profile(), drafter="glide", has_decision_model=True)
    crowded = verdict_of(0, Offer(1, 0.0, 0.02))
    assert Planner(settings).plan(99, crowded).max_nodes == 1
    assert planner_of().plan(99, crowded).max_depth == 0

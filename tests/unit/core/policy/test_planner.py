"""Plans respect every limit, learn from verdicts, and give up what does not pay."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.policy.options import Mode, SpeculationOptions, num_product_nodes
from slipstream.core.policy.planner import SURE, Planner
from slipstream.core.policy.profile import DraftFacts, Profile, resolve
from slipstream.core.round import Round
from slipstream.core.row_costs import Offer
from slipstream.core.tree import Copying, CopySource, TokenTree
from slipstream.core.types import FinishReason, Proposal, Shape, StopPolicy, Verdict, Verification
from support.models.rounds import round_of

PREFILL = Verdict((1,), 0)


def settings_of(profile=None, *, drafter="glide", **fields):
    options = SpeculationOptions(**fields)
    return resolve(options, DraftFacts(drafter, profile or Profile(), True))


def planner_of(profile=None, **fields):
    return Planner(settings_of(profile, **fields))


def verdict_of(accepted, **fields):
    return Verdict(tuple(range(accepted + 1)), accepted, **fields)


def chain(depth):
    return Proposal(TokenTree.chain(range(depth)))


def test_what_is_not_asked_for_comes_from_the_profile():
    profile = Profile(Shape.CHAIN, StopPolicy.SVIP, 0.4, max_depth=6, max_nodes=20)
    plan = planner_of(profile).plan(100, PREFILL)
    assert (plan.shape, plan.stop, plan.threshold) == (Shape.CHAIN, StopPolicy.SVIP, 0.4)
    assert (plan.max_depth, plan.max_nodes) == (6, 20)
    asked = planner_of(profile, max_draft_tokens=3, stop=StopPolicy.FIXED).plan(100, PREFILL)
    assert (asked.max_depth, asked.stop, asked.threshold) == (3, StopPolicy.FIXED, None)


@given(
    st.integers(1, 60),
    st.one_of(st.none(), st.integers(1, 140)),
    st.integers(1, 40),
    st.integers(1, 127),
    st.sampled_from([Mode.AUTO, Mode.FORCED]),
)
def test_a_plan_respects_the_request_the_limit_and_the_rows(remaining, rows, depth, nodes, mode):
    planner = planner_of(mode=mode, max_draft_tokens=depth, max_nodes=nodes)
    plan = planner.plan(remaining, verdict_of(0, offer=rows and Offer(rows)))
    assert plan.max_depth <= min(depth, remaining - 1, nodes)
    assert plan.max_depth <= plan.max_nodes <= nodes
    if rows is not None:
        assert plan.max_nodes <= max(rows - 1, 1 if mode is Mode.FORCED else 0)
    if remaining >= 2 and (mode is Mode.FORCED or rows is None or rows >= 2):
        assert plan.max_depth >= 1


def failing_rounds(planner, count):
    """Plan and fail `count` rounds; which of them speculated."""
    speculated = []
    for _ in range(count):
        plan = planner.plan(1000, PREFILL)
        speculated.append(plan.max_depth > 0)
        planner.record(round_of(chain(plan.max_depth), verdict_of(0)))
    return speculated


@pytest.mark.parametrize("step_cost", [0.02, 0.3, 0.5, 2.0])
def test_where_drafting_can_not_win_two_rounds_draft_and_a_try_costs_a_hundredth(step_cost):
    planner = planner_of(Profile(step_cost=step_cost, max_depth=4), mode=Mode.AUTO)
    speculated = failing_rounds(planner, 2000)
    assert sum(speculated[:6]) <= 2
    lost = planner._prices.round(4) + 4 * step_cost - 1
    tries = [index for index, tried in enumerate(speculated[10:]) if tried]
    assert tries[1:] and all(lost <= 0.01 * (b - a) for a, b in itertools.pairwise(tries))


@pytest.mark.parametrize(("accepted", "num_tries"), [(0, 1), (4, 8)])
def test_a_request_begins_with_what_former_ones_of_its_kind_gained(accepted, num_tries):
    settings = settings_of(Profile(step_cost=0.05, max_depth=4))
    for planner in [Planner(settings) for _ in range(20)]:
        for _ in range(200):
            depth = planner.plan(1000, PREFILL).max_depth
            planner.record(round_of(chain(depth), verdict_of(min(accepted, depth))))
        planner.record(round_of(chain(0), verdict_of(0, finish_reason=FinishReason.STOP)))
    assert sum(failing_rounds(Planner(settings), 8)) == num_tries
    assert sum(failing_rounds(Planner(replace(settings, is_sampled=True)), 6)) == 2


def test_forced_speculation_is_never_given_up():
    planner = planner_of(Profile(step_cost=0.2), mode=Mode.FORCED)
    assert all(failing_rounds(planner, 100))


def test_speculation_that_pays_again_is_taken_up_again():
    planner = planner_of(Profile(step_cost=0.2), mode=Mode.AUTO)
    failing_rounds(planner, 30)
    for _ in range(200):
        depth = planner.plan(1000, PREFILL).max_depth
        planner.record(round_of(chain(depth), verdict_of(depth)))
    assert all(planner.plan(1000, PREFILL).max_depth > 0 for _ in range(20))


COPIES = Profile(step_cost=0.02, row_cost=0.02, lookup=2, max_nodes=20)


def test_copies_have_the_nodes_and_the_draft_has_its_own_depth():
    plan = planner_of(COPIES, mode=Mode.FORCED).plan(99, PREFILL)
    assert plan.max_depth == COPIES.max_depth
    assert plan.lookup == Copying(shortest=2, max_depth=20, alone=SURE)
    assert planner_of(COPIES).plan(6, PREFILL).lookup.max_depth == 5
    assert planner_of(COPIES).plan(99, verdict_of(0, offer=Offer(4))).lookup.max_depth == 3
    bounded = settings_of(COPIES, max_draft_tokens=3)
    assert Planner(bounded).plan(99, PREFILL).lookup.max_depth == bounded.longest_path == 3


@pytest.mark.parametrize(
    ("profile", "options", "is_copying"),
    [
        (COPIES, {}, True),
        (COPIES, {"lookup": True}, True),
        (COPIES, {"lookup": False}, False),
        (COPIES, {"mode": Mode.OFF}, False),
        (COPIES, {"drafter": "ngram"}, False),
        (COPIES, {"verification": Verification.MCSD, "shape": Shape.CHAIN}, False),
        (COPIES, {"verification": Verification.TARGET_INIT}, False),
        (Profile(), {}, False),
        (Profile(), {"lookup": True}, True),
    ],
)
def test_copying_is_as_asked_or_else_as_the_profile_says_if_it_fits(profile, options, is_copying):
    settings = settings_of(profile, **options)
    plan = Planner(settings).plan(99, verdict_of(0, roots=(1, 2)))
    assert (plan.lookup is not None) == is_copying == (settings.lookup is not None)


@pytest.mark.parametrize(("num_copied", "is_asked"), [(0, True), (2, False)])
def test_a_draft_is_asked_only_where_it_is_expected_to_gain_more_than_copies(num_copied, is_asked):
    planner, asked = planner_of(replace(COPIES, step_cost=0.3), mode=Mode.AUTO), []
    for _ in range(60):
        plan = planner.plan(1000, PREFILL)
        asked.append(plan.may_ask)
        round_ = round_of(chain(plan.max_depth * plan.may_ask), verdict_of(num_copied))
        planner.record(replace(round_, plan=plan))
    assert (asked[0], any(asked), asked[-1]) == (False, is_asked, False)


def test_copies_that_bring_less_than_their_nodes_take_pause_and_are_tried_again():
    planner, looked = planner_of(replace(COPIES, row_cost=0.5), mode=Mode.AUTO), []
    copied = Proposal(TokenTree.chain((1,)), sources=(CopySource.LOOKUP,))
    for _ in range(200):
        plan = planner.plan(1000, PREFILL)
        looked.append(plan.lookup is not None)
        planner.record(replace(round_of(copied, verdict_of(0)), plan=plan))
    assert looked[0]
    assert 0 < sum(looked[50:]) < 10


@pytest.mark.parametrize("is_right", [False, True])
def test_copies_beside_drafted_tokens_are_looked_up_while_they_bring_enough(is_right):
    planner, looked = planner_of(replace(COPIES, row_cost=0.5), mode=Mode.AUTO), []
    both = Proposal(TokenTree((7, 0), (-1, -1)), sources=(CopySource.LOOKUP,))
    for _ in range(100):
        plan = planner.plan(1000, PREFILL)
        looked.append(plan.lookup is not None)
        verdict = verdict_of(1) if is_right else Verdict((7, 8), 1)
        planner.record(replace(round_of(both, verdict, 0.002), plan=plan))
    assert looked[0] and (all(looked) if is_right else sum(looked[50:]) < 10)


@pytest.mark.parametrize(
    ("prompt_s", "length", "is_read"), [(0.1, 500, True), (20.0, 500, False), (20.0, 5000, True)]
)
def test_the_draft_reads_no_prompt_for_longer_than_it_is_expected_to_gain(
    prompt_s, length, is_read
):
    """A part of a long one is all that it reads."""
    planner = Planner(settings_of(Profile(step_cost=0.1)), num_prompt_tokens=length)
    planner.record(Round(0, 0.0, verdict=PREFILL, verifying=(0.0, prompt_s)))
    plan = planner.plan(100, verdict_of(0, offer=Offer(32, 0.01)))
    assert (plan.max_depth > 0) is is_read


def test_rounds_of_copies_alone_teach_nothing_about_the_draft():
    planner = planner_of(replace(COPIES, step_cost=0), mode=Mode.AUTO)
    before = planner.plan(1000, PREFILL)
    copied = Proposal(TokenTree.chain((1, 2, 3)), sources=(CopySource.LOOKUP,) * 3)
    for _ in range(50):
        planner.record(round_of(copied, verdict_of(0)))
    after = planner.plan(1000, PREFILL)
    assert (after.max_depth, after.lookup) == (before.max_depth, before.lookup)


def test_rounds_that_pay_just_enough_go_on():
    planner = planner_of(Profile(step_cost=0.1, max_depth=5), mode=Mode.AUTO)
    for _ in range(200):
        assert planner.plan(1000, PREFILL).max_depth == 5
        planner.record(round_of(chain(5), verdict_of(1)))  # 2 tokens for the time of 1.5


def test_a_last_round_cut_short_says_nothing_about_the_gain():
    planner = planner_of(Profile(step_cost=0.1), mode=Mode.AUTO)
    for _ in range(50):
        planner.record(round_of(chain(8), verdict_of(0, finish_reason=FinishReason.STOP)))
    assert planner.plan(1000, PREFILL).max_depth > 0


def test_a_product_tree_is_cut_to_the_levels_that_fit():
    planner = planner_of(shape=Shape.PRODUCT, widths=(4, 2, 2), max_nodes=28)
    plans = [planner.plan(100, verdict_of(0, offer=Offer(rows))) for rows in (29, 28, 13, 5, 4)]
    assert [plan.widths for plan in plans] == [(4, 2, 2), (4, 2), (4, 2), (4,), ()]
    for plan in plans:
        assert num_product_nodes(plan.widths) <= plan.max_nodes
        assert plan.max_depth == len(plan.widths)


def forest_plan(remaining=100, roots=(7, 8, 9), **fields):
    planner = planner_of(verification=Verification.TARGET_INIT, num_roots=3, **fields)
    return planner.plan(remaining, Verdict((), 0, roots=roots))


def test_a_forest_hangs_under_the_roots_and_shares_the_nodes_among_them():
    plan = forest_plan(max_draft_tokens=4, max_nodes=12)
    assert (plan.shape, plan.roots) == (Shape.FORK, (7, 8, 9))
    assert (plan.max_depth, plan.max_nodes) == (4, 12)
    assert forest_plan(max_draft_tokens=2, max_nodes=127).max_depth == 3


def test_roots_are_always_proposed_even_when_nothing_may_be_drafted():
    assert forest_plan(remaining=1).max_depth == 1
    plan = forest_plan(max_nodes=1)
    assert (plan.max_depth, plan.max_nodes) == (1, 3)

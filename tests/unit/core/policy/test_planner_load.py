"""Plans follow what rounds and drafts are measured to cost, whether a request is alone or not."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.policy.planner import SHORTEST_WAIT_S, Planner
from slipstream.core.policy.profile import DraftFacts, Profile, Ways, resolve
from slipstream.core.round import LATE, TOO_DEAR
from slipstream.core.row_costs import Offer, RowCosts
from slipstream.core.tree import CopySource, TokenTree
from slipstream.core.types import Proposal, ReplyTiming, Verdict
from slipstream.rpc.conversion.convert import verdict_from_pb
from slipstream.rpc.v1 import target_pb2
from support.models.rounds import round_of

STAIRS = RowCosts(((1, 1.0), (4, 1.1), (5, 1.6), (8, 1.7)))


def offer_of(row_cost, *, rows=8, round_s=0.02):
    return Offer(rows, round_s, RowCosts.straight(row_cost))


DEAR, FREE = offer_of(0.1), offer_of(0.0)


def planner_of(profile=None, *, mode=Mode.AUTO, step_s=None, **changes):
    facts = DraftFacts("glide", profile or Profile(), True, step_s=step_s, **changes)
    return Planner(resolve(SpeculationOptions(mode=mode), facts))


def verdict_of(accepted, offer):
    return Verdict(tuple(range(accepted + 1)), accepted, offer=offer)


def chain(depth):
    return Proposal(TokenTree.chain(range(depth)))


def test_every_node_has_the_price_of_its_own_place_on_the_staircase():
    planner = planner_of(Profile(max_nodes=7))
    prices = planner.plan(99, verdict_of(0, Offer(8, 0.02, STAIRS))).row_prices
    unit = prices[3] / 0.5
    assert prices == pytest.approx([unit * cost for cost in STAIRS.nodes(7)])
    assert unit >= 1


def test_what_a_target_measures_counts_unless_a_profile_pins_it():
    measured, pinned = planner_of(), planner_of(Profile(row_cost=0.3, step_cost=0.2))
    for offer in (FREE, DEAR):
        prices = measured.plan(99, verdict_of(0, offer)).row_prices
        assert sum(prices) == pytest.approx(len(prices) * prices[0], abs=1e-9)
        found, dear = (pinned.plan(99, verdict_of(0, at)).row_prices for at in (offer, DEAR))
        assert found == pytest.approx(dear)
    assert measured.plan(99, verdict_of(0, FREE)).row_prices[0] == 0
    assert measured.plan(99, verdict_of(0, DEAR)).row_prices[0] >= 0.1


def test_a_slow_draft_must_be_surer_from_the_first_round_on():
    planners = [planner_of(step_s=step_s) for step_s in (0.0002, 0.002, 0.01)]
    worth = [planner.plan(99, verdict_of(0, FREE)).worth for planner in planners]
    assert worth == sorted(worth)
    assert worth[0] < 0.03 < worth[-1]


def test_forced_speculation_has_its_shape_whatever_it_costs():
    plan = planner_of(mode=Mode.FORCED).plan(99, verdict_of(0, DEAR))
    assert (plan.worth, plan.row_prices) == (None, ())


def speculated(planner, offer, *, waited_s, rounds=60):
    """How many of 64 rounds speculate, after `rounds` others. With a draft one brings 2 tokens."""
    depths = []
    for _ in range(rounds + 64):
        depths.append(planner.plan(999, verdict_of(0, offer)).max_depth)
        drafted = chain(depths[-1]) if depths[-1] else Proposal()
        verdict = verdict_of(min(depths[-1], 1), offer)
        planner.record(round_of(drafted, verdict, waited_s))
    return sum(depth > 0 for depth in depths[rounds:])


SHORT = Profile(max_depth=4)


def test_drafts_that_take_longer_than_they_save_are_given_up():
    assert speculated(planner_of(SHORT), FREE, waited_s=0.002) == 64
    assert speculated(planner_of(SHORT), FREE, waited_s=0.060) <= 16


def test_a_pinned_cost_of_draft_steps_counts_however_long_a_draft_took():
    assert speculated(planner_of(Profile(max_depth=4, step_cost=0.01)), FREE, waited_s=0.06) == 64


def test_a_draft_that_was_asked_and_found_nothing_worth_proposing_is_not_free():
    planner = planner_of(SHORT)
    asked = 0
    for _ in range(100):
        plan = planner.plan(999, verdict_of(0, DEAR))
        asked += plan.max_depth > 0
        found = Proposal(stopped_by=TOO_DEAR) if plan.max_depth else Proposal()
        planner.record(round_of(found, verdict_of(0, DEAR), 0.01))
    assert asked < 30


def test_the_first_draft_of_a_request_which_reads_its_prompt_is_not_held_against_it():
    planner = planner_of(SHORT)
    planner.plan(999, verdict_of(0, FREE))
    planner.record(round_of(chain(4), verdict_of(1, FREE), 9.0))
    assert speculated(planner, FREE, waited_s=0.002, rounds=1) == 64


def plan_from_afar(*, verifying_s=None, proposing_s=0.01, profile=None):
    """The plan after rounds of 20 ms in the target's engine and 10 ms in the draft's, which take so
    long as the request sees them; None: nothing lies between."""
    planner, waited_s = planner_of(profile, step_s=0.0025), verifying_s or 0.02
    verdict = verdict_of(3, offer_of(0.05, rows=32))
    if verifying_s is not None:
        verdict = replace(verdict, timing=ReplyTiming(engine_s=0.02))
    drafted = replace(chain(4), timing=ReplyTiming(engine_s=0.01))
    for _ in range(30):
        planner.plan(999, verdict)
        planner.record(replace(round_of(drafted, verdict, proposing_s), verifying=(0.0, waited_s)))
    return planner.plan(999, verdict)


def test_nodes_and_steps_cost_less_beside_a_target_that_is_far_away():
    here, near, far = (plan_from_afar(verifying_s=seconds) for seconds in (None, 0.02, 0.06))
    assert here == near
    ratio = far.row_prices[0] / near.row_prices[0]
    assert ratio == pytest.approx(1 / 3, rel=0.4)  # their own time, in a plain round thrice as long
    assert far.worth < near.worth
    pinned = [plan_from_afar(verifying_s=s, profile=Profile(row_cost=0.02)) for s in (0.02, 0.06)]
    assert pinned[0].row_prices[0] <= pinned[1].row_prices[0]


def test_where_rounds_are_granted_copies_that_the_router_looks_up_pay_for_their_way():
    plain = replace(verdict_of(0, FREE), timing=ReplyTiming(engine_s=0.02))
    found, copied = (
        replace(plain, tokens=(1, 2), num_accepted=1),
        replace(chain(1), sources=(CopySource.LOOKUP,)),
    )
    left = {}
    for is_granted in (True, False):
        granted = replace(plain, proposal=Proposal() if is_granted else None)
        planner = planner_of(Profile(lookup=2), step_s=1.0)
        for _ in range(40):
            planner.plan(999, plain)
            far = round_of(Proposal(), granted, 0.0)
            planner.record(replace(far, verifying=(0.0, 0.021 if is_granted else 0.08)))
            plan = planner.plan(999, plain)
            asked = round_of(copied if plan.lookup else Proposal(), found, 0.0)
            planner.record(replace(asked, plan=plan, verifying=(0.0, 0.08)))
        left[is_granted] = planner.plan(999, plain).lookup is not None
    assert left == {True: False, False: True}


def test_a_request_begins_with_the_ways_that_former_ones_measured_and_forgets_them_slowly():
    ways = Ways()
    plain, drafted = verdict_of(1, FREE), replace(chain(4), timing=ReplyTiming(engine_s=0.001))
    for _ in range(3):
        planner = planner_of(Profile(lookup=2), step_s=0.001, ways=ways)
        planner.plan(99, plain)
        granted = replace(verdict_of(2, FREE), proposal=drafted, timing=ReplyTiming(engine_s=0.02))
        for _ in range(3):
            planner.record(replace(round_of(drafted, granted, 0.061), verifying=(0.0, 0.021)))
        asked = replace(plain, timing=ReplyTiming(engine_s=0.02))
        planner.record(replace(round_of(Proposal(), asked, 0.0), verifying=(0.0, 0.081)))
    assert (ways.draft_s, ways.asked_s) == pytest.approx((0.06, 0.06), rel=0.1)
    far = planner_of(Profile(lookup=2), step_s=0.001, ways=ways).plan(99, plain)
    assert (far.max_depth, far.lookup) == (0, None)
    near = planner_of(Profile(lookup=2), step_s=0.001).plan(99, plain)
    assert near.may_ask and near.lookup is not None
    for _ in range(200):  # requests that don't draft
        planner_of(step_s=0.001, ways=ways).plan(99, plain)
    assert ways.draft_s < 0.002
    assert planner_of(step_s=0.001, ways=ways).plan(99, plain).may_ask


def test_the_way_to_a_draft_makes_no_step_of_it_dear():
    near, far = plan_from_afar(verifying_s=0.02), plan_from_afar(verifying_s=0.02, proposing_s=0.02)
    assert far.worth <= near.worth


def test_what_a_proposal_takes_beside_its_steps_makes_no_step_of_it_dear():
    worth = {}
    for start_s, step_s in ((0.0, 0.001), (0.003, 0.001), (0.0, 0.004)):
        planner = planner_of(SHORT, step_s=0.001)
        for depth in (1, 2, 1, 4, 1, 3) * 5:
            planner.plan(999, verdict_of(1, DEAR))
            waited_s = start_s + depth * step_s
            planner.record(round_of(chain(depth), verdict_of(1, DEAR), waited_s))
        worth[start_s, step_s] = planner.plan(999, verdict_of(1, DEAR)).worth
    free, begun, dear = worth.values()
    assert begun == pytest.approx(free, rel=0.2)
    assert dear > 1.5 * free


def test_a_draft_whose_way_takes_longer_than_it_saves_is_given_up():
    planner = planner_of(SHORT)
    drafted, verdict = replace(chain(4), timing=ReplyTiming(engine_s=0.001)), verdict_of(1, FREE)
    for _ in range(60):
        is_drafted = planner.plan(999, verdict).max_depth > 0
        planner.record(round_of(drafted if is_drafted else Proposal(), verdict, 0.06))
    assert planner.plan(999, verdict).max_depth == 0


def test_rounds_whose_rows_cost_more_than_they_bring_are_given_up():
    assert speculated(planner_of(SHORT), DEAR, waited_s=0.0) == 64
    assert speculated(planner_of(SHORT), offer_of(0.5), waited_s=0.0) <= 16


COUNTS = st.integers(0, 2**32 - 1)
COSTS = st.one_of(st.floats(width=32), st.floats(1, 2.0**127, width=32))
OFFERS = st.fixed_dictionaries(
    {
        "rows": st.one_of(st.integers(0, 200), COUNTS),
        "round_s": st.one_of(st.floats(), st.floats(0, 1e-300), st.floats(0, 1)),
        "costs": st.tuples(
            st.lists(COUNTS, max_size=6).map(sorted), st.lists(COSTS, max_size=6).map(sorted)
        ).map(lambda curve: {"points": dict(zip(*curve, strict=False)) | {1: 1.0}}),
    }
)


@settings(deadline=None)
@given(
    st.lists(st.tuples(OFFERS, st.floats(), st.integers(1, 5)), max_size=12),
    st.sampled_from(list(Mode)),
    st.sampled_from([None, 1e-300, 0.01, 1e300]),
)
def test_whatever_a_target_offers_and_drafts_take_the_next_round_is_planned(rounds, mode, step_s):
    planner = planner_of(mode=mode, step_s=step_s)
    for offer, waited_s, depth in rounds:
        verdict = verdict_from_pb(target_pb2.Verdict(tokens=[1], offer=offer))
        plan = planner.plan(50, verdict)
        assert all(price >= 0 for price in plan.row_prices)
        assert plan.worth is None or 0 <= plan.worth <= 1
        if plan.max_depth:
            planner.record(round_of(chain(depth), verdict, waited_s))
        assert not math.isnan(planner._backoff.gain)


def test_a_proposal_is_worth_the_plain_rounds_that_bring_as_much():
    offers = [offer_of(0.1, round_s=round_s) for round_s in (0.001, 0.2, 2.0)]
    waits = [planner_of().plan(99, verdict_of(0, offer)).worth_s for offer in offers]
    assert waits[0] == SHORTEST_WAIT_S
    assert 0.2 < waits[1] < 0.6
    assert waits[2] == pytest.approx(10 * waits[1])
    assert planner_of(mode=Mode.FORCED).plan(99, verdict_of(0, DEAR)).worth_s is None
    assert planner_of().plan(99, verdict_of(0, Offer(8))).worth_s is None


def test_drafts_that_are_always_late_are_given_up():
    planner, asked = planner_of(), 0
    for _ in range(100):
        plan = planner.plan(999, verdict_of(0, FREE))
        at = replace(round_of(Proposal(), verdict_of(0, FREE)), plan=plan)
        if plan.max_depth:
            asked += 1
            at = replace(at, proposal=Proposal(fallback=LATE), proposing=(0.0, plan.worth_s))
        planner.record(at)
    assert 0 < asked < 20

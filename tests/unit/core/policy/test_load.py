"""What is offered shrinks with the batch, follows what pays, and does not flicker."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.errors import InvalidRequest
from slipstream.core.policy import load
from slipstream.core.policy.cost_curve import CostCurve
from slipstream.core.policy.load import AcceptanceEstimate, DraftWait, Probes, TokenBudget
from slipstream.core.row_costs import Offer
from slipstream.verifying.meter import FixedMeter, HarmlessMeter, LoadMeter, StepCost

TILE = 32


def staircase(rows):
    return 0.02 * -(-rows // TILE) + 0.0002 * rows


def curve_of(law=staircase, *, tile=TILE, rows=(1, 16, 32, 33, 64, 65, 96)):
    return CostCurve([(at, law(at)) for at in rows], tile=tile)


def acceptance_of(kept, *, rounds=500):
    acceptance = AcceptanceEstimate()
    for _ in range(rounds):
        acceptance.record(num_nodes=3, num_accepted=2 * kept)
    return acceptance


def offers(sessions, *, kept=0.6, curve=None, budget=None):
    budget = budget or TokenBudget()
    return budget.decide(curve or curve_of(), acceptance_of(kept), sessions=sessions, keys=0.0)


@pytest.mark.parametrize("curve", [curve_of(), curve_of(lambda n: 1 + (n > 6), rows=range(1, 33))])
def test_a_session_alone_has_the_first_tile_and_what_its_rows_cost(curve):
    offer = offers(1, curve=curve)
    assert offer.rows == TILE
    assert offer.round_s == curve.seconds(1)
    for rows in range(1, TILE + 1):
        expected = curve.seconds(rows) / curve.seconds(1)
        assert offer.costs.of(rows) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("sessions", "rows"), [(2, 16), (4, 8), (8, 4), (16, 2), (32, 1)])
def test_a_tile_is_shared_evenly(sessions, rows):
    assert offers(sessions).rows == rows


@given(st.integers(1, 64), st.floats(0, 1))
def test_what_a_crowd_uses_is_never_worth_less_than_plain_rounds(sessions, kept):
    curve, acceptance = curve_of(), acceptance_of(kept, rounds=300)
    offer = TokenBudget().decide(curve, acceptance, sessions=sessions, keys=0.0)
    cost = curve.seconds(offer.rows * sessions) / curve.seconds(sessions)
    assert acceptance.tokens(offer.rows) >= 0.999 * cost or sessions == 1
    assert offer.rows * sessions <= 512


def test_what_is_rarely_kept_is_not_offered_at_a_price():
    line = curve_of(lambda rows: 0.01 * (1 + 0.1 * rows), tile=None)
    by_kept = [offers(16, kept=kept, curve=line).rows for kept in (0.1, 0.5, 0.95)]
    assert by_kept[0] == 1
    assert by_kept == sorted(by_kept)
    assert by_kept[-1] > 1


def test_prices_rise_with_the_crowd():
    """Prices count one more node of every session, whose plain rounds are as long together."""
    prices = [offers(sessions).costs.of(2) - 1 for sessions in (2, 4, 8, 16)]
    assert prices == sorted(prices)
    assert prices[0] > 0


@pytest.mark.parametrize("sessions", [1, 2, 3, 8, 16, 30])
def test_an_offer_tells_the_cost_of_every_step_of_the_staircase(sessions):
    curve = curve_of(rows=(1, 32, 33, 64, 65, 96))
    offer = offers(sessions, curve=curve, kept=0.95)
    for rows in range(1, offer.rows + 1):
        expected = curve.seconds(rows * sessions, sessions) / curve.seconds(sessions, sessions)
        if TILE // sessions >= 8:
            assert offer.costs.of(rows) == pytest.approx(expected, rel=0.02)
        assert 1 <= offer.costs.of(rows) <= offer.costs.of(rows + 1)


def test_a_number_of_rows_stays_until_another_is_clearly_better():
    """Around the break-even point of two rows, the answer depends on where it comes from."""
    line = curve_of(lambda rows: 0.01 * (1 + 0.1 * rows), tile=None)
    budget = TokenBudget()
    kept = [*range(32, 92, 4), *reversed(range(32, 92, 4))]
    rows = [offers(16, kept=at / 100, curve=line, budget=budget).rows for at in kept]
    up, down = rows[:15], rows[15:][::-1]
    assert up == sorted(up)
    assert down == sorted(down)
    assert up[0] == down[0] < up[-1] == down[-1]
    assert up != down


def test_a_crowd_is_met_at_once_and_leaves_slowly():
    batch = load.BatchSize()
    assert batch.size == 1
    batch.count(8)
    assert batch.size == 8
    sizes = []
    for _ in range(40):
        batch.count(2)
        sizes.append(batch.size)
    assert sizes[0] == 8
    assert sizes[-1] == 2
    assert all(a - b in (0, 1) for a, b in itertools.pairwise(sizes))


def test_steps_that_only_read_prompts_say_nothing_about_the_crowd():
    batch = load.BatchSize()
    for _ in range(100):
        batch.count(0)
    assert batch.size == 1


def test_a_yield_is_learnt_from_rounds_that_proposed_something():
    acceptance = acceptance_of(0.25)
    assert acceptance.kept == pytest.approx(0.25, abs=0.01)
    assert acceptance.tokens(1) == 1
    assert acceptance.tokens(8) == pytest.approx(1 + 3 * acceptance.kept)
    before = acceptance.kept
    acceptance.record(num_nodes=0, num_accepted=0)
    assert acceptance.kept == before


def test_rows_that_pay_for_themselves_but_not_for_their_drafts_are_not_offered():
    curve, acceptance = curve_of(), acceptance_of(0.3)
    offered = [
        TokenBudget().decide(curve, acceptance, sessions=16, keys=0.0, draft_s=draft_s).rows
        for draft_s in (0.0, 0.02)
    ]
    assert offered == [2, 1]


@given(st.lists(st.tuples(st.floats(0, 9), st.booleans()), max_size=50))
def test_waiting_for_drafts_is_what_comes_on_top_and_never_more_than_a_step(waits):
    kept = DraftWait()
    for waited_s, is_drafting in waits:
        kept.record(waited_s, step_s=0.1, is_drafting=is_drafting)
    assert 0 <= kept.draft_s <= 0.1
    for _ in range(200):
        kept.record(0.01, step_s=0.1, is_drafting=False)
        kept.record(0.03, step_s=0.1, is_drafting=True)
    assert kept.draft_s == pytest.approx(0.02, rel=0.01)


def test_probes_come_at_growing_intervals_and_anew_once_it_pays():
    probes = Probes()
    due = [at for at in range(4000) if probes.is_due()]
    pauses = [b - a for a, b in itertools.pairwise(due)]
    assert pauses[:4] == [64, 128, 256, 512]
    assert set(pauses[4:]) == {512}
    probes.reset()
    assert next(at for at in itertools.count(1) if probes.is_due()) == Probes.FIRST_PAUSE


def test_a_fixed_meter_offers_the_same_to_everybody():
    meter = FixedMeter(16)
    meter.verified(num_nodes=3, num_accepted=3)
    meter.record(StepCost(99, 9, 9, 9.0, is_drafted=True))
    assert {meter.offer(sessions) for sessions in range(40)} == {Offer(16)}


class BrokenMeter(LoadMeter):
    """Can't make anything of its steps."""

    def offer(self, num_verdicts):
        raise ArithmeticError("a forward took no time")

    verified = record = offer


def test_what_a_meter_raises_fails_no_step_and_is_logged_once(caplog):
    meter = HarmlessMeter(BrokenMeter(curve_of()))
    for _ in range(3):
        assert meter.offer(1) is None
        meter.verified(num_nodes=1, num_accepted=1)
        meter.record(StepCost(1, 1, 1, 1.0))
    assert len(caplog.records) == 1


TIMES = st.floats(allow_nan=True)
STEPS = st.tuples(
    st.integers(1, 64), st.integers(1, 256), st.integers(0, 10**9), TIMES, TIMES, st.booleans()
)


@settings(deadline=None, max_examples=50)
@given(st.lists(STEPS, max_size=20))
def test_whatever_steps_took_every_one_has_an_offer(taken):
    meter = LoadMeter(curve_of())
    for sessions, rows, keys, seconds, waited_s, is_drafted in taken:
        offer = meter.offer(sessions)
        assert 0 < offer.round_s < math.inf
        assert offer.rows >= 1
        meter.verified(num_nodes=rows - 1, num_accepted=min(rows - 1, 3))
        meter.record(StepCost(rows, sessions, keys, seconds, waited_s, is_drafted))


def steps(meter, count, *, sessions, accepted=0.5, law=staircase):
    """Steps in which everybody proposes what it is offered; the rows of each."""
    rows = []
    for _ in range(count):
        offer = meter.offer(sessions)
        rows.append(offer.rows)
        for _ in range(sessions):
            kept = accepted * math.log2(offer.rows)
            meter.verified(num_nodes=offer.rows - 1, num_accepted=kept)
        total = offer.rows * sessions
        is_drafted = total > sessions
        meter.record(StepCost(total, sessions, 0, law(total), is_drafted=is_drafted))
    return rows


def test_a_meter_changes_its_mind_only_with_the_crowd():
    meter = LoadMeter(curve_of())
    assert steps(meter, 50, sessions=1) == [32] * 50
    assert set(steps(meter, 50, sessions=8)) == {4}
    back = steps(meter, 60, sessions=2)
    assert (back[0], back[-1]) == (4, 16)
    assert back == sorted(back)


def test_what_seemed_too_dear_is_tried_rarely_and_taken_up_where_it_pays():
    def law(rows):
        return 0.01 * (1 + 0.06 * rows)

    def rows(accepted):
        meter = LoadMeter(curve_of(law, tile=None))
        return steps(meter, 3000, sessions=32, law=law, accepted=accepted)

    assert rows(0.95)[-50:] == [2] * 50
    rare = rows(0.1)
    assert 1 < rare.count(2) < 30
    assert set(rare[1:]) == {1, 2}


@pytest.mark.parametrize(
    "bad", [{"rows": 0}, {"rows": 2, "round_s": -1.0}, {"rows": 2, "round_s": math.inf}]
)
def test_an_offer_that_can_not_be_is_refused(bad):
    with pytest.raises(InvalidRequest, match="offer"):
        Offer(**bad)

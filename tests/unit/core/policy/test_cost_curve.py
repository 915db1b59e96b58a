"""What steps cost is learnt from few forwards, never falls with rows, and outlives outliers."""

import math
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.cost_curve import CostCurve, learn
from slipstream.core.row_costs import MAX_POINTS, RowCosts, num_paying

TILE = 32


def staircase(rows, sessions=1):
    """Every tile costs 20 ms, a row 0.25 ms, another session 1 ms."""
    return 0.020 * -(-rows // TILE) + 0.00025 * rows + 0.001 * (sessions - 1)


class Bench:
    """A machine whose clock goes by what it runs."""

    def __init__(self, law):
        self.now, self.law, self.ran = 0.0, law, []

    def forward(self, rows, sessions):
        self.ran.append((rows, sessions))
        self.now += self.law(rows, sessions)

    def learn(self, **given):
        return learn(self.forward, lambda: self.now, **given)


def learnt(law=staircase, *, tile=TILE, seconds=60.0):
    return Bench(law).learn(tile=tile, seconds=seconds)


@pytest.mark.parametrize(
    ("law", "tile"),
    [
        (staircase, TILE),
        (lambda rows, sessions: 0.01 + 0.001 * rows, None),
        (lambda rows, sessions: 0.012 if rows <= 6 else 0.008 + 0.0015 * rows, None),  # two passes
    ],
)
def test_what_was_timed_is_learnt_with_its_edges_and_goes_on_beyond(law, tile):
    rows, curve = (*range(1, 162), 256, 500, 1000), learnt(law, tile=tile)
    assert [curve.seconds(at) for at in rows] == pytest.approx([law(at, 1) for at in rows])


def test_what_another_session_adds_is_learnt():
    assert learnt().seconds(16, 16) == pytest.approx(staircase(16, 16))


@pytest.mark.parametrize("tile", [None, TILE])
def test_slow_machines_run_a_few_forwards_only(tile):
    bench = Bench(lambda rows, sessions: 10.0 * staircase(rows, sessions))
    curve = bench.learn(tile=tile, seconds=0.01)
    assert len(bench.ran) <= 12
    assert curve.seconds(64) == pytest.approx(10 * staircase(64))


def test_what_was_timed_once_is_left_out_where_others_were_timed_twice():
    """A forward of two rows, the last that there was time for, took an age."""
    bench = Bench(lambda rows, sessions: 9.0 if rows == 2 else staircase(rows, sessions))
    curve = bench.learn(tile=TILE, seconds=1.0)
    assert bench.ran.count((2, 1)) == 1
    assert curve.seconds(2) == pytest.approx(staircase(2))


def record(curve, times, *, law, rows=12):
    for _ in range(times):
        curve.record(rows, seconds=law(rows))


def test_a_machine_that_slows_down_is_followed_at_all_sizes():
    curve = learnt()
    record(curve, 100, law=lambda rows: 2 * staircase(rows))
    assert curve.seconds(12) == pytest.approx(2 * staircase(12), rel=0.02)
    for rows in (1, 32, 64):
        assert curve.seconds(rows) / curve.seconds(12) == pytest.approx(
            staircase(rows) / staircase(12), rel=0.1
        )


def test_one_stolen_processor_hardly_shows():
    curve = learnt()
    record(curve, 1, law=lambda rows: 100 * staircase(rows))
    assert curve.seconds(12) < 1.06 * staircase(12)
    record(curve, 50, law=staircase)
    assert curve.seconds(12) == pytest.approx(staircase(12), rel=0.01)


def test_rows_that_cost_more_than_at_the_start_come_to_be_dear():
    """Memory, which a few rows wait for alike, may get faster while products do not."""
    curve = CostCurve([(rows, 6.0 + 0.5 * rows) for rows in (1, 2, 3, 4, 8, 16)])
    for _ in range(30):
        for rows in (1, 1, 2):
            curve.record(rows, seconds=2.0 + rows)
    assert curve.seconds(1) == pytest.approx(3, rel=0.1)
    assert curve.seconds(2) / curve.seconds(1) == pytest.approx(4 / 3, rel=0.06)


def test_long_contexts_come_to_cost_what_they_take():
    curve = learnt()
    for step in range(2000):
        keys = 8 * (100 + 1000 * (step % 2))
        curve.record(8, 1, keys, seconds=staircase(8) + keys * 5e-7)
    for keys in (800, 8800):
        assert curve.seconds(8, 1, keys) == pytest.approx(staircase(8) + keys * 5e-7, rel=0.03)
    assert curve.seconds(8) == pytest.approx(staircase(8), rel=0.05)


@pytest.mark.parametrize("key_s", [1e-7, 1e-6])
@pytest.mark.parametrize("lost", [1, 5])
def test_one_long_prompt_shows_what_its_keys_cost_to_small_steps(key_s, lost):
    """Also where every fifth step loses its processor for a while."""

    def law(rows, keys):
        return 0.009 + 0.001 * rows + key_s * keys

    curve, chance = CostCurve([(at, law(at, 0)) for at in (1, 8, 32, 128)]), Random(0)
    for start in range(0, 7500, 256):
        taken = chance.choice([1, 1, 1, 1, lost]) * law(256, 256 * start)
        curve.record(256, 1, 256 * start, seconds=taken)
    assert 0.9 < curve.seconds(9, 1, 9 * 7500) / law(9, 9 * 7500) < 1.3


STEPS = st.tuples(
    st.integers(1, 600), st.integers(1, 64), st.integers(0, 10**6), st.floats(allow_nan=True)
)


@settings(deadline=None)  # on a busy machine an example may take long
@given(
    st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=9),
    st.lists(STEPS, max_size=60),
    st.sampled_from([None, 4, 16]),
    st.floats(0, 1e9),
)
def test_whatever_is_timed_a_forward_takes_a_time_that_rises_with_its_rows(
    timed, steps, tile, first
):
    """Also behind a first crowd forward that took ages, as the processor was taken away."""
    points = [(3 * at + 1, seconds) for at, seconds in enumerate(timed)]
    curve = CostCurve(points, tile=tile, session_s=first)
    for rows, sessions, keys, seconds in steps:
        curve.record(rows, sessions, keys, seconds=seconds)
    for sessions, keys in ((1, 0), (4, 5000)):
        costs = [curve.seconds(rows, sessions, keys) for rows in range(1, 200)]
        assert all(0 < cost < math.inf for cost in costs)
        assert costs == sorted(costs)


@pytest.mark.parametrize(
    "bad", [[], [(1, 0.1)], [(2, 0.1), (4, 0.2)], [(1, 0.1), (1, 0.1)], [(1, 0.0), (2, 0.1)]]
)
def test_points_that_are_no_curve_are_refused(bad):
    with pytest.raises(InvalidRequest):
        CostCurve(bad)


@pytest.mark.parametrize("bad", [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_a_forward_that_can_not_be_is_refused(bad):
    with pytest.raises(InvalidRequest, match="no forward has"):
        learnt().seconds(*bad)


CURVES = st.lists(st.tuples(st.integers(1, 9), st.floats(0, 3)), max_size=9).map(
    lambda steps: RowCosts(
        tuple(accumulate([(1, 1.0), *steps], lambda at, step: (at[0] + step[0], at[1] + step[1])))
    )
)


@given(CURVES)
def test_costs_go_through_their_points_never_fall_and_begin_with_one(costs):
    of = [costs.of(tokens) for tokens in range(1, 150)]
    assert of[0] == 1
    assert of == pytest.approx(sorted(of))
    assert all(costs.of(tokens) == pytest.approx(cost) for tokens, cost in costs.points)


@given(CURVES, st.integers(0, 40))
def test_what_nodes_add_sums_up_to_what_the_round_costs(costs, count):
    assert 1 + sum(costs.nodes(count)) == pytest.approx(costs.of(1 + count))


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((2, 1.0),),
        ((1, 2.0),),
        ((1, 1.0), (1, 2.0)),
        ((1, 1.0), (4, 0.5)),
        ((1, 1.0), (4, math.nan)),
        ((1, 1.0), (4, math.inf)),
        tuple((at, float(at)) for at in range(1, MAX_POINTS + 2)),
    ],
)
def test_what_is_no_such_curve_is_refused(points):
    with pytest.raises(InvalidRequest, match="cost"):
        RowCosts(points)


@given(st.lists(st.floats(0, 1), max_size=12), st.lists(st.floats(0, 1), max_size=12))
def test_no_other_number_of_values_brings_more(values, prices):
    def surplus(count):
        return sum(values[:count]) - sum(prices[:count])

    best = surplus(num_paying(values, prices))
    assert all(best >= surplus(count) - 1e-9 for count in range(len(values) + 1))


def test_without_prices_everything_is_taken_and_behind_a_dear_node_cheap_ones_may_pay():
    assert num_paying([0.0, 0.0], ()) == 2
    assert num_paying([0.5, 0.5, 0.5], [0.6, 0.0, 0.0]) == 3
    assert num_paying([0.5, 0.01], [0.6, 0.0]) == 0

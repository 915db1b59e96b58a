"""What a round costs by its tokens is a rising curve, and only what exceeds its price is taken."""

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.errors import InvalidRequest
from slipstream.core.row_costs import MAX_POINTS, RowCosts, num_paying

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

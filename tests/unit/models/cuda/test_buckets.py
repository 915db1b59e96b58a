"""Shapes are few, hold what is asked for, and obey the rule about row counts."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.errors import CapacityError
from slipstream.models.cuda.buckets import Buckets, ForwardShape, fit, key_widths, powers, row_steps


@given(st.integers(1, 200_000))
def test_key_widths_are_few_multiples_of_a_block_and_waste_less_than_half(limit):
    widths = key_widths(limit)
    assert all(width % 128 == 0 for width in widths)
    assert widths[-1] - 128 < limit <= widths[-1]
    assert list(widths) == sorted(set(widths))
    assert all(b <= max(1.5 * a + 128, a + 128) for a, b in pairwise(widths))
    assert len(widths) <= 24


@given(st.integers(1, 2048), st.sampled_from([(1, 1 << 30), (2, 32), (16, 16), (5, 24), (4, 128)]))
def test_row_counts_obey_the_rule_of_equal_bits(limit, rule):
    low, high = rule
    steps = row_steps(limit, min_rows=low, max_rows=high)
    assert steps[-1] >= limit
    assert list(steps) == sorted(set(steps))
    for step in steps:
        assert low <= step
        assert step <= high or step % high == 0


def test_powers_end_with_the_limit():
    assert powers(48) == (1, 2, 4, 8, 16, 32, 48)
    assert powers(1) == (1,)
    assert powers(100, least=16) == (16, 32, 64, 100)


def test_a_shape_holds_what_is_asked_for_and_no_more_than_the_next_step():
    buckets = Buckets((1, 4, 16), (1, 2), (1, 8), (128, 256))
    asked = ForwardShape(rows=5, segments=2, segment_size=4, width=129, path=3, draws=0)
    assert buckets.shape(asked) == ForwardShape(16, 2, 8, 256, 16, 0)


def test_more_than_the_largest_shape_is_refused():
    with pytest.raises(CapacityError, match="17 rows are needed, but the largest shape has 16"):
        fit(17, (1, 16), what="rows")

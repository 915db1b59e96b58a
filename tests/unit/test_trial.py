"""Learning what forwards cost leaves nothing behind, and captures what an engine will need."""

import itertools

import pytest

import tiny
from scattered import shaped
from slipstream.target.trial import learn_cost


@pytest.mark.parametrize("num_pages", [4, 64])
@pytest.mark.parametrize("make", [tiny.causal, shaped])
def test_the_engines_memory_is_as_it_was(make, num_pages):
    model = make()
    pool = model.pool(num_pages)
    ticks = itertools.count()
    learn_cost(model, pool, max_rows=16, seconds=1e9, clock=lambda: float(next(ticks)))
    assert pool.num_free == num_pages


def test_forwards_are_captured_over_the_engines_own_pool():
    model = shaped()
    pool = model.pool(64)
    ticks = itertools.count()
    learn_cost(model, pool, max_rows=16, seconds=1e9, clock=lambda: float(next(ticks)))
    assert {key[0] for key in model._shaped._replay._entries} == {id(pool)}
    assert {key[1].rows for key in model._shaped._replay._entries} >= {1, 16}

"""Learning what forwards cost leaves nothing behind, and is kept while it is sound."""

import itertools

import pytest

from slipstream.models.machine import Measurements
from slipstream.verifying import trial
from slipstream.verifying.trial import learn_cost
from support.models import tiny
from support.models.in_memory import causal_model

NAN, INF = float("nan"), float("inf")
NAME = "costs of a tiny model"


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Measurements of a machine on which nothing has run."""
    machine = Measurements(None)
    monkeypatch.setattr(trial, "this_machine", lambda: machine)
    return machine


class Clock:
    """Every other look at it is so many ticks later, by the turn."""

    def __init__(self, *ticks):
        self._ticks = itertools.cycle(ticks)
        self._now = 0.0

    def __call__(self):
        self._now += next(self._ticks)
        return self._now


def learnt(clock, model=None, pool=None):
    model = model or tiny.causal()
    pool = pool or model.pool(64)
    return learn_cost(model, pool, max_tokens=16, seconds=1e9, name=NAME, clock=clock)


def test_what_an_earlier_start_has_found_is_kept_unless_forwards_are_faster(machine):
    first = learnt(Clock(1.0))
    kept = machine.get(NAME)
    again = learnt(Clock(1.5))
    assert machine.get(NAME) == kept
    assert again.seconds(8) == first.seconds(8)


def test_costs_of_a_busy_machine_are_measured_again(machine):
    learnt(Clock(3.0))
    assert learnt(Clock(1.0)).seconds(8) == pytest.approx(1.0)


BAD_POINTS = [[[1, 0.1]], [[1, -1.0], [8, 1.0]], [[1, 1.0], [INF, 2.0]], [[1, 1.0], [8, NAN]]]
SOUND = [[1, 1.0], [8, 1.0]]


@pytest.mark.parametrize(
    "kept",
    [
        *(7, [], None),
        *([points, 0.0, 0.0] for points in BAD_POINTS),
        *([SOUND, bad, 0.0] for bad in (NAN, INF, -1.0)),
        *([SOUND, 0.0, bad] for bad in (NAN, INF, -1.0)),
    ],
)
def test_what_is_no_record_of_costs_is_measured_again(machine, kept):
    machine.keep(NAME, kept)
    assert learnt(Clock(1.0)).seconds(8) == pytest.approx(1.0)


@pytest.mark.parametrize("num_pages", [4, 64])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_engines_memory_is_as_it_was(device, num_pages):
    model = causal_model(tiny.hf_model().to(device))
    pool = model.pool(num_pages)
    learnt(Clock(1.0), model, pool)
    assert pool.num_free == num_pages

"""What the time of a target goes to: exact accounts by a clock that shows what it is told."""

import pytest

from slipstream.verifying.meter import Activity, TimeSpent
from support.models.hand_clock import HandClock

BUSY, WAITING, IDLE = Activity.BUSY, Activity.WAITING, Activity.IDLE


@pytest.fixture
def clock():
    return HandClock(1000.0)


@pytest.fixture
def spent(clock):
    return TimeSpent(clock)


def spend(clock, spent, *turns):
    for what, seconds in turns:
        spent.turn(what)
        clock.now += seconds


MANY = [(IDLE, 3), (BUSY, 2), (WAITING, 1), (BUSY, 4), (WAITING, 0.5), (IDLE, 7)]


@pytest.mark.parametrize(
    ("turns", "busy", "waiting", "idle"),
    [([], 0, 0, 5), ([(BUSY, 2)] * 3, 11, 0, 0), (MANY, 6, 1.5, 15)],
    ids=["before any turn", "turns to the same", "turns to others"],
)
def test_busy_waiting_and_idle_are_told_apart_and_add_up(clock, spent, turns, busy, waiting, idle):
    before = spent.totals()
    spend(clock, spent, *turns)
    clock.now += 5
    assert spent.totals() == {BUSY: busy, WAITING: waiting, IDLE: idle}
    assert sum(spent.totals().values()) == clock.now - 1000
    assert not any(before.values()), "totals are a copy"


def test_the_share_is_of_the_last_window_only(clock, spent):
    shares = []
    for second in range(90):
        spend(clock, spent, (WAITING if second < 30 else BUSY, 1))
        shares.append(spent.waiting_share())
    assert shares[:30] == [1.0] * 30
    assert shares[30:] == [(30 - past) / 30 for past in range(1, 31)] + [0.0] * 30

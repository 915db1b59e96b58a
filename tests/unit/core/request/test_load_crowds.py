"""At every concurrency `auto` keeps up with the better of plain decoding and always speculating."""

import pytest

from slipstream.core.policy.options import Mode
from support.models.crowds import Machine, World

ROUND_S = 0.03


def staircase(tile, step):
    """A CPU with tiled products: every further tile adds `step` rounds, every row a hundredth."""

    def seconds(rows, sessions):
        tiles = -(-rows // tile)
        return ROUND_S * (1 + step * (tiles - 1) + 0.01 * (rows - 1) + 0.004 * (sessions - 1))

    return seconds


TARGETS = {
    "cpu": staircase(32, 0.95),
    # Nothing up to the knee, and as many times more as there are rows beyond.
    "gpu": lambda rows, sessions: ROUND_S * max(1.0, rows / 48) + 1e-6 * rows,
    "steep": lambda rows, sessions: ROUND_S * (1 + 0.03 * rows),
}
DRAFTS = {
    "batched": lambda sessions: 0.03 * ROUND_S,
    "one by one": lambda sessions: (0.02 + 0.012 * sessions) * ROUND_S,
}
SURE = {"low": 0.0, "medium": 0.35, "high": 0.9}


def speeds(machine, sessions, sure, *, steps):
    worlds = {mode: World(machine, mode, sessions=sessions, sure=sure) for mode in Mode}
    return {mode: world.speed(steps) for mode, world in worlds.items()}


@pytest.mark.parametrize("acceptance", SURE)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sessions", [1, 4, 32])
def test_auto_is_never_slower_than_the_better_of_plain_and_always(sessions, target, acceptance):
    draft = DRAFTS["one by one" if sessions in (4, 16) else "batched"]
    machine = Machine(TARGETS[target], draft)
    speed = speeds(machine, sessions, SURE[acceptance], steps=max(1000 // sessions, 100))
    assert speed[Mode.AUTO] >= 0.95 * max(speed[Mode.OFF], speed[Mode.FORCED])


@pytest.mark.parametrize("acceptance", SURE)
def test_the_same_where_the_draft_has_a_machine_of_its_own(acceptance):
    machine = Machine(TARGETS["cpu"], DRAFTS["one by one"], is_shared=False)
    speed = speeds(machine, 8, SURE[acceptance], steps=200)
    assert speed[Mode.AUTO] >= 0.95 * max(speed[Mode.OFF], speed[Mode.FORCED])


def test_a_crowd_that_comes_and_goes_by_one_does_not_change_what_is_offered():
    """Steps of eight and of nine sessions in turn: one offer, whatever the order of the two."""
    world = World(Machine(TARGETS["cpu"], DRAFTS["batched"]), Mode.AUTO, sessions=9, sure=0.35)
    world.speed(300)
    offered = {offer.rows for offer in world.offers[50:]}
    for step in range(200):
        offered.add(world.meter.offer(8 + step % 2).rows)
    assert offered == {32 // 9}

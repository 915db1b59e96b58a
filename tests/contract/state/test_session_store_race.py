"""Routers that race for one session in Redis: never two writers."""

import asyncio
from collections import Counter

import pytest

from slipstream.state.store import Bounds
from support.state.session_races import Race
from support.state.session_stores import in_redis

NUM_CLAIMS, MANY = 60, 1000


@pytest.mark.parametrize("num_claims", [NUM_CLAIMS, pytest.param(MANY, marks=pytest.mark.chaos)])
async def test_of_two_routers_one_writes(session_server, num_claims):
    async with (
        in_redis(session_server, Bounds()) as one,
        in_redis(session_server, Bounds()) as other,
    ):
        race = Race((one.store, other.store), seed=0)
        await asyncio.gather(*[race.run(router, num_claims) for router in range(2)])
        await race.check()
    # Where nobody was refused nothing was raced for.
    assert race.seen >= Counter(run=1, appended=1, SessionTaken=1, SessionBusy=1)

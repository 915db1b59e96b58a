"""Laws of leases: one stream per session, the higher fence wins, what is parked is bounded."""

import asyncio

import pytest

from slipstream.core.errors import CapacityError, InternalError, InvalidRequest, SessionTaken
from slipstream.rpc.leases import Leases
from slipstream.rpc.service_options import SessionOptions


class Engine:
    """Remembers what was freed. Every session is 10 bytes large."""

    def __init__(self):
        self.freed = []
        self.stuck = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def release(self, session_id):
        await self.gate.wait()
        if session_id == self.stuck:
            raise InternalError("it can't be freed")
        self.freed.append(session_id)

    def leases(self, **limits):
        return Leases(self.release, lambda _: 10, SessionOptions(**limits))


@pytest.fixture
def engine():
    return Engine()


@pytest.mark.parametrize(("is_parked", "refused"), [(False, (3, 2)), (True, (2,))])
async def test_a_session_is_refused_to_a_lower_fence_and_a_running_one_to_an_equal_one(
    engine, is_parked, refused
):
    leases = engine.leases()
    lease = await leases.open("a", 3)
    if is_parked:
        await leases.park(lease, ttl_s=60)
    for fence in refused:
        with pytest.raises(SessionTaken, match=f"fence 3, not {fence}"):
            await leases.open("a", fence)
    await leases.clear()


async def test_an_owner_with_an_equal_share_loses_nothing_that_is_parked_to_one_with_more(engine):
    leases = engine.leases(max_parked_bytes=100)
    for number in range(4):
        await leases.park(await leases.open(f"b{number}", 1, "bob"), ttl_s=60)
    await leases.park(await leases.open("none", 1), ttl_s=60)
    for number in range(50):
        await leases.park(await leases.open(f"a{number}", 1, "ann"), ttl_s=60)
    assert engine.freed == [f"a{number}" for number in range(45)]
    await leases.clear()


async def test_places_are_those_of_parked_sessions_and_first_of_the_owner_with_most(engine):
    leases = engine.leases(max_sessions=4)
    await leases.park(await leases.open("b", 1, "bob"), ttl_s=60)
    for number in range(5):
        await leases.park(await leases.open(f"a{number}", 1, "ann"), ttl_s=60)
    assert engine.freed == ["a0", "a1"]
    for number in range(4):
        await leases.open(f"running{number}", 1, "ann")
    assert engine.freed == ["a0", "a1", "a2", "a3", "a4", "b"]
    with pytest.raises(CapacityError, match="4 sessions"):
        await leases.open("none is parked", 1, "bob")


async def test_an_owner_of_too_many_characters_is_refused(engine):
    with pytest.raises(InvalidRequest, match="has 65 characters, but at most 64 fit"):
        await engine.leases().open("a", 1, "x" * 65)


async def test_a_parked_session_is_freed_when_its_time_is_up(engine):
    leases = engine.leases()
    engine.gate.clear()
    await leases.park(await leases.open("a", 1), ttl_s=1e-3)
    loop = asyncio.get_running_loop()
    soon = loop.create_future()
    loop.call_later(0.01, soon.set_result, None)
    await soon
    assert leases.num_parked == 0
    engine.gate.set()
    await leases.clear()
    assert engine.freed == ["a"]


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, 601.0])
async def test_a_time_out_of_range_is_refused(engine, ttl_s):
    leases = engine.leases()
    with pytest.raises(InvalidRequest, match="600"):
        await leases.park(await leases.open("a", 1), ttl_s=ttl_s)


async def test_the_session_is_freed_even_when_the_closing_stream_is_cancelled(engine):
    leases = engine.leases()
    lease = await leases.open("a", 1)
    engine.gate.clear()
    closing = asyncio.ensure_future(leases.close(lease))
    await asyncio.wait([closing], timeout=0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    engine.gate.set()
    await leases.clear()
    assert (engine.freed, leases.num_active) == (["a"], 0)


async def test_a_lease_whose_opening_is_cancelled_is_not_held(engine):
    leases = engine.leases(max_sessions=1)
    await leases.park(await leases.open("a", 1), ttl_s=60)
    engine.gate.clear()
    opening = asyncio.ensure_future(leases.open("b", 1))
    await asyncio.wait([opening], timeout=0)
    opening.cancel()
    await asyncio.wait([opening], timeout=0)
    engine.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await leases.clear()
    assert (leases.num_active, leases.num_parked, set(engine.freed)) == (0, 0, {"a", "b"})


async def test_a_lease_for_which_no_room_can_be_made_is_not_held(engine):
    leases = engine.leases(max_sessions=1)
    await leases.park(await leases.open("a", 1), ttl_s=60)
    engine.stuck = "a"
    with pytest.raises(InternalError, match="freed"):
        await leases.open("b", 1)
    assert (leases.num_active, leases.num_parked, engine.freed) == (0, 0, ["b"])

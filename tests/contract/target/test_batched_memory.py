"""Sessions of a shared target that wait for memory: in order, and no more than may."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from slipstream.core.errors import CapacityError, NoRoom
from slipstream.core.inline import finished
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, Session
from support.models import tiny
from support.models.batches import ask, batched, session_of


@asynccontextmanager
async def full(model, *, max_waiting=64):
    """A target whose memory two sessions, `s0` and `s2`, hold."""
    engine = tiny.local_target(model, num_pages=2)
    async with batched(engine, max_waiting=max_waiting) as (target, thread):
        for number in (0, 2):
            await ask(target, number)
        yield target, thread


async def steps(target, thread):
    """All that can be done has been: a job of one's own comes after the step that it is in."""
    for _ in range(3):
        await thread.run(lambda: None)
        await asyncio.sleep(0)


@pytest.mark.parametrize("leave", ["park", "release"])
async def test_memory_goes_to_who_waited_longest(model, leave):
    async with full(model) as (target, thread):
        first, second = ask(target, 4), ask(target, 6)
        await steps(target, thread)
        await getattr(target, leave)("s0")
        await first
        assert not second.done()
        await getattr(target, leave)("s4")
        assert (await second).tokens


async def test_no_more_wait_than_may(model):
    async with full(model, max_waiting=1) as (target, _):
        waiting = ask(target, 4)
        with pytest.raises(CapacityError, match="1 requests wait"):
            await ask(target, 6)
        await target.release("s0")
        assert (await waiting).tokens


async def test_what_nobody_can_make_room_for_is_refused(model):
    engine = tiny.local_target(model, num_pages=2)
    prompt = tuple(tiny.tokens(100))
    finished(engine.verify(TokenSequence(session_of(0, 100), prompt), Proposal()))
    async with batched(engine) as (target, _):
        big = Session("big", 200, 20)
        with pytest.raises(NoRoom):
            await target.verify(TokenSequence(big, tiny.tokens(200)), Proposal())
        assert (await ask(target, 2)).tokens

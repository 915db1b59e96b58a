"""Hundreds of short sessions, answered or abandoned at any point, leave nothing behind.

The first part of them fills caches. One object kept for each session would be 150 more in every
part; what runs beside the test in its process may add some to a part, but not to each.
"""

import asyncio
import gc
import random
from array import array
from contextlib import suppress
from itertools import pairwise

import pytest

from slipstream.client import AsyncClient, Mode, SpeculationOptions
from slipstream.client.embedded import AsyncEmbedded
from slipstream.client.engine import EngineOptions
from slipstream.state.memory import StoredSession
from slipstream.state.store import Record, StoredTurn
from support.services import fleet

PROMPTS = ("hello there", "abcabcabcabc", "1 2 3 " * 40)
MAX_TOKENS = 8
CANCEL_AFTER_S = (0.0, 0.002, 0.02)
"""Before the request reaches the engine, while it waits for a step, and within one."""
LIMIT_S = 60
OF_STORE = (StoredSession, Record, StoredTurn, array)


async def visit(client, prompt, mode, *, num_read, cancel_after_s):
    """Read so many tokens of an answer at most, and no longer than that many seconds."""
    options = SpeculationOptions(mode=mode)
    with suppress(TimeoutError):
        async with asyncio.timeout(cancel_after_s):
            stream = client.stream(prompt, max_tokens=MAX_TOKENS, speculation=options)
            async with stream as chunks:
                await read(chunks, num_read)


async def read(chunks, num_tokens):
    """Read until so many tokens have come or the answer ends."""
    async for chunk in chunks:
        num_tokens -= len(chunk.token_ids)
        if num_tokens <= 0:
            return


async def run_sessions(client, num_sessions, rng, *, drafts):
    """Run sessions by eight users, who abandon a third of the answers."""
    numbers = iter(range(num_sessions))

    async def user():
        for number in numbers:
            is_left = rng.random() < 1 / 3
            num_read = rng.randrange(MAX_TOKENS) if is_left else MAX_TOKENS
            cancel_after_s = None if num_read else rng.choice(CANCEL_AFTER_S)
            mode = Mode.FORCED if drafts and number % 2 else Mode.AUTO
            prompt = PROMPTS[number % len(PROMPTS)]
            await visit(client, prompt, mode, num_read=num_read, cancel_after_s=cancel_after_s)

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(user())


async def settled(others):
    """Wait until only `others` run; return how many objects the collector tracks then.

    The store keeps every session's record for a request that is repeated, within its own bounds.
    """
    async with asyncio.timeout(LIMIT_S):
        while asyncio.all_tasks() - others:
            await asyncio.sleep(0.005)
    gc.collect()
    return sum(type(at) not in OF_STORE for at in gc.get_objects())


@pytest.mark.parametrize("draft", ["glide", "none"])
async def test_sessions_that_end_or_are_abandoned_leave_nothing_behind(folder, draft):
    name = str(fleet.glide_of(folder)) if draft == "glide" else draft
    engines = AsyncEmbedded.load(str(folder), name, EngineOptions(dtype="float32", threads=1))
    rng, drafts = random.Random(3), draft == "glide"
    async with AsyncClient.of(engines) as client:
        others = asyncio.all_tasks()
        tracked: list[int] = []
        while not any(after - before < 50 for before, after in pairwise(tracked[1:])):
            assert len(tracked) < 8, tracked
            await run_sessions(client, 150, rng, drafts=drafts)
            tracked.append(await settled(others))
            memory = engines.engine.target.memory
            used = memory.pool.num_pages - memory.pool.num_free
            assert used == memory._prefixes.num_idle > 0
            if drafts:
                pool = engines.drafter.draft.pool
                assert pool.num_free == pool.num_pages

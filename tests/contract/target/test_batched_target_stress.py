"""Hundreds of sessions that come, go, park and break off at random: nothing stays behind."""

import asyncio
import random

import pytest

from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, SamplingParams, Session
from slipstream.engine.thread import EngineThread
from slipstream.verifying.batcher import BatchedTarget
from slipstream.verifying.schedule import StepBudget
from support.models import tiny

NUM_SESSIONS = 150
NUM_PAGES = 8
"""Room for four sessions at once."""


async def turn(target, session, tokens):
    sequence = TokenSequence(session, tokens)
    while True:
        verdict = await target.verify(sequence, Proposal())
        sequence.append(verdict.tokens)
        if verdict.finish_reason is not None:
            return sequence.tokens


async def come_and_go(target, number, chance):
    """One session: a turn or two, unless it is cancelled in between."""
    name, num_tokens = f"s{number}", chance.randint(1, 180)
    tokens = tiny.tokens(num_tokens, number % 7)
    try:
        for _ in range(chance.randint(1, 2)):
            distribution = SamplingParams(temperature=1.0, seed=number)
            session = Session(name, len(tokens), chance.randint(1, 9), distribution)
            tokens = await turn(target, session, tokens)
            await target.park(name)
    finally:
        await asyncio.shield(target.release(name))


@pytest.mark.parametrize("seed", [0, 1])
async def test_sessions_that_come_and_go_leave_nothing_behind(seed):
    chance = random.Random(seed)
    engine = tiny.local_target(tiny.causal(), num_pages=NUM_PAGES, max_sessions=NUM_SESSIONS)
    thread = EngineThread("target")
    budget = StepBudget(max_tokens=64, tile=16)
    target = BatchedTarget(engine, thread, budget, max_waiting=NUM_SESSIONS)
    tasks, num_done = [], 0
    for number in range(NUM_SESSIONS):
        tasks.append(asyncio.create_task(come_and_go(target, number, chance)))
        for _ in range(chance.randint(0, 30)):
            await asyncio.sleep(0)
        if chance.random() < 0.4:
            chance.choice(tasks).cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert outcome is None or isinstance(outcome, asyncio.CancelledError)
        num_done += outcome is None
    assert NUM_SESSIONS > num_done > NUM_SESSIONS / 3
    assert target.num_waiting == 0
    while len(asyncio.all_tasks()) > 1:  # what was shielded is still on its way
        await asyncio.sleep(0)
    assert engine.memory.pool.num_used_bytes == engine.memory.num_cached_bytes
    assert engine.memory.num_cached_bytes == engine.memory.num_idle_bytes
    await target.close()
    thread.close()

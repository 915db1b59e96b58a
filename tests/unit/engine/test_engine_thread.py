"""The engine's thread: one job after the other, and clocks of what it does."""

import asyncio
import threading

import pytest

from slipstream.engine.thread import EngineThread
from support.models.batches import held
from support.models.hand_clock import HandClock


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def thread(clock):
    thread = EngineThread("test", clock=clock)
    yield thread
    thread.close()


def working(clock: HandClock, seconds: float) -> None:
    clock.now += seconds


async def test_jobs_run_in_order_and_say_how_long_they_waited(thread, clock):
    began, go = threading.Event(), threading.Event()
    first = asyncio.ensure_future(thread.run(lambda: (began.set(), go.wait(60))))
    await asyncio.to_thread(began.wait, 60)
    second = asyncio.ensure_future(thread.run(lambda: working(clock, 2.0)))
    await asyncio.sleep(0)
    assert thread.num_waiting == 1
    clock.now += 3.0
    go.set()
    assert ((await first).queue_s, (await first).engine_s) == (0.0, 3.0)
    assert ((await second).queue_s, (await second).engine_s) == (3.0, 2.0)
    assert thread.num_waiting == 0


async def test_a_job_whose_waiter_has_gone_never_runs(thread):
    ran: list[int] = []
    async with held(thread):
        second = asyncio.ensure_future(thread.run(lambda: ran.append(1)))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
    await thread.run(lambda: None)
    assert (ran, thread.num_waiting) == ([], 0)


async def test_time_without_a_job_is_idle(thread, clock):
    assert thread.idle_s == 0.0
    clock.now += 1.0
    assert thread.idle_s == 1.0
    seen = await thread.run(lambda: (working(clock, 5.0), thread.idle_s))
    assert seen.value[1] == thread.idle_s == 1.0
    clock.now += 0.5
    assert thread.idle_s == 1.5


async def test_a_job_that_fails_is_its_waiter_s_error_and_was_no_idle_time(thread, clock):
    def fail() -> None:
        working(clock, 5.0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await thread.run(fail)
    assert thread.idle_s == 0.0

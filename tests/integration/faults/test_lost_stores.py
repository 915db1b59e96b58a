"""Requests outlive what becomes of the store: data that is lost, silence, and clocks that jump."""

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from secrets import token_hex
from types import SimpleNamespace

import pytest

from slipstream.core.errors import SessionNotFound
from slipstream_router import app
from slipstream_router.lease_keeper import BEAT_S
from support.network.streams import read, tokens_of
from support.services.fleet import routed, running, target_worker

NUM_TOKENS = 400
NUM_STREAMS = 6


@pytest.fixture
async def router(folder):
    async with AsyncExitStack() as stack:
        target = target_worker(folder)
        await stack.enter_async_context(running(target))
        yield lambda **config: stack.enter_async_context(routed([target], **config))


async def test_a_later_turn_goes_on_while_the_store_loses_its_data(router, server):
    client = await router(store_url=server.url, store_timeout_s=2.0)
    async with client.session() as session:
        await session.generate("one", max_tokens=5)
        stream = session.stream("two", max_tokens=NUM_TOKENS)
        found = await read(stream, 20)
        server.call("FLUSHALL")
        found += await read(stream)
        assert len(tokens_of(found)) == NUM_TOKENS
        assert (await session.generate("three", max_tokens=5)).stats.continuity.is_kept
        server.call("FLUSHALL")
        with pytest.raises(SessionNotFound):
            await session.generate("four", max_tokens=5)


async def test_a_request_that_waits_goes_on_when_the_store_loses_its_data(folder, server):
    target = target_worker(folder)
    options = {"store_url": server.url, "store_timeout_s": 2.0, "lease_s": 1.0}
    async with running(target), routed([target], **options) as client:
        expected = (await client.generate("one", max_tokens=8)).token_ids
        is_stopped = threading.Event()
        thread = target._running[1].target.thread
        stopped = asyncio.ensure_future(thread.run(is_stopped.wait))
        waiting = asyncio.ensure_future(client.generate("one", max_tokens=8))
        try:
            for _ in range(4):
                await asyncio.sleep(BEAT_S)
                server.call("FLUSHALL")
        finally:
            is_stopped.set()
            await stopped
        assert (await waiting).token_ids == expected


async def test_sessions_in_memory_outlive_jumps_of_the_clock(router, monkeypatch):
    jumped_s = 0.0
    clocks = SimpleNamespace(time=lambda: time.time() + jumped_s, monotonic=time.monotonic)
    monkeypatch.setattr(app, "time", clocks)
    client = await router()
    async with client.session() as session:
        await session.generate("one", max_tokens=5)
        jumped_s = 86_400.0
        stream = session.stream("two", max_tokens=60)
        found = await read(stream, 10)
        jumped_s = -86_400.0
        assert len(tokens_of(found + await read(stream))) == 60
        jumped_s = 2 * 86_400.0
        await session.generate("three", max_tokens=5)


@pytest.mark.parametrize("num_routers", [1, 2])
async def test_streams_left_while_the_store_was_silent_go_on_alone(router, server, num_routers):
    """An attempt that was left writes what it has once the store is back; another one runs."""
    options = {"store_url": server.url, "store_timeout_s": 0.1}
    clients = [await router(**options) for _ in range(num_routers)]
    expected = (await clients[0].generate("hello", max_tokens=NUM_TOKENS)).token_ids

    async def outlived(number: int, silent: asyncio.Event) -> tuple[int, ...]:
        name = {"request_id": token_hex(8), "max_tokens": NUM_TOKENS}
        await silent.wait()
        left = clients[0].stream("hello", **name)
        found = await read(left, 5)
        await left.aclose()
        await asyncio.sleep(0.07 * number)  # beats of the two fall in either order
        again = clients[-1].stream("hello", num_received=len(tokens_of(found)), **name)
        return tokens_of(found + await read(again))

    silent = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(outlived(at, silent)) for at in range(NUM_STREAMS)]
        server.stop_answering()
        silent.set()
        await asyncio.sleep(1.0)
        server.go_on()
    assert [stream.result() for stream in streams] == [expected] * NUM_STREAMS

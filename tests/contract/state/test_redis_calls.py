"""Laws of what is asked of a Redis: whoever is cancelled ends, wherever it was."""

import asyncio

import pytest
import redis.asyncio

from slipstream.core.errors import Unavailable
from slipstream.state.redis_client import RedisClient
from slipstream.state.scripts import Script

LIMIT_S = 20.0
ONE = Script("return 1")


@pytest.mark.parametrize("num_steps", range(0, 24, 2))
async def test_whoever_asks_for_ever_ends_when_cancelled(session_server, num_steps):
    async with redis.asyncio.from_url(session_server.url) as client:
        calls = RedisClient(client, timeout_s=LIMIT_S, place="here")

        async def ask_for_ever():
            while True:
                assert await calls.run(ONE, [], []) == 1

        asking = asyncio.get_running_loop().create_task(ask_for_ever())
        for _ in range(num_steps):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking}, timeout=LIMIT_S)
        assert asking.cancelled()
        assert await calls.run(ONE, [], []) == 1


async def test_what_comes_after_its_end_is_refused_and_opens_no_connection(session_server):
    client = redis.asyncio.from_url(session_server.url)
    calls = RedisClient(client, timeout_s=LIMIT_S, place="here")
    assert await calls.run(ONE, [], []) == 1
    await calls.aclose()
    with pytest.raises(Unavailable, match="the store at here is closed"):
        await calls.run(ONE, [], [])
    await calls.aclose()

"""Laws of what is asked of a Redis: whoever is cancelled ends, wherever it was."""

import asyncio
import gc
import warnings

import pytest
import redis.asyncio

from redis_server import redis_server
from slipstream.state.calls import Calls, Script

LIMIT_S = 20.0
ONE = Script("return 1")
# Cancelled in the very step in which it has come about, a connection belongs to nobody: asyncio
# closes it when it is collected, and warns. That must not happen in anybody else's test.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module", autouse=True)
def lost_connections():
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def server():
    with redis_server() as server:
        yield server


@pytest.mark.parametrize("num_steps", range(0, 24, 2))
async def test_whoever_asks_for_ever_ends_when_cancelled(server, num_steps):
    async with redis.asyncio.from_url(server.url) as client:
        calls = Calls(client, timeout_s=LIMIT_S, place="here")

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

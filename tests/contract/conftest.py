"""A store of sessions for laws of all stores: in memory, and in a server of the module's."""

import pytest

from redis_server import redis_server
from session_stores import InMemory, in_redis


@pytest.fixture(scope="module")
def session_server():
    with redis_server() as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
async def place(request):
    if request.param == "memory":
        yield InMemory()
        return
    async with in_redis(request.getfixturevalue("session_server")) as place:
        yield place


@pytest.fixture
def store(place):
    return place.store

"""A listener to telemetry, and a store of sessions for laws of all stores: in memory, and in a
server of the module's."""

import gc
import warnings

import pytest

from support.state.redis_server import redis_server
from support.state.session_stores import InMemory, in_redis
from support.telemetry.listening import Listener


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


@pytest.fixture
def listener():
    return Listener()


def pytest_collection_modifyitems(items):
    """A connection that is cancelled in the very step in which it has come about belongs to nobody:
    asyncio closes it when it is collected, and warns. Redis' client leaves some behind."""
    for item in items:
        if item.path.name.startswith("test_redis_"):
            for kind in ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))


@pytest.fixture(scope="module", autouse=True)
def lost_connections(request):
    """They are collected where they were left, not in anybody else's test."""
    yield
    if request.path.name.startswith("test_redis_"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

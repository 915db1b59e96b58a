"""Laws of the registry of live replicas, on a real Redis-compatible server."""

import pytest
import redis.asyncio

from slipstream.core.errors import InvalidRequest
from slipstream.core.request.server_info import ReplicaRole
from slipstream.state.redis_client import RedisClient
from slipstream.state.registry import Announcement, Registry, announced
from support.services.background import until
from support.state.redis_server import redis_server

LIMIT_S = 20
TARGET, DRAFT = ReplicaRole.TARGET, ReplicaRole.DRAFT
ADDRESS, OTHER = "10.0.0.1:7", "10.0.0.2:7"


def target(address=ADDRESS, incarnation="one"):
    return Announcement(TARGET, address, incarnation)


@pytest.fixture
async def client(server):
    server.call("FLUSHALL")
    async with redis.asyncio.from_url(server.url) as client:
        yield client


def registry_of(client, prefix="test"):
    return Registry(RedisClient(client, timeout_s=LIMIT_S, place="here"), prefix=prefix)


@pytest.fixture
def registry(client):
    return registry_of(client)


async def test_who_announces_itself_is_listed_once(registry):
    for address in (OTHER, ADDRESS, ADDRESS):
        await registry.announce(target(address))
    assert await registry.live(TARGET) == (ADDRESS, OTHER)
    assert await registry.live(DRAFT) == ()


async def test_who_leaves_is_gone_but_not_the_process_that_took_its_address(registry):
    await registry.announce(target())
    await registry.announce(target(incarnation="two"))
    await registry.leave(target())
    assert await registry.live(TARGET) == (ADDRESS,)
    await registry.leave(target(incarnation="two"))
    assert await registry.live(TARGET) == ()


async def test_who_is_silent_for_too_long_is_removed(registry, client):
    await registry.announce(target())
    await registry.announce(target(OTHER))
    kept = await client.hget("test:replicas:{target}", "10.0.0.1:7")
    said, rest = kept.split(b" ", 1)
    await client.hset("test:replicas:{target}", "10.0.0.1:7", b"%d " % (int(said) - 6000) + rest)
    assert await registry.live(TARGET) == (OTHER,)
    assert await client.hkeys("test:replicas:{target}") == [OTHER.encode()]


async def test_one_that_can_not_be_read_hides_no_other(registry, client, caplog):
    await registry.announce(target())
    kept = await client.hget("test:replicas:{target}", "10.0.0.1:7")
    said = kept.split(b" ")[0]
    await client.hset("test:replicas:{target}", "x", said + b" one {}")
    for _ in range(2):
        assert await registry.live(TARGET) == (ADDRESS,)
    assert len(caplog.records) == 1


async def test_a_prefix_is_a_world_of_its_own(registry, client):
    await registry.announce(target())
    assert await registry_of(client, "other").live(TARGET) == ()


async def test_a_service_is_listed_while_it_runs_also_when_the_store_comes_late(caplog):
    caplog.set_level("INFO")
    with redis_server() as server:
        server.kill()
        async with redis.asyncio.from_url(server.url) as client:
            registry = registry_of(client)
            async with announced(registry, target(), every_s=0.02):
                await until(lambda: "can't announce itself" in caplog.text)
                server.start()
                await until(lambda: "announces itself again" in caplog.text)
                assert await registry.live(TARGET) == (ADDRESS,)
            assert await registry.live(TARGET) == ()


@pytest.mark.parametrize("address", ["", "a", ":1", "a:0", "a:65536", "a b:1", "é:1", "a\n:1"])
def test_a_replica_has_an_address_that_routers_can_dial(address):
    with pytest.raises(InvalidRequest, match="not HOST:PORT"):
        target(address)
    with pytest.raises(InvalidRequest, match="incarnation is"):
        target(incarnation=f"two words {address}")

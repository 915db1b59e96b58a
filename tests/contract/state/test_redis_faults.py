"""A Redis that is slow, full, read-only, killed or forgetful: one sentence, and no wrong token.
Whoever asks it and is cancelled ends, wherever it was."""

import asyncio

import pytest
import redis.asyncio

from slipstream.core.errors import SessionNotFound, SessionOutOfSync, Unavailable
from slipstream.state.redis_client import RedisClient
from slipstream.state.store import SessionUpdate, StoreLease
from support.network.ports import free_port
from support.services.background import until
from support.state.redis_server import redis_server
from support.state.session_stores import begins, claim, held, opened, store_at, told

HASH, TOKENS = "slipstream:session:{chat}", "slipstream:session:{chat}:tokens"


@pytest.fixture(scope="module")
def shared():
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def server(shared):
    shared.call("FLUSHALL")
    return shared


@pytest.fixture
async def store(server):
    async with store_at(server.url) as store:
        yield store


async def test_a_server_that_stops_is_waited_for_no_longer_than_said(server, store):
    lease = await held(store, begins())
    async with store_at(server.url, timeout_s=0.05) as hasty:
        server.stop_answering()
        asked = [hasty.append(lease, opened(5, 6)), hasty.renew(lease), hasty.acquire(claim())]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(answer, Unavailable)
            assert str(answer).endswith("did not answer in time")
        server.go_on()


async def test_late_answers_are_not_taken_for_others(server):
    async with store_at(server.url, timeout_s=0.5) as store:
        asks = [begins(session_id=name) for name in "abcd"]
        leases = [await until_answered(lambda ask=ask: held(store, ask)) for ask in asks]
        server.stop_answering()
        writes = [store.append(lease, opened(5, 6)) for lease in leases]
        assert all(await asyncio.gather(*writes, return_exceptions=True))  # errors, all of them
        server.go_on()
        for number, (ask, lease) in enumerate(zip(asks, leases, strict=True)):
            update = opened(5, 6, number)
            await until_answered(lambda lease=lease, update=update: store.append(lease, update))
            record = (await until_answered(lambda ask=ask: store.acquire(ask))).record
            assert (record.session_id, record.tokens) == (ask.session_id, (5, 6, number))


async def until_answered(ask):
    """The answer of a server that may be slow for once."""
    for _ in range(20):
        try:
            return await ask()
        except Unavailable:
            continue
    raise AssertionError("the server does not answer")


@pytest.mark.parametrize("evicted", [HASH, TOKENS])
async def test_a_session_of_which_a_part_was_evicted_is_not_there(server, store, evicted):
    lease = await held(store, begins())
    await store.append(lease, opened(5, 6, 7))
    server.call("DEL", evicted)
    for write in (store.append(lease, SessionUpdate(3, (8,))), store.renew(lease)):
        with pytest.raises(SessionOutOfSync):
            await write
    with pytest.raises(SessionNotFound):
        await store.acquire(claim("r2"))
    again = await store.acquire(begins())
    assert again.record.tokens == ()
    assert again.lease.fence > lease.fence
    await store.append(again.lease, opened(5, 6, 7, 8))
    assert (await store.acquire(begins())).record.tokens == (5, 6, 7, 8)


async def test_a_full_server_changes_nothing_and_still_forgets(server, store):
    lease = await held(store, begins())
    await store.append(lease, opened(5, 6, 7))
    await told(store, begins(session_id="other"), opened(5, 6))
    server.call("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(Unavailable, match="has no memory left"):
            await store.append(lease, SessionUpdate(3, (8,), ending="done"))
        for asked in (begins("r1", "another"), claim("r2", "other")):
            with pytest.raises(Unavailable, match="has no memory left"):
                await store.acquire(asked)
        assert (await store.delete("other", "ann")).tokens == (5, 6)
    finally:
        server.call("CONFIG", "SET", "maxmemory", 0)
    record = (await store.acquire(begins())).record
    assert (record.tokens, record.turn.ending) == ((5, 6, 7), None)
    with pytest.raises(SessionNotFound):
        await store.acquire(claim("r2", "other"))


@pytest.mark.parametrize("is_killed", [True, False])
async def test_sessions_go_on_when_the_endpoint_leads_to_another_server(is_killed):
    port = free_port()
    with (
        redis_server("--repl-diskless-sync-delay", "0", port=port) as first,
        redis_server("--replicaof", f"127.0.0.1 {port}") as second,
    ):
        await until(lambda: second.call("INFO", "replication")["master_link_status"] == "up")
        async with store_at(first.url) as store:
            lease = await held(store, begins())
            await store.append(lease, opened(5, 6, 7))
            assert first.call("WAIT", 1, 5000) == 1
            if is_killed:
                first.kill()
            else:  # connections to it stay open
                first.call("CONFIG", "SET", "port", 0)
                first.call("REPLICAOF", "127.0.0.1", "1")
            said = None if is_killed else "is a replica"
            with pytest.raises(Unavailable, match=said):
                await store.append(lease, SessionUpdate(3, (8,)))
            second.call("REPLICAOF", "NO", "ONE")
            second.call("CONFIG", "SET", "port", port)
            await store.append(lease, SessionUpdate(3, (8,)))
            assert (await store.acquire(begins())).record.tokens == (5, 6, 7, 8)


async def test_a_node_of_a_cluster_is_refused_in_a_sentence():
    flags = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with redis_server(*flags, port=free_port()) as node:
        async with store_at(node.url.removesuffix("/0")) as store:
            with pytest.raises(Unavailable, match="is part of a Redis Cluster"):
                await store.acquire(begins())


async def test_an_address_without_a_listener_is_refused():
    for url in ("redis://127.0.0.1:1", "unix:///nowhere/redis.sock"):
        async with store_at(url) as store:
            with pytest.raises(Unavailable, match="can't be reached"):
                await store.renew(StoreLease("chat", 1, 1.0))


@pytest.mark.parametrize("num_steps", range(0, 24, 2))
async def test_a_caller_that_waits_for_ever_ends_when_cancelled(server, num_steps):
    async with redis.asyncio.from_url(server.url, socket_timeout=None) as client:
        calls = RedisClient(client, timeout_s=20.0, place="here")

        async def ask_for_ever():
            while True:
                assert await calls.run("return 1", [], []) == 1

        asking = asyncio.get_running_loop().create_task(ask_for_ever())
        for _ in range(num_steps):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking}, timeout=20.0)
        assert asking.cancelled()
        assert await calls.run("return 1", [], []) == 1


async def test_what_comes_after_its_end_is_refused_and_opens_no_connection(server):
    calls = RedisClient(redis.asyncio.from_url(server.url), timeout_s=20.0, place="here")
    assert await calls.run("return 1", [], []) == 1
    await calls.aclose()
    with pytest.raises(Unavailable, match="the store at here is closed"):
        await calls.run("return 1", [], [])
    await calls.aclose()

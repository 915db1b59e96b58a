"""Sessions in servers that belong together: sentinels with their master, and clusters."""

import time

import pytest

from slipstream.core.errors import SessionTaken, Unavailable
from slipstream.state.factory import open_store
from slipstream.state.options import StoreOptions
from slipstream.state.record import SessionUpdate
from support.state.redis_groups import cluster, watched_master
from support.state.session_stores import BOUNDS, begins, claim, held, opened, told

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def two_nodes():
    with cluster(2) as (url, nodes):
        yield url, nodes


async def test_sessions_go_on_with_the_replica_when_the_master_is_killed():
    with watched_master() as (url, master, replica):
        unknown = open_store(
            StoreOptions(f"{url}.other", timeout_s=5.0), BOUNDS, time.monotonic, next_fence=int
        )
        with pytest.raises(
            Unavailable, match=r"the store at main\.other of 127.* can't be reached"
        ):
            await unknown.acquire(begins())
        await unknown.aclose()
        store = open_store(StoreOptions(url, timeout_s=2.0), BOUNDS, time.monotonic, next_fence=int)
        lease = await held(store, begins())
        await store.append(lease, opened(5, 6, 7))
        assert master.call("WAIT", 1, 5000) == 1
        master.kill()
        refused, last = 0, time.monotonic() + LIMIT_S
        while True:
            try:
                await store.append(lease, SessionUpdate(3, (8,)))
            except Unavailable:
                refused += 1
                assert time.monotonic() < last
            else:
                break
        assert refused
        assert replica.call("ROLE")[0] == b"master"
        assert (await store.acquire(begins())).record.tokens == (5, 6, 7, 8)
        await store.aclose()


async def test_a_cluster_keeps_each_session_in_one_place(two_nodes):
    url, nodes = two_nodes
    store = open_store(StoreOptions(url, timeout_s=10.0), BOUNDS, time.monotonic, next_fence=int)
    for number in range(8):
        name = f"chat{number}"
        older = await held(store, begins(session_id=name))
        await store.append(older, opened(5, 6, 7))
        newer = await held(store, begins(session_id=name))
        with pytest.raises(SessionTaken):
            await store.append(older, SessionUpdate(3, (8,)))
        await store.append(newer, SessionUpdate(3, (9,), ending="done"))
        await store.release(newer, target="target:1", draft=None)
        assert (await store.acquire(begins(session_id=name))).record.tokens == (5, 6, 7, 9)
    assert all(node.call("DBSIZE") for node in nodes)
    assert (await store.delete("chat0", "ann")).tokens == (5, 6, 7, 9)
    await store.aclose()


async def test_a_part_of_a_cluster_that_is_gone_is_missed_by_its_sessions_alone():
    with cluster(2) as (url, nodes):
        store = open_store(
            StoreOptions(url, timeout_s=10.0), BOUNDS, time.monotonic, next_fence=int
        )
        names = [f"chat{number}" for number in range(8)]
        for node in nodes:
            node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
        for name in names:
            await told(store, begins(session_id=name), opened(5, 6))
        nodes[1].kill()
        lost = 0
        for name in names:
            try:
                await store.acquire(claim("r2", name))
            except Unavailable:
                lost += 1
        assert 0 < lost < len(names)
        await store.aclose()


async def test_one_node_of_a_cluster_is_no_server_of_its_own(two_nodes):
    url, _ = two_nodes
    alone = url.replace("redis+cluster", "redis")
    store = open_store(StoreOptions(alone, timeout_s=10.0), BOUNDS, time.monotonic, next_fence=int)
    refusals = []
    for number in range(8):
        try:
            await store.acquire(begins(session_id=f"chat{number}"))
        except Unavailable as error:
            refusals.append(str(error))
    assert refusals
    assert all("is part of a cluster" in text for text in refusals)
    await store.aclose()

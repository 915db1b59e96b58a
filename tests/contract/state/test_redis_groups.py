"""Sessions in servers that belong together: sentinels with their master, and clusters."""

import time

import pytest

from slipstream.core.errors import SessionTaken, Unavailable
from slipstream.state.record import SessionUpdate
from support.state.redis_groups import cluster, watched_master
from support.state.session_stores import begins, claim, held, opened, store_at, told

LIMIT_S = 30.0
NAMES = [f"chat{number}" for number in range(8)]


@pytest.fixture(scope="module")
def two_nodes():
    with cluster(2) as (url, nodes):
        yield url, nodes


async def test_sessions_go_on_with_the_replica_when_the_master_is_killed():
    with watched_master() as (url, master, replica):
        said = r"the store at main\.other of 127.* can't be reached"
        async with store_at(f"{url}.other", timeout_s=5.0) as unknown:
            with pytest.raises(Unavailable, match=said):
                await unknown.acquire(begins())
        async with store_at(url, timeout_s=2.0) as store:
            lease = await held(store, begins())
            await store.append(lease, opened(5, 6, 7))
            assert master.call("WAIT", 1, 5000) == 1
            master.kill()
            refused, last = 0, time.monotonic() + LIMIT_S
            while await outcome(store.append(lease, SessionUpdate(3, (8,)))) is not None:
                refused += 1
                assert time.monotonic() < last
            assert refused
            assert replica.call("ROLE")[0] == b"master"
            assert (await store.acquire(begins())).record.tokens == (5, 6, 7, 8)


async def test_a_cluster_keeps_each_session_in_one_place(two_nodes):
    url, nodes = two_nodes
    async with store_at(url) as store:
        for number in range(8):
            name = f"chat{number}"
            older = await held(store, begins(session_id=name))
            await store.append(older, opened(5, 6, 7))
            newer = await held(store, begins(session_id=name))
            with pytest.raises(SessionTaken):
                await store.append(older, SessionUpdate(3, (8,)))
            await store.append(newer, SessionUpdate(3, (9,), ending="done"))
            await store.release(newer, target="target:1", draft=None)
            record = (await store.acquire(begins(session_id=name))).record
            assert record.tokens == (5, 6, 7, 9)
        assert all(node.call("DBSIZE") for node in nodes)
        assert (await store.delete("chat0", "ann")).tokens == (5, 6, 7, 9)


async def test_a_part_of_a_cluster_that_is_gone_is_missed_by_its_sessions_alone():
    with cluster(2) as (url, nodes):
        async with store_at(url) as store:
            for node in nodes:
                node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
            for name in NAMES:
                await told(store, begins(session_id=name), opened(5, 6))
            nodes[1].kill()
            asks = [store.acquire(claim("r2", name)) for name in NAMES]
            answers = [await outcome(ask) for ask in asks]
        assert 0 < sum(isinstance(at, Unavailable) for at in answers) < len(NAMES)


async def outcome(answer):
    try:
        return await answer
    except Unavailable as error:
        return error


async def test_one_node_of_a_cluster_is_no_server_of_its_own(two_nodes):
    async with store_at(two_nodes[0].replace("redis+cluster", "redis")) as store:
        answers = [await outcome(store.acquire(begins(session_id=name))) for name in NAMES]
    refusals = [str(answer) for answer in answers if isinstance(answer, Unavailable)]
    assert refusals
    assert all("is part of a cluster" in text for text in refusals)

"""Laws of what keys may ask for, in memory and in Redis."""

import asyncio
import logging
from contextlib import asynccontextmanager
from itertools import count

import pytest
import redis.asyncio

from slipstream.core.errors import LimitExceeded
from slipstream.state.quotas import MemoryQuotas, QuotaLimits, Ticket
from slipstream.state.redis_client import RedisClient
from slipstream.state.redis_store import RedisQuotas
from support.state.redis_server import redis_server

TTL_S = 30.0


class InMemory:
    """Quotas in memory, whose time passes when told."""

    def __init__(self):
        self._now_s = 1000.0
        self.quotas = MemoryQuotas(lambda: self._now_s)

    async def passes(self, seconds):
        self._now_s += seconds


class InRedis:
    """Quotas in Redis; time passes by having all that is kept there be older."""

    def __init__(self, client, quotas):
        self._client = client
        self.quotas = quotas

    async def passes(self, seconds):
        for name in await self._client.keys("*:left"):
            for at in (b"r_at", b"t_at"):
                if await self._client.hexists(name, at):
                    await self._client.hincrbyfloat(name, at, -1000 * seconds)
        for name in await self._client.keys("*:running"):
            for member in await self._client.zrange(name, 0, -1):
                await self._client.zincrby(name, -1000 * seconds, member)


@asynccontextmanager
async def in_redis(url, *, timeout_s=60.0, clock=lambda: 0.0):
    client = redis.asyncio.from_url(url, socket_timeout=60, socket_connect_timeout=60)
    calls = RedisClient(client, timeout_s=timeout_s, place="test")
    quotas = RedisQuotas(calls, prefix="test", clock=clock)
    yield InRedis(client, quotas)
    await quotas.aclose()


@pytest.fixture(params=["memory", "redis"])
async def place(request):
    if request.param == "memory":
        yield InMemory()
        return
    async with in_redis(request.getfixturevalue("session_server").url) as place:
        await place._client.flushall()
        yield place


_attempts = count()


def ticket(request_id="", key="alice", **limits):
    attempt = str(next(_attempts))
    return Ticket(key, QuotaLimits(**limits), request_id or attempt, attempt)


async def refused(place, asked):
    with pytest.raises(LimitExceeded) as caught:
        await place.quotas.take(asked, ttl_s=TTL_S)
    return caught.value


async def test_a_minutes_requests_may_come_at_once_and_the_next_gets_a_time(place):
    for _ in range(3):
        await place.quotas.take(ticket(requests_per_minute=3), ttl_s=TTL_S)
    error = await refused(place, ticket(requests_per_minute=3))
    assert 18 < error.retry_after_s <= 20
    sentence = "the key 'alice' may have 3 requests per minute, and has sent them"
    assert str(error).startswith(f"{sentence} (requests_per_minute); try again in ")
    assert str(error).endswith(f" {error.retry_after_s:g} seconds")
    await place.passes(error.retry_after_s)
    await place.quotas.take(ticket(requests_per_minute=3), ttl_s=TTL_S)
    await refused(place, ticket(requests_per_minute=3))
    await place.passes(3600)
    for _ in range(3):
        await place.quotas.take(ticket(requests_per_minute=3), ttl_s=TTL_S)
    await refused(place, ticket(requests_per_minute=3))


async def test_tokens_are_charged_when_known_and_a_debt_is_waited_for(place):
    first, second = ticket(tokens_per_minute=60), ticket(tokens_per_minute=60)
    await place.quotas.take(first, ttl_s=TTL_S)
    await place.quotas.charge(first, 59, ttl_s=TTL_S)
    await place.quotas.take(second, ttl_s=TTL_S)  # one is left, which is above none
    await place.quotas.charge(second, 50, ttl_s=TTL_S)
    await place.quotas.give_back(second, 11)
    error = await refused(place, ticket(tokens_per_minute=60))
    assert 55 < error.retry_after_s <= 61
    assert "60 tokens per minute" in str(error)
    await place.passes(50)
    await refused(place, ticket(tokens_per_minute=60))
    await place.passes(11)
    await place.quotas.take(ticket(tokens_per_minute=60), ttl_s=TTL_S)


async def test_so_many_run_at_once_and_who_ends_makes_room(place):
    first, second = ticket(max_concurrent=2), ticket(max_concurrent=2)
    await place.quotas.take(first, ttl_s=TTL_S)
    await place.quotas.take(second, ttl_s=TTL_S)
    error = await refused(place, ticket(max_concurrent=2))
    assert "2 requests running at once" in str(error)
    assert error.retry_after_s == 1
    await place.quotas.give_back(first, 5)
    await place.quotas.take(ticket(max_concurrent=2), ttl_s=TTL_S)
    await refused(place, ticket(max_concurrent=2))


async def test_who_says_nothing_more_counts_for_a_time_and_who_is_charged_for_longer(place):
    silent, alive = ticket(max_concurrent=2), ticket(max_concurrent=2)
    await place.quotas.take(silent, ttl_s=TTL_S)
    await place.quotas.take(alive, ttl_s=TTL_S)
    await place.passes(TTL_S - 5)
    await place.quotas.charge(alive, 1, ttl_s=TTL_S)
    await refused(place, ticket(max_concurrent=2))
    await place.passes(5)
    await place.quotas.take(ticket(max_concurrent=2), ttl_s=TTL_S)
    await refused(place, ticket(max_concurrent=2))
    await place.quotas.charge(silent, 1, ttl_s=TTL_S)  # it was alive after all, and counts again
    await place.quotas.give_back(alive, 0)
    await refused(place, ticket(max_concurrent=2))


async def test_who_is_refused_has_taken_nothing(place):
    both = {"requests_per_minute": 2, "max_concurrent": 1}
    running = ticket(**both)
    await place.quotas.take(running, ttl_s=TTL_S)
    for _ in range(5):
        assert "running" in str(await refused(place, ticket(**both)))
    await place.quotas.give_back(running, 0)
    await place.quotas.take(ticket(**both), ttl_s=TTL_S)
    # now both are used up, and the longer wait is told
    assert "per minute" in str(await refused(place, ticket(**both)))


async def test_keys_are_counted_apart_and_without_limits_not_at_all(place):
    await place.quotas.take(ticket(key="alice", requests_per_minute=1), ttl_s=TTL_S)
    await place.quotas.take(ticket(key="bob", requests_per_minute=1), ttl_s=TTL_S)
    await refused(place, ticket(key="alice", requests_per_minute=1))
    for _ in range(10):
        free = ticket(key="alice")
        await place.quotas.take(free, ttl_s=TTL_S)
        await place.quotas.charge(free, 10**9, ttl_s=TTL_S)
    await refused(place, ticket(key="bob", requests_per_minute=1))


async def test_a_request_that_is_sent_again_takes_its_own_place(place):
    limits = {"requests_per_minute": 5, "tokens_per_minute": 10, "max_concurrent": 1}
    broken, again = ticket("r", **limits), ticket("r", **limits)
    await place.quotas.take(broken, ttl_s=TTL_S)
    await place.quotas.charge(broken, 100, ttl_s=TTL_S)
    await place.quotas.take(again, ttl_s=TTL_S)
    await place.quotas.give_back(broken, 0)  # the one that was overtaken ends last
    await place.quotas.charge(broken, 0, ttl_s=TTL_S)
    await refused(place, ticket(**limits))
    await place.quotas.give_back(again, 0)
    await place.passes(600)
    await place.quotas.take(ticket(**limits), ttl_s=TTL_S)


async def test_sending_again_is_on_credit_and_the_credit_ends(place):
    for _ in range(6):
        await place.quotas.take(ticket("r", requests_per_minute=3), ttl_s=TTL_S)
    error = await refused(place, ticket("r", requests_per_minute=3))
    assert error.retry_after_s <= 20
    assert (await refused(place, ticket(requests_per_minute=3))).retry_after_s > 70


async def test_of_many_at_once_no_more_come_in_than_may(place):
    takes = [place.quotas.take(ticket(max_concurrent=10), ttl_s=TTL_S) for _ in range(40)]
    results = await asyncio.gather(*takes, return_exceptions=True)
    assert sum(result is None for result in results) == 10
    assert sum(isinstance(result, LimitExceeded) for result in results) == 30


async def test_routers_count_together_and_nothing_is_kept_for_ever(session_server):
    url = session_server.url
    async with in_redis(url) as one, in_redis(url) as other:
        await one._client.flushall()
        everything = {"requests_per_minute": 2, "tokens_per_minute": 100, "max_concurrent": 9}
        await one.quotas.take(ticket(**everything), ttl_s=TTL_S)
        await other.quotas.take(ticket(**everything), ttl_s=TTL_S)
        await refused(one, ticket(**everything))
        await refused(other, ticket(**everything))
        names = await one._client.keys("*")
        ends = {name.rpartition(b":")[2] for name in names}
        assert (ends, len(names)) == ({b"attempts", b"left", b"running"}, 3)
        assert all(name.startswith(b"test:quota:{alice}:") for name in names)
        assert all([0 < await one._client.ttl(name) <= 62 for name in names])


async def test_while_redis_does_not_answer_each_router_counts_alone_and_says_so_once(caplog):
    caplog.set_level(logging.INFO, logger="slipstream.state")
    now_s, limits = 0.0, {"requests_per_minute": 2, "max_concurrent": 2}
    with redis_server() as server:
        async with in_redis(server.url, timeout_s=1.0, clock=lambda: now_s) as place:
            server.stop_answering()
            first = ticket(**limits)
            await place.quotas.take(first, ttl_s=TTL_S)
            now_s = 5.0
            await place.quotas.take(ticket(**limits), ttl_s=TTL_S)
            await refused(place, ticket(**limits))
            await place.quotas.charge(first, 5, ttl_s=TTL_S)
            (said,) = caplog.messages
            assert said.startswith("limits are counted by this router alone: the store at test did")
            server.go_on()
            server.call("flushall")
            now_s = 10.0
            await place.quotas.take(ticket(**limits), ttl_s=TTL_S)
            assert caplog.messages[1:] == ["limits are counted by all routers together again"]

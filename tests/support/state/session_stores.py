"""Stores of sessions, in memory and in a real Redis, whose time passes when a test says so."""

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from slipstream.state.factory import open_store
from slipstream.state.memory import MemoryStore
from slipstream.state.options import StoreOptions
from slipstream.state.redis_client import connect
from slipstream.state.store import Bounds, Claim, Opening, SessionStore, SessionUpdate, StoreLease
from support.state.redis_server import RedisServer

TTL_S = 600.0
LEASE_S = 60.0
TIMEOUT_S = 20.0
BOUNDS = Bounds(lease_s=LEASE_S, max_tokens=1000, max_text_bytes=100, max_past=3)

# All that is kept becomes older by so many milliseconds. The server's clock stays as it is, so of
# what is forgotten the fence is left: after so long the clock would be above it.
_PASS = """
for _, key in ipairs(redis.call('KEYS', 'slipstream:session:*')) do
  local left = redis.call('PTTL', key) - ARGV[1]
  if left <= 0 then
    local fence = redis.call('TYPE', key).ok == 'hash' and redis.call('HGET', key, 'fence')
    redis.call('DEL', key)
    if fence then redis.call('HSET', key, 'fence', fence) end
  else
    redis.call('PEXPIRE', key, left)
    if redis.call('TYPE', key).ok == 'hash' and redis.call('HEXISTS', key, 'lease') == 1 then
      redis.call('HINCRBY', key, 'lease', -ARGV[1])
    end
  end
end
"""


class InMemory:
    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self._bounds = bounds
        self._now_s = 1e9
        self._fences = count(1)
        self.store: SessionStore = self._anew()

    async def passes(self, seconds: float) -> None:
        self._now_s += seconds

    async def loses_all(self) -> None:
        """The process is started anew, a moment later."""
        await self.passes(1.0)
        self.store = self._anew()

    def _anew(self) -> MemoryStore:
        return MemoryStore(self._bounds, lambda: self._now_s, next_fence=lambda: next(self._fences))


class InRedis:
    def __init__(self, store: SessionStore, client: Any) -> None:
        self.store = store
        self._client = client

    async def passes(self, seconds: float) -> None:
        """Time passes, by having all that is kept be older."""
        await self._client.eval(_PASS, 0, round(seconds * 1000))

    async def loses_all(self) -> None:
        """The server forgets, a moment later: fences grow by its clock."""
        begun = await self._client.time()
        while await self._client.time() < (begun[0], begun[1] + 5000):
            pass
        await self._client.flushall()


@asynccontextmanager
async def in_redis(server: RedisServer, bounds: Bounds = BOUNDS) -> AsyncIterator[InRedis]:
    """An empty store in a server that runs."""
    options = StoreOptions(server.url, timeout_s=TIMEOUT_S)
    store, client = open_store(options, bounds, float, next_fence=int), connect(options)
    place = InRedis(store, client)
    try:
        await place.loses_all()
        yield place
    finally:
        await store.aclose()
        await client.aclose()


@asynccontextmanager
async def store_of(options: StoreOptions) -> AsyncIterator[SessionStore]:
    """A store of these options, by this machine's clock."""
    store = open_store(options, BOUNDS, time.monotonic, next_fence=int)
    try:
        yield store
    finally:
        await store.aclose()


def store_at(url: str, timeout_s: float = TIMEOUT_S) -> AbstractAsyncContextManager[SessionStore]:
    """A store in the servers of a URL."""
    return store_of(StoreOptions(url, timeout_s=timeout_s))


def claim(request_id: str = "r1", session_id: str = "chat", **rest: Any) -> Claim:
    """One that goes on with a session; the digest is that of the request's id."""
    said = Claim(
        session_id=session_id,
        request_id=request_id,
        digest=f"digest of {request_id}",
        owner="ann",
        holder="router 1",
        model="small",
        create=False,
        ttl_s=TTL_S,
    )
    return replace(said, **rest)


def begins(request_id: str = "r1", session_id: str = "chat", **rest: Any) -> Claim:
    return claim(request_id, session_id, create=True, **rest)


async def held(store: SessionStore, asked: Claim) -> StoreLease:
    grant = await store.acquire(asked)
    assert grant.lease is not None
    assert grant.lease.fence == grant.record.fence
    return grant.lease


def opened(*tokens: int, num_prompt_tokens: int = 2, start: int = 0) -> SessionUpdate:
    return SessionUpdate(start, tokens, Opening(num_prompt_tokens, "hash"))


async def told(store: SessionStore, asked: Claim, update: SessionUpdate, **placed: Any) -> None:
    lease = await held(store, asked)
    await store.append(lease, update)
    await store.release(lease, **{"target": None, "draft": None, **placed})


async def keeps_a_session(store: SessionStore) -> None:
    """Do once with a session what a router does with one, from its first turn to its end."""
    await told(store, begins(), opened(5, 6, 7), target="target:1")
    lease = await held(store, begins())
    await store.append(lease, SessionUpdate(2, (7, 8), ending="done"))
    await store.renew(lease)
    await store.release(lease, target=None, draft="draft:1")
    assert (await store.delete("chat", "ann")).tokens == (5, 6, 7, 8)

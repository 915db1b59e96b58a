"""Opens the stores that options name: in memory or in Redis, which each is connected to when first
used. Only here Redis's package is imported."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from slipstream.core.errors import InvalidRequest
from slipstream.core.request.server_info import ReplicaRole
from slipstream.core.round import Clock
from slipstream.state.memory import MemoryStore
from slipstream.state.options import StoreOptions
from slipstream.state.quotas import MemoryQuotas, Quotas
from slipstream.state.redis_store import RedisQuotas, RedisStore
from slipstream.state.registry import Announcement, Registry, announced
from slipstream.state.store import Bounds, SessionStore

if TYPE_CHECKING:
    from slipstream.state.redis_client import RedisClient

REGISTRY_LIMIT_S = 1.0
"""Least timeout of Redis for replicas: no request waits for them."""


def open_store(
    options: StoreOptions, bounds: Bounds, clock: Clock, *, next_fence: Callable[[], int]
) -> SessionStore:
    """Return the store of sessions. For `clock` and `next_fence` see `MemoryStore`; a Redis has its
    own.

    Raises `InvalidRequest` where a URL needs the package redis, which is not installed.
    """
    if options.url is None:
        return MemoryStore(bounds, clock, next_fence=next_fence)
    return RedisStore(_client(options), prefix=options.prefix, bounds=bounds)


def open_quotas(options: StoreOptions, clock: Clock) -> Quotas:
    """Return the quotas of API keys. Raises as `open_store` does."""
    if options.url is None:
        return MemoryQuotas(clock)
    return RedisQuotas(_client(options), prefix=options.prefix, clock=clock)


def open_registry(options: StoreOptions) -> Registry:
    """Return the list of live replicas. Raises as `open_store` does."""
    return Registry(_client(options, REGISTRY_LIMIT_S), prefix=options.prefix)


@asynccontextmanager
async def announced_in(
    options: StoreOptions, role: ReplicaRole, address: str, incarnation: str
) -> AsyncIterator[None]:
    """Announce a replica while the block runs; without a store, nowhere. See `announced`."""
    if options.url is None:
        yield
        return
    replica = Announcement(role, address, incarnation)
    async with aclosing(open_registry(options)) as registry, announced(registry, replica):
        yield


def _client(options: StoreOptions, least_timeout_s: float = 0.0) -> "RedisClient":
    try:
        from slipstream.state.redis_client import RedisClient, connect
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "redis":
            raise
        raise InvalidRequest(
            "store_url needs the package redis: pip install 'slipstream[serve]'"
        ) from None
    timeout_s = max(options.timeout_s, least_timeout_s)
    client = connect(replace(options, timeout_s=timeout_s))
    return RedisClient(client, timeout_s=timeout_s, place=str(options.address()))

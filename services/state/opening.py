"""Opens the store that options name, and quotas beside it. Only here it is decided whether Redis is
needed."""

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from slipstream.core.errors import InvalidRequest
from slipstream.core.timing import Clock
from slipstream.state.memory import MemoryStore
from slipstream.state.options import StoreOptions
from slipstream.state.quotas import MemoryQuotas, Quotas
from slipstream.state.record import Bounds
from slipstream.state.store import SessionStore

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

    from slipstream.state.calls import Calls
    from slipstream.state.redis_texts import RedisTexts
    from slipstream.state.registry import Registry

REGISTRY_LIMIT_S = 1.0
"""For an answer of Redis about replicas or texts, at least: no request waits for it."""


def open_store(
    options: StoreOptions, bounds: Bounds, clock: Clock, *, next_fence: Callable[[], int]
) -> SessionStore:
    """Where sessions are kept; dials when first used. For `clock` and `next_fence` see
    `MemoryStore`; a Redis has its own.

    Raises `InvalidRequest` where a URL needs the package redis, which is not installed.
    """
    if options.url is None:
        return MemoryStore(bounds, clock, next_fence=next_fence)
    client = open_client(options)
    from slipstream.state.redis_store import RedisStore

    return RedisStore(client, options, bounds)


def open_quotas(options: StoreOptions, clock: Clock) -> Quotas:
    """Where it is counted what keys use; dials when first used. Raises as `open_store` does."""
    if options.url is None:
        return MemoryQuotas(clock)
    calls = _calls(options)
    from slipstream.state.redis_quotas import RedisQuotas

    return RedisQuotas(calls, prefix=options.prefix, clock=clock)


def open_registry(options: StoreOptions) -> "Registry":
    """Where live replicas are listed; dials when first used. Raises as `open_client` does."""
    options = replace(options, timeout_s=max(options.timeout_s, REGISTRY_LIMIT_S))
    calls = _calls(options)
    from slipstream.state.registry import Registry

    return Registry(calls, prefix=options.prefix)


def open_texts(options: StoreOptions, *, num_kept: int, ttl_s: float) -> "RedisTexts | None":
    """Where routers share what they learn; None without a URL, as there is nobody to share with.

    See `RedisTexts`. Dials when first used; raises as `open_client` does.
    """
    if options.url is None:
        return None
    options = replace(options, timeout_s=max(options.timeout_s, REGISTRY_LIMIT_S))
    calls = _calls(options)
    from slipstream.state.redis_texts import RedisTexts

    replica = secrets.token_hex(8)
    return RedisTexts(calls, prefix=options.prefix, replica=replica, num_kept=num_kept, ttl_s=ttl_s)


def open_client(options: StoreOptions) -> "Redis | RedisCluster":
    """A client of the Redis that options name. Raises `InvalidRequest` as `open_store` does."""
    try:
        from slipstream.state.connect import connect
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "redis":
            raise
        raise InvalidRequest(
            "store_url needs the package redis: pip install 'slipstream[serve]'"
        ) from None
    return connect(options)


def _calls(options: StoreOptions) -> "Calls":
    """What is asked of that Redis, by a client of its own."""
    client = open_client(options)
    from slipstream.state.calls import Calls

    return Calls(client, timeout_s=options.timeout_s, place=str(options.address()))

"""Quotas of API keys, counted in Redis for all routers; by each router for itself without it."""

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from slipstream.core.errors import Unavailable
from slipstream.state.quotas import RUNNING_RETRY_S, MemoryQuotas, Ticket, refusal
from slipstream.state.scripts import Script

if TYPE_CHECKING:
    from slipstream.state.redis_client import RedisClient

PAUSE_S = 1.0
"""Time for which Redis is not used after it has not answered."""
_LOG = logging.getLogger("slipstream.state")

_SCRIPT = Script.of("quotas")


class RedisQuotas:
    """`Quotas` of all routers that share a Redis. While it does not answer, each counts alone."""

    def __init__(self, redis: "RedisClient", *, prefix: str, clock: Callable[[], float]) -> None:
        self._redis = redis
        self._prefix = prefix
        self._clock = clock
        self._alone = MemoryQuotas(clock)
        self._paused_until_s: float | None = None

    async def take(self, ticket: Ticket, *, ttl_s: float) -> None:
        answer = await self._ask("take", ticket, ttl_s, 0)
        if answer is None:
            return await self._alone.take(ticket, ttl_s=ttl_s)
        if answer:
            limit, wait_ms = answer
            name = limit.decode() if isinstance(limit, bytes) else limit
            raise refusal(ticket, name, wait_ms / 1000)

    async def charge(self, ticket: Ticket, num_tokens: int, *, ttl_s: float) -> None:
        if await self._ask("charge", ticket, ttl_s, num_tokens) is None:
            await self._alone.charge(ticket, num_tokens, ttl_s=ttl_s)

    async def give_back(self, ticket: Ticket, num_tokens: int) -> None:
        answer = await self._ask("give back", ticket, 0, num_tokens)
        # It may have begun here, or gone on here for a while.
        await self._alone.give_back(ticket, 0 if answer is not None else num_tokens)

    async def aclose(self) -> None:
        await self._redis.aclose()

    async def _ask(
        self, operation: str, ticket: Ticket, ttl_s: float, num_tokens: int
    ) -> list[Any] | None:
        """Return the script's answer; None if Redis does not answer, or did not a moment ago."""
        if self._paused_until_s is not None and self._clock() < self._paused_until_s:
            return None
        limits = ticket.limits
        arguments = [
            *(operation, ticket.request, ticket.attempt, math.ceil(ttl_s * 1000), num_tokens),
            *(limits.requests_per_minute or 0, limits.tokens_per_minute or 0),
            *(limits.max_concurrent or 0, round(RUNNING_RETRY_S * 1000)),
        ]
        try:
            name = f"{self._prefix}:quota:{{{ticket.key}}}"
            keys = [f"{name}:{part}" for part in ("left", "running", "attempts")]
            answer: list[Any] = await self._redis.run(_SCRIPT, keys, arguments)
        except Unavailable as error:
            if self._paused_until_s is None:
                _LOG.warning("limits are counted by this router alone: %s", error)
            self._paused_until_s = self._clock() + PAUSE_S
            return None
        if self._paused_until_s is not None:
            _LOG.info("limits are counted by all routers together again")
            self._paused_until_s = None
        return answer

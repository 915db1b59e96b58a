"""Quotas of API keys, counted in Redis for all routers; by each router for itself without it.

One script does everything, so that it is atomic; times are those of Redis.
"""

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

# KEYS: buckets (a hash), requests that run (a sorted set, by when they count no more), and their
# attempts (a hash). The rules are those of `MemoryQuotas`; what has expired is full, or over.
_SCRIPT = Script("""
local op, id, attempt = ARGV[1], ARGV[2], ARGV[3]
local ttl, amount = tonumber(ARGV[4]), tonumber(ARGV[5])
local limits = {r = tonumber(ARGV[6]), t = tonumber(ARGV[7]), c = tonumber(ARGV[8])}
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local levels, waits = {}, {}

for _, name in ipairs({'r', 't'}) do
  local limit = limits[name]
  if limit > 0 then
    local kept = redis.call('HMGET', KEYS[1], name, name .. '_at')
    local level = tonumber(kept[1] or limit)
    local passed = math.max(0, now - tonumber(kept[2] or now))
    levels[name] = math.min(limit, level + passed * limit / 60000)
  end
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  redis.call('ZREM', KEYS[2], gone)
  redis.call('HDEL', KEYS[3], gone)
end
local runs = redis.call('HGET', KEYS[3], id)

local function keep()
  local longest = 0
  for name, level in pairs(levels) do
    redis.call('HSET', KEYS[1], name, string.format('%.17g', level),
               name .. '_at', string.format('%.17g', now))
    longest = math.max(longest, (limits[name] - level) * 60000 / limits[name])
  end
  redis.call('PEXPIRE', KEYS[1], math.ceil(longest) + 1000)
end
local function run()
  redis.call('ZADD', KEYS[2], string.format('%.17g', now + ttl), id)
  redis.call('HSET', KEYS[3], id, attempt)
  local last = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  local left = math.ceil(tonumber(last[2]) - now) + 1000
  redis.call('PEXPIRE', KEYS[2], left)
  redis.call('PEXPIRE', KEYS[3], left)
end

if op == 'take' then
  local needed = 1 - 1e-9
  if runs then needed = needed - limits.r end
  if levels.r and levels.r < needed then
    waits.requests_per_minute = (needed - levels.r) * 60000 / limits.r
  end
  if not runs and levels.t and levels.t <= 0 then
    waits.tokens_per_minute = (1 - levels.t) * 60000 / limits.t
  end
  if not runs and limits.c > 0 and redis.call('ZCARD', KEYS[2]) >= limits.c then
    waits.max_concurrent = tonumber(ARGV[9])
  end
  local worst
  for name, wait in pairs(waits) do
    if not worst or wait > waits[worst] then worst = name end
  end
  if worst then return {worst, math.ceil(waits[worst])} end
  if levels.r then levels.r = levels.r - 1 end
  keep()
  run()
  return {}
end

if levels.t then levels.t = levels.t - amount end
keep()
if op == 'charge' and (not runs or runs == attempt) then run() end
if op == 'give back' and runs == attempt then
  redis.call('ZREM', KEYS[2], id)
  redis.call('HDEL', KEYS[3], id)
end
return {}
""")


class RedisQuotas:
    """`Quotas` of all routers that share a Redis. While it does not answer, each counts alone."""

    def __init__(self, redis: "RedisClient", *, prefix: str, clock: Callable[[], float]) -> None:
        """`redis` is closed with this."""
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
            answer: list[Any] = await self._redis.run(_SCRIPT, self._keys(ticket.key), arguments)
        except Unavailable as error:
            if self._paused_until_s is None:
                _LOG.warning("limits are counted by this router alone: %s", error)
            self._paused_until_s = self._clock() + PAUSE_S
            return None
        if self._paused_until_s is not None:
            _LOG.info("limits are counted by all routers together again")
            self._paused_until_s = None
        return answer

    def _keys(self, key: str) -> list[str]:
        name = f"{self._prefix}:quota:{{{key}}}"
        return [f"{name}:{part}" for part in ("left", "running", "attempts")]

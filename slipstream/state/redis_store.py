"""Sessions, and quotas of API keys, in Redis: each operation is a script of the files in `lua`.

Servers from Redis 6.2 on run these: each script is atomic, and its effects are logged as one. Those
of sessions have `MemoryStore` for their model.
"""

import logging
import math
import struct
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from slipstream.core.errors import Unavailable
from slipstream.core.request.request import SessionRef
from slipstream.state.quotas import RUNNING_RETRY_S, MemoryQuotas, Ticket, refusal
from slipstream.state.store import (
    Bounds,
    Claim,
    Grant,
    Record,
    SessionUpdate,
    StoredTurn,
    StoreLease,
    session_refused,
)

if TYPE_CHECKING:
    from slipstream.state.redis_client import RedisClient


def script(*names: str) -> str:
    """Return the script in the files of these names, one behind the other."""
    folder = files("slipstream.state") / "lua"
    return "\n".join((folder / f"{name}.lua").read_text() for name in names)


_ACQUIRE = script("session", "acquire")
_APPEND, _RENEW, _RELEASE = (
    script("session", "held", name) for name in ("append", "renew", "release")
)
_DELETE, _QUOTAS = script("session", "delete"), script("quotas")


class RedisStore:
    """`SessionStore` whose sessions outlive processes."""

    def __init__(self, redis: "RedisClient", *, prefix: str, bounds: Bounds) -> None:
        """`redis` is closed with this."""
        self._redis = redis
        self._prefix = prefix
        self._bounds = bounds
        self._lease_ms = _milliseconds(bounds.lease_s)

    async def acquire(self, claim: Claim) -> Grant:
        names = (claim.request_id, claim.digest, claim.owner, claim.holder, claim.model)
        times = (_milliseconds(claim.ttl_s), self._lease_ms, self._bounds.max_past)
        takes_over = "1" if claim.takes_over else ""
        args = (*names, "1" if claim.create else "", *times, takes_over, claim.after)
        reply = await self._redis.run(_ACQUIRE, self._keys(claim.session_id), args)
        if reply[0]:
            model = reply[1].decode() if len(reply) > 1 else ""
            raise claim.refused(reply[0].decode(), model=model)
        record = _record(claim.session_id, reply)
        is_leased = bool(reply[2])
        lease = StoreLease(claim.session_id, record.fence, claim.ttl_s) if is_leased else None
        return Grant(record, lease)

    async def append(self, lease: StoreLease, update: SessionUpdate) -> None:
        update.check_within(self._bounds)
        opening = ("", "", "", "")
        if (opened := update.opening) is not None:
            length = str(opened.num_prompt_tokens)
            opening = ("1", length, opened.tokenizer_hash, opened.arithmetic)
        ending = ("", "") if update.ending is None else ("1", update.ending)
        tokens = struct.pack(f"<{len(update.tokens)}I", *update.tokens)
        args = (*self._held(lease), update.start, tokens, *opening, *ending)
        _check(lease, await self._redis.run(_APPEND, self._keys(lease.session_id), args))

    async def renew(self, lease: StoreLease) -> None:
        keys = self._keys(lease.session_id)
        _check(lease, await self._redis.run(_RENEW, keys, self._held(lease)))

    async def release(self, lease: StoreLease, *, target: str | None, draft: str | None) -> None:
        args = (*self._held(lease), target or "", draft or "")
        await self._redis.run(_RELEASE, self._keys(lease.session_id), args)

    async def delete(self, session_id: str, owner: str) -> Record:
        # Not twice: what a broken connection had deleted would not be there.
        keys = self._keys(session_id)
        reply = await self._redis.run(_DELETE, keys, (owner,), again=False)
        if reply[0]:
            raise session_refused(reply[0].decode(), session_id)
        return _record(session_id, reply)

    async def count(self) -> int | None:
        """See `SessionStore`. To count would take as long as there are sessions."""
        return None

    async def aclose(self) -> None:
        await self._redis.aclose()

    def _keys(self, session_id: str) -> tuple[str, str]:
        # Ids become keys.
        SessionRef(session_id)
        name = f"{self._prefix}:session:{{{session_id}}}"
        return name, f"{name}:tokens"

    def _held(self, lease: StoreLease) -> tuple[int, int, int]:
        return lease.fence, _milliseconds(lease.ttl_s), self._lease_ms


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _check(lease: StoreLease, why: bytes) -> None:
    if why:
        raise session_refused(why.decode(), lease.session_id)


def _record(session_id: str, reply: list[Any]) -> Record:
    _, fence, _, fields, tokens = reply
    texts: list[Any] = [None if text is None else text.decode() for text in fields]
    owner, model, request_id, digest, prompt, ending, *facts = texts
    tokenizer, target, draft, arithmetic = facts
    return Record(
        session_id,
        owner,
        model,
        int(fence),
        StoredTurn(request_id, digest, int(prompt), ending),
        tokens=struct.unpack(f"<{len(tokens) // 4}I", tokens),
        tokenizer_hash=tokenizer,
        arithmetic=arithmetic or None,
        target=target,
        draft=draft,
    )


PAUSE_S = 1.0
"""Time for which Redis is not used after it has not answered."""
_LOG = logging.getLogger("slipstream.state")


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
            answer: list[Any] = await self._redis.run(_QUOTAS, keys, arguments)
        except Unavailable as error:
            if self._paused_until_s is None:
                _LOG.warning("limits are counted by this router alone: %s", error)
            self._paused_until_s = self._clock() + PAUSE_S
            return None
        if self._paused_until_s is not None:
            _LOG.info("limits are counted by all routers together again")
            self._paused_until_s = None
        return answer

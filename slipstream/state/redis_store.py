"""Sessions in Redis, each operation a script; see `lua/session.lua` for what is kept."""

import struct
from typing import TYPE_CHECKING, Any

from slipstream.core.request.request import SessionRef
from slipstream.state.scripts import ACQUIRE, APPEND, DELETE, RELEASE, RENEW
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
        reply = await self._redis.run(ACQUIRE, self._keys(claim.session_id), args)
        if reply[0]:
            model = reply[1].decode() if len(reply) > 1 else ""
            raise claim.refused(reply[0].decode(), model=model)
        record = _record(claim.session_id, reply)
        is_leased = bool(reply[2])
        lease = StoreLease(claim.session_id, record.fence, claim.ttl_s) if is_leased else None
        return Grant(record, lease)

    async def append(self, lease: StoreLease, update: SessionUpdate) -> None:
        update.check_within(self._bounds)
        opening = ("", "", "", "", "")
        if update.opening is not None:
            opened = update.opening
            facts = (opened.params, opened.tokenizer_hash, opened.arithmetic)
            opening = ("1", str(opened.num_prompt_tokens), *facts)
        ending = ("", "") if update.ending is None else ("1", update.ending)
        tokens = struct.pack(f"<{len(update.tokens)}I", *update.tokens)
        args = (*self._held(lease), update.start, tokens, *opening, *ending)
        _check(lease, await self._redis.run(APPEND, self._keys(lease.session_id), args))

    async def renew(self, lease: StoreLease) -> None:
        keys = self._keys(lease.session_id)
        _check(lease, await self._redis.run(RENEW, keys, self._held(lease)))

    async def release(self, lease: StoreLease, *, target: str | None, draft: str | None) -> None:
        args = (*self._held(lease), target or "", draft or "")
        await self._redis.run(RELEASE, self._keys(lease.session_id), args)

    async def delete(self, session_id: str, owner: str) -> Record:
        # Not twice: what a broken connection had deleted would not be there.
        keys = self._keys(session_id)
        reply = await self._redis.run(DELETE, keys, (owner,), again=False)
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
    owner, model, request_id, digest, prompt, params, ending, *facts = texts
    tokenizer, target, draft, arithmetic = facts
    return Record(
        session_id,
        owner,
        model,
        int(fence),
        StoredTurn(request_id, digest, int(prompt), params, ending),
        tokens=struct.unpack(f"<{len(tokens) // 4}I", tokens),
        tokenizer_hash=tokenizer,
        arithmetic=arithmetic or None,
        target=target,
        draft=draft,
    )

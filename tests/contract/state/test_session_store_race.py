"""Routers that race for one session in Redis: never two writers."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from slipstream.core.errors import SessionError, SessionNotFound, SlipstreamError
from slipstream.state.store import Bounds, Grant, Opening, SessionStore, SessionUpdate
from support.state.session_stores import begins, claim, in_redis


class Race:
    """Leases of one session, by the same and by different requests; each writes what only it says.
    A token says which claim wrote it, and claims are numbered across all routers."""

    def __init__(self, stores: Sequence[SessionStore], *, seed: int) -> None:
        self._stores = stores
        self._draw = random.Random(seed)
        self._request = 0
        self._num_claims = 0
        self.seen: Counter[str] = Counter()
        """What came of all that was asked."""
        self._written: list[tuple[int, int, int]] = []
        """Of each accepted write: the fence, where it starts, the token."""
        self._fences: list[int] = []

    async def run(self, router: int, num_claims: int) -> None:
        """Claim the session so often, and write to it until it is lost or given back."""
        for _ in range(num_claims):
            try:
                grant = await self._claimed(router)
            except SlipstreamError as error:
                self.seen[type(error).__name__] += 1
                continue
            if grant.lease is not None:
                self._fences.append(grant.lease.fence)
                self._num_claims += 1
                await self._write(self._stores[router], grant, token=self._num_claims)

    async def _claimed(self, router: int) -> Grant:
        """The newest request again, as of a client that came back; or the next one."""
        self._request += self._draw.random() < 0.3
        asked = claim(f"r{self._request}", holder=f"router {router}")
        try:
            grant = await self._stores[router].acquire(asked)
        except SessionNotFound:
            again = begins(asked.request_id, holder=asked.holder)
            grant = await self._stores[router].acquire(again)
        self.seen["run" if grant.lease else "answered"] += 1
        return grant

    async def _write(self, store: SessionStore, grant: Grant, *, token: int) -> None:
        lease = grant.lease
        assert lease is not None
        start = len(grant.record.tokens)
        is_open = grant.record.turn.num_prompt_tokens > 0
        try:
            for number in range(self._draw.randrange(1, 5)):
                opening = Opening(start + 1, "", "") if not number and not is_open else None
                await store.append(lease, SessionUpdate(start, (token,), opening))
                self.seen["appended"] += 1
                self._written.append((lease.fence, start, token))
                start += 1
                await asyncio.sleep(0)
            await store.release(lease, target=None, draft=None)
        except SessionError as error:
            self.seen[type(error).__name__] += 1

    async def check(self) -> None:
        """What is kept is what was accepted, once each, in the order of fences.
        And whoever had the newest fence found the session as it was when it got it."""
        assert self.seen["SessionOutOfSync"] == 0
        assert len(set(self._fences)) == len(self._fences)
        tokens = (await self._stores[0].acquire(claim("last"))).record.tokens
        in_order = sorted(self._written, key=lambda write: write[1])
        assert [start for _, start, _ in in_order] == list(range(len(tokens)))
        assert tuple(token for _, _, token in in_order) == tokens
        fences = [fence for fence, _, _ in in_order]
        assert fences == sorted(fences)


NUM_CLAIMS, MANY = 60, 1000


@pytest.mark.parametrize("num_claims", [NUM_CLAIMS, pytest.param(MANY, marks=pytest.mark.chaos)])
async def test_of_two_routers_one_writes(session_server, num_claims):
    async with (
        in_redis(session_server, Bounds()) as one,
        in_redis(session_server, Bounds()) as other,
    ):
        race = Race((one.store, other.store), seed=0)
        await asyncio.gather(*[race.run(router, num_claims) for router in range(2)])
        await race.check()
    # Where nobody was refused nothing was raced for.
    assert race.seen >= Counter(run=1, appended=1, SessionTaken=1, SessionBusy=1)

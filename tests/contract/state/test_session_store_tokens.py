"""Laws of what is kept of a session and for how long, wherever sessions are kept; and of routers
that race for one session in Redis, there are never two writers."""

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest

from slipstream.core import errors
from slipstream.state.store import Bounds, Opening, SessionUpdate
from support.state.session_stores import LEASE_S, TTL_S, begins, claim, held, in_redis, opened, told

NOWHERE = {"target": None, "draft": None}


async def test_what_is_kept_is_not_kept_twice(store):
    lease = await held(store, begins())
    for update in (
        *(opened(5, 6, 7), opened(5, 6, 7), SessionUpdate(1, (6, 7, 8)), SessionUpdate(2, (7, 8))),
        SessionUpdate(0, ()),
    ):
        await store.append(lease, update)
    for _ in range(2):
        await store.append(lease, SessionUpdate(3, (8, 9), ending="done"))
    await store.append(lease, SessionUpdate(5, ()))
    record = (await store.acquire(begins())).record
    assert (record.tokens, record.turn.ending) == ((5, 6, 7, 8, 9), "done")


@pytest.mark.parametrize(
    "update",
    [
        *(SessionUpdate(4, (8,)), SessionUpdate(4, ()), SessionUpdate(2, (8,))),
        *(SessionUpdate(0, (5, 6, 8, 9)), SessionUpdate(0, (6,))),
        opened(5, 6, 7, num_prompt_tokens=3),
    ],
)
async def test_what_does_not_go_on_from_what_is_kept_is_refused(store, update):
    lease = await held(store, begins())
    await store.append(lease, opened(5, 6, 7))
    with pytest.raises(errors.SessionOutOfSync):
        await store.append(lease, update)
    await store.append(lease, SessionUpdate(3, (8,)))
    assert (await store.acquire(begins())).record.tokens == (5, 6, 7, 8)


async def test_nothing_comes_after_the_end(store):
    lease = await held(store, begins())
    await store.append(lease, replace(opened(5, 6, 7), ending="done"))
    for update in (SessionUpdate(3, (8,)), SessionUpdate(3, (), ending="other")):
        with pytest.raises(errors.SessionOutOfSync):
            await store.append(lease, update)


@pytest.mark.parametrize(
    ("update", "error"),
    [
        (SessionUpdate(1000, (1,)), errors.CapacityError),
        (SessionUpdate(0, (1,), ending="é" * 51), errors.CapacityError),
        (SessionUpdate(0, (1,), Opening(0, "")), errors.InvalidRequest),
        (SessionUpdate(0, (1,), Opening(2, "")), errors.InvalidRequest),
        (SessionUpdate(-1, (1,)), errors.InvalidRequest),
        (SessionUpdate(0, (-1,)), errors.InvalidRequest),
        (SessionUpdate(0, (2**32,)), errors.InvalidRequest),
    ],
)
async def test_there_are_bounds_to_what_is_kept(store, update, error):
    lease = await held(store, begins())
    with pytest.raises(error):
        await store.append(lease, update)
    await store.append(lease, SessionUpdate(0, (1,) * 1000, Opening(1, ""), "é" * 50))


async def test_a_session_that_never_said_anything_is_forgotten(place):
    store = place.store
    await store.release(await held(store, begins()), **NOWHERE)
    with pytest.raises(errors.SessionNotFound):
        await store.acquire(claim("r2"))
    silent = await held(store, begins("r2"))
    await place.passes(LEASE_S + 10)
    with pytest.raises(errors.SessionNotFound):
        await store.acquire(claim("r3"))
    for write in (store.append(silent, opened(5, 6)), store.renew(silent)):
        with pytest.raises(
            errors.SessionOutOfSync, match="knows nothing of this lease of session chat"
        ):
            await write
    await held(store, begins("r3"))


async def test_a_session_is_remembered_from_its_last_use_on(place):
    store = place.store
    await told(store, begins(), replace(opened(5, 6, 7), ending="done"))
    for asked in (claim(), claim(), claim("r2")):  # the last one is not asked for again
        await place.passes(TTL_S - 10)
        grant = await store.acquire(asked)
    await store.append(grant.lease, opened(8, start=3, num_prompt_tokens=4))
    await place.passes(TTL_S - 10)
    await store.renew(grant.lease)
    await place.passes(TTL_S - 10)
    await store.release(grant.lease, **NOWHERE)
    await place.passes(TTL_S - 10)
    assert (await store.acquire(claim("r2"))).record.tokens == (5, 6, 7, 8)
    await place.passes(TTL_S + 10)
    with pytest.raises(errors.SessionNotFound):
        await store.acquire(claim("r2"))


async def test_a_session_in_use_outlives_its_time(place):
    lease = await held(place.store, begins(ttl_s=LEASE_S / 4))
    await place.store.append(lease, opened(5, 6))
    await place.passes(LEASE_S / 2)
    await place.store.append(lease, SessionUpdate(2, (7,)))
    await place.store.release(lease, **NOWHERE)
    await place.passes(LEASE_S / 2)
    with pytest.raises(errors.SessionNotFound):
        await place.store.acquire(claim())


async def test_a_deleted_session_is_gone(store):
    lease = await held(store, begins())
    await store.append(lease, opened(5, 6, 7))
    with pytest.raises(errors.SessionBusy):
        await store.delete("chat", "ann")
    await store.release(lease, target="target:1", draft=None)
    gone = await store.delete("chat", "ann")
    assert gone.tokens == (5, 6, 7)
    assert gone.target == "target:1"
    assert gone.fence > lease.fence
    with pytest.raises(errors.SessionNotFound):
        await store.delete("chat", "ann")
    with pytest.raises(errors.SessionNotFound):
        await store.acquire(claim("r2"))
    with pytest.raises(errors.SessionOutOfSync):
        await store.append(lease, SessionUpdate(3, (8,)))
    grant = await store.acquire(begins(owner="bob", model="large"))
    assert (grant.record.tokens, grant.record.target) == ((), None)
    assert grant.lease.fence > gone.fence


async def test_fences_grow_whatever_is_forgotten(place):
    fences = []
    for _ in range(3):
        await told(place.store, begins(), opened(5, 6))
        fences.append((await place.store.delete("chat", "ann")).fence)
        lease = await held(place.store, begins())
        await place.store.release(lease, **NOWHERE)
        fences += [lease.fence, *[(await held(place.store, begins())).fence for _ in range(2)]]
        await asyncio.sleep(0.01)  # fences may be some milliseconds ahead; a restart takes longer
        await place.loses_all()
    assert fences == sorted(set(fences))


async def test_a_lease_that_was_lost_is_not_taken_for_another_one(place):
    lease = await held(place.store, begins())
    await place.store.append(lease, opened(5, 6))
    await place.loses_all()
    for write in (place.store.append(lease, SessionUpdate(2, (7,))), place.store.renew(lease)):
        with pytest.raises(errors.SessionOutOfSync):
            await write
    await place.store.release(lease, **NOWHERE)
    again = await held(place.store, begins())
    with pytest.raises(errors.SessionTaken):
        await place.store.append(lease, opened(5, 6, 7))
    await place.store.append(again, opened(5, 6, 7))


class Race:
    """Leases of one session, by the same and by different requests; each writes what only it says.
    A token says which claim wrote it, and claims are numbered across all routers."""

    def __init__(self, stores, *, seed):
        self._stores = stores
        self._draw = random.Random(seed)
        self._request = 0
        self._num_claims = 0
        self.seen = Counter()
        """What came of all that was asked."""
        self._written = []
        """Of each accepted write: the fence, where it starts, the token."""
        self._fences = []

    async def run(self, router, num_claims):
        """Claim the session so often, and write to it until it is lost or given back."""
        for _ in range(num_claims):
            try:
                grant = await self._claimed(router)
            except errors.SlipstreamError as error:
                self.seen[type(error).__name__] += 1
                continue
            if grant.lease is not None:
                self._fences.append(grant.lease.fence)
                self._num_claims += 1
                await self._write(self._stores[router], grant, token=self._num_claims)

    async def _claimed(self, router):
        """The newest request again, as of a client that came back; or the next one."""
        self._request += self._draw.random() < 0.3
        asked = claim(f"r{self._request}", holder=f"router {router}")
        try:
            grant = await self._stores[router].acquire(asked)
        except errors.SessionNotFound:
            again = begins(asked.request_id, holder=asked.holder)
            grant = await self._stores[router].acquire(again)
        self.seen["run" if grant.lease else "answered"] += 1
        return grant

    async def _write(self, store, grant, *, token):
        lease = grant.lease
        start = len(grant.record.tokens)
        is_open = grant.record.turn.num_prompt_tokens > 0
        try:
            for number in range(self._draw.randrange(1, 5)):
                opening = Opening(start + 1, "") if not number and not is_open else None
                await store.append(lease, SessionUpdate(start, (token,), opening))
                self.seen["appended"] += 1
                self._written.append((lease.fence, start, token))
                start += 1
                await asyncio.sleep(0)
            await store.release(lease, target=None, draft=None)
        except errors.SessionError as error:
            self.seen[type(error).__name__] += 1

    async def check(self):
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

"""Stores of sessions answer alike to whatever they are told, in whatever order; and of routers
that race for one session in Redis, there are never two writers."""

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest

from slipstream.core.errors import SessionError, SessionNotFound, SlipstreamError
from slipstream.state.store import Bounds, Opening, SessionUpdate, StoreLease
from support.state.session_stores import InMemory, begins, claim, in_redis

NUM_SEQUENCES, LENGTH = 10, 80
BOUNDS = Bounds(lease_s=60.0, max_tokens=12, max_past=2)
PASSED_S = (35.0, 35.0, 70.0, 700.0)  # no sum of them comes close to a limit from below
TTLS_S = (240.0, 590.0)


async def test_a_store_in_redis_is_one_in_memory(session_server):
    seen: set[str] = set()
    for seed in range(NUM_SEQUENCES):
        async with in_redis(session_server, BOUNDS) as shared:
            draw = random.Random(seed)
            sequence = Sequence(draw, (InMemory(BOUNDS), shared))
            for _ in range(LENGTH):
                seen.add(await sequence.step())
    refusals = {"RequestExists", "SessionBusy", "SessionTaken", "SessionExists", "CapacityError"}
    refusals |= {"PermissionDenied", "SessionNotFound", "InvalidRequest", "SessionOutOfSync"}
    answers = {"run", "answered", "appended", "renewed", "released", "deleted", "passed"}
    assert seen == refusals | answers


class Sequence:
    """Two stores that are told the same; leases are pairs, one of each."""

    def __init__(self, draw, places):
        self._draw = draw
        self._places = places
        self._leases = []
        self._fences = ({}, {})

    async def step(self):
        """Tell both one thing; what came of it."""
        actions = (self._acquire, self._append, self._renew, self._release, self._delete)
        (action,) = self._draw.choices((*actions, self._pass), (30, 40, 5, 12, 4, 6))
        return await action()

    async def _both(self, asked):
        """What both answer, which must be the same but for fences."""
        answers = [await outcome(asked(place, at)) for at, place in enumerate(self._places)]
        first, second = map(plain, answers)
        assert first == second
        return answers

    async def _acquire(self):
        draw = self._draw
        asked = claim(
            f"r{draw.randrange(5)}",
            draw.choice("ab"),
            digest=draw.choices(("one", "other"), (9, 1))[0],
            owner=draw.choices(("ann", "bob"), (9, 1))[0],
            model=draw.choices(("small", "large", ""), (8, 1, 1))[0],
            create=draw.random() < 0.4,
            ttl_s=draw.choice(TTLS_S),
            holder=draw.choice(("one-1", "one-2", "other-1")),
            takes_over=draw.random() < 0.8,
            after=draw.choices(("", f"r{draw.randrange(5)}"), (7, 3))[0],
        )
        answers = await self._both(lambda place, _: place.store.acquire(asked))
        if isinstance(answers[0], Exception):
            return type(answers[0]).__name__
        if answers[0].lease is None:
            return "answered"
        for fences, answer in zip(self._fences, answers, strict=True):
            self._grows(fences, asked.session_id, answer.lease.fence)
        pair = [answer.lease for answer in answers]
        self._leases = [*self._leases[-3:], (pair, answers[0].record.tokens)]
        return "run"

    async def _append(self):
        lease, tokens = self._lease()
        draw = self._draw
        start = max(0, len(tokens) + draw.choice((0, 0, 0, -2, -1, 1)))
        new = tuple(range(start, start + draw.randrange(5)))
        if new and draw.random() < 0.1:
            new = (new[0] + 1000, *new[1:])
        opening = Opening(max(1, start), str(start), "hash") if draw.random() < 0.3 else None
        update = SessionUpdate(
            start, new, opening, draw.choices((None, "done", "other"), (8, 2, 1))[0]
        )
        answers = await self._both(lambda place, at: place.store.append(lease[at], update))
        if answers[0] is None:
            kept = tokens[:start] + new + tokens[start + len(new) :]
            self._leases = [(pair, kept if pair is lease else old) for pair, old in self._leases]
        return named(answers, "appended")

    async def _renew(self):
        lease, _ = self._lease()
        answers = await self._both(lambda place, at: place.store.renew(lease[at]))
        return named(answers, "renewed")

    async def _release(self):
        lease, _ = self._lease()
        target = self._draw.choice((None, "target:1"))
        draft = self._draw.choice((None, "draft:1"))
        await self._both(
            lambda place, at: place.store.release(lease[at], target=target, draft=draft)
        )
        return "released"

    async def _delete(self):
        session_id, owner = self._draw.choice("ab"), self._draw.choice(("ann", "ann", "bob"))
        answers = await self._both(lambda place, _: place.store.delete(session_id, owner))
        if isinstance(answers[0], Exception):
            return type(answers[0]).__name__
        for fences, answer in zip(self._fences, answers, strict=True):
            self._grows(fences, session_id, answer.fence)
        return "deleted"

    async def _pass(self):
        seconds = self._draw.choice(PASSED_S)
        await self._both(lambda place, _: place.passes(seconds))
        return "passed"

    def _lease(self):
        """One of the last few; one of a session that never was, while there are none."""
        nobodys = StoreLease("a", 1, TTLS_S[0])
        return self._draw.choice(self._leases or [([nobodys, nobodys], ())])

    def _grows(self, fences, session_id, fence):
        assert fence > fences.get(session_id, 0)
        fences[session_id] = fence


async def outcome(answer):
    try:
        return await answer
    except SlipstreamError as error:
        return error


def named(answers, otherwise):
    return otherwise if answers[0] is None else type(answers[0]).__name__


def plain(answer):
    if isinstance(answer, Exception):
        return type(answer), str(answer)
    if hasattr(answer, "lease"):
        return replace(answer.record, fence=0), answer.lease is None
    return answer and replace(answer, fence=0)


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
            except SlipstreamError as error:
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
        except SessionNotFound:
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
                opening = Opening(start + 1, "", "") if not number and not is_open else None
                await store.append(lease, SessionUpdate(start, (token,), opening))
                self.seen["appended"] += 1
                self._written.append((lease.fence, start, token))
                start += 1
                await asyncio.sleep(0)
            await store.release(lease, target=None, draft=None)
        except SessionError as error:
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

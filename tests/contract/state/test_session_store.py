"""Laws of who may run on a session, wherever sessions are kept."""

from dataclasses import replace

import pytest

from slipstream.core import errors
from slipstream.state.store import Opening, SessionUpdate, StoredTurn
from support.state.session_stores import BOUNDS, LEASE_S, begins, claim, held, opened, told

NOWHERE = {"target": None, "draft": None}


async def test_a_session_is_all_that_was_said_of_it(store):
    lease = await held(store, begins())
    await store.append(lease, opened(5, 6, 7))
    await store.append(lease, SessionUpdate(3, (8, 2**32 - 1), ending='{"reason": "stop ✓"}'))
    await store.release(lease, target="target:1", draft="draft:1")
    record = (await store.acquire(claim())).record
    assert (record.session_id, record.owner, record.model) == ("chat", "ann", "small")
    assert record.turn == StoredTurn("r1", "digest of r1", 2, '{"reason": "stop ✓"}')
    assert (record.tokens, record.output) == ((5, 6, 7, 8, 2**32 - 1), (7, 8, 2**32 - 1))
    assert (record.tokenizer_hash, record.target, record.draft) == ("hash", "target:1", "draft:1")


async def test_a_request_may_follow_the_newest_request_alone(store):
    await told(store, begins("r1"), opened(5, 6, 7))
    second = SessionUpdate(3, (8, 9), Opening(4, "hash"), ending="{}")
    await told(store, claim("r2", after="r1"), second)
    for after in ("r1", "r0"):
        with pytest.raises(errors.SessionOutOfSync, match="session chat has gone on since"):
            await store.acquire(claim("r3", after=after))
    await store.release(await held(store, claim("r3", after="r2")), **NOWHERE)
    lost = await held(store, claim("r4", after="r2"))  # r3 has left no token
    await store.append(lost, SessionUpdate(5, (1, 2), Opening(6, "hash"), ending="{}"))
    again = await store.acquire(claim("r4", after="r2"))  # which is answered, not run
    assert again.lease is None


LEFT = {"released": (True, 0.0), "its router was killed": (False, 1.01 * LEASE_S)}


@pytest.mark.parametrize(("is_released", "passed_s"), LEFT.values(), ids=LEFT)
@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("num_left", [1, 2])
async def test_a_turn_that_was_left_ends_no_session(place, num_left, opens, is_released, passed_s):
    """The turn before it goes on, and nothing of the one that was left is in it."""
    store = place.store
    await told(store, begins("r1"), replace(opened(5, 6, 7), ending="{}"))
    for number in range(num_left):
        lease = await held(store, claim(f"left{number}", after="r1"))
        if opens:
            await store.append(lease, SessionUpdate(3, (8, 9), Opening(4, "hash")))
            with pytest.raises(errors.SessionBusy):  # not: has gone on since
                await store.acquire(claim("r2", after="r1"))
        if is_released:
            await store.release(lease, **NOWHERE)
        await place.passes(passed_s)
    grant = await store.acquire(claim("r2", after="r1"))
    assert (grant.record.tokens, grant.record.output) == ((5, 6, 7), ())
    if opens:
        with pytest.raises(errors.SessionTaken):
            await store.append(lease, SessionUpdate(5, (10,)))
    await store.append(grant.lease, SessionUpdate(3, (1, 2), Opening(4, "hash"), ending="{}"))
    assert (await store.acquire(claim("r2", after="r1"))).record.tokens == (5, 6, 7, 1, 2)
    for after in ("r1", "left0"):  # a turn that ended is never dropped
        with pytest.raises(errors.SessionOutOfSync, match="session chat has gone on since"):
            await store.acquire(claim("r3", after=after))
    for number in range(num_left * (opens or not is_released)):
        with pytest.raises(errors.RequestExists):
            await store.acquire(claim(f"left{number}", after="r2"))
    assert (await store.acquire(claim("r3", after="r2"))).record.tokens == (5, 6, 7, 1, 2)


async def test_a_turn_that_was_left_stays_where_the_next_one_names_it_or_none(store):
    await told(store, begins("r1"), replace(opened(5, 6, 7), ending="{}"))
    await told(store, claim("r2"), SessionUpdate(3, (8, 9), Opening(4, "hash")))
    lease = await held(store, claim("r3", after="r2"))
    await store.release(lease, **NOWHERE)
    assert (await store.acquire(claim("r4"))).record.tokens == (5, 6, 7, 8, 9)


async def test_the_same_request_takes_over_and_the_older_lease_writes_no_more(store):
    older = await held(store, begins())
    await store.append(older, opened(5, 6, 7))
    grant = await store.acquire(begins(holder="router 2"))
    assert grant.lease.fence > older.fence
    assert grant.record.tokens == (5, 6, 7)
    assert grant.record.turn == StoredTurn("r1", "digest of r1", 2)
    for write in (store.append(older, SessionUpdate(3, (8,))), store.renew(older)):
        with pytest.raises(errors.SessionTaken, match="session chat has been taken over"):
            await write
    await store.release(older, **NOWHERE)
    await store.append(grant.lease, SessionUpdate(3, (9,)))
    with pytest.raises(errors.SessionBusy):
        await store.acquire(claim("r2"))


async def test_an_attempt_that_comes_late_leaves_the_lease_to_the_one_that_runs(place):
    store = place.store
    newer = await held(store, begins(holder="one-000000000002"))
    await store.append(newer, opened(5, 6, 7))
    late = [begins(holder=name, takes_over=False) for name in ("one-000000000003", "other-1", "x")]
    older = begins(holder="one-000000000001")
    for _ in range(2):
        for asked in (*late, older):
            with pytest.raises(errors.SessionTaken, match="session chat has been taken over"):
                await store.acquire(asked)
        await place.passes(LEASE_S + 10)  # in the lease, and behind it: it was not given back
    await store.append(newer, SessionUpdate(3, (8,)))
    again = await held(store, begins(holder="one-000000000002", takes_over=False))
    await store.release(again, **NOWHERE)
    for asked in (*late, older):
        await store.release(await held(store, asked), **NOWHERE)
    await held(store, begins(holder="other-1"))
    await held(store, begins(holder="one-000000000001"))  # of another process: it takes over


async def test_another_request_waits_for_the_lease_to_end(place):
    lease = await held(place.store, begins())
    await place.store.append(lease, opened(5, 6, 7))
    with pytest.raises(errors.SessionBusy, match="session chat is busy with another request"):
        await place.store.acquire(claim("r2"))
    await place.passes(LEASE_S - 10)
    await place.store.renew(lease)
    await place.passes(LEASE_S - 10)
    with pytest.raises(errors.SessionBusy):
        await place.store.acquire(claim("r2"))
    await place.passes(20)
    grant = await place.store.acquire(claim("r2"))
    assert grant.record.tokens == (5, 6, 7)
    assert grant.record.turn == StoredTurn("r2", "digest of r2")
    with pytest.raises(errors.SessionTaken):
        await place.store.append(lease, SessionUpdate(3, (8,)))


async def test_a_lease_that_ran_out_writes_until_another_one_is_there(place):
    lease = await held(place.store, begins())
    await place.store.append(lease, opened(5, 6))
    await place.passes(LEASE_S + 10)
    await place.store.append(lease, SessionUpdate(2, (7,)))
    with pytest.raises(errors.SessionBusy):  # for it holds the session again
        await place.store.acquire(claim("r2"))


async def test_a_finished_request_is_answered_without_a_lease(store):
    lease = await held(store, begins())
    await store.append(lease, replace(opened(5, 6, 7), ending="done"))
    assert (await store.acquire(begins())).lease is None  # even before it is given back
    await store.release(lease, **NOWHERE)
    grant = await store.acquire(begins())
    assert grant.lease is None
    assert (grant.record.output, grant.record.turn.ending) == ((7,), "done")
    assert grant.record.fence == lease.fence
    await held(store, claim("r2"))


async def test_a_session_is_free_with_the_end_of_its_request_given_back_or_not(store):
    lease = await held(store, begins())
    await store.append(lease, replace(opened(5, 6, 7), ending="done"))
    later = await held(store, claim("r2"))
    await store.release(lease, target="late", draft=None)  # by a router that comes too late
    await store.append(later, opened(8, start=3, num_prompt_tokens=4))
    record = (await store.acquire(claim("r2"))).record
    assert (record.tokens, record.target) == ((5, 6, 7, 8), None)
    await store.append(await held(store, claim("r2")), SessionUpdate(4, (9,), ending="done"))
    assert (await store.delete("chat", "ann")).tokens == (5, 6, 7, 8, 9)


async def test_the_id_of_a_request_is_that_of_one_request(store):
    await told(store, begins(), opened(5, 6))
    with pytest.raises(errors.RequestExists, match="request id 'r1' is that of another request"):
        await store.acquire(claim(digest="another"))
    for request_id in ("r2", "r3"):
        await told(store, claim(request_id), opened(start=2, num_prompt_tokens=2))
    for request_id in ("r1", "r2"):
        with pytest.raises(errors.RequestExists):
            await store.acquire(claim(request_id))


async def test_a_request_that_was_refused_may_be_corrected_under_its_id(store):
    await told(store, begins(), opened(5, 6))
    await store.release(await held(store, claim("r2")), **NOWHERE)
    await told(store, claim("r2", digest="corrected"), opened(7, 8, start=2, num_prompt_tokens=3))
    with pytest.raises(errors.RequestExists):
        await store.acquire(claim("r1"))


async def test_so_many_earlier_requests_are_remembered(store):
    await told(store, begins("r0"), opened(5, 6))
    for number in range(1, BOUNDS.max_past + 2):
        await told(store, claim(f"r{number}"), opened(start=2, num_prompt_tokens=2))
    with pytest.raises(errors.RequestExists):
        await store.acquire(claim("r1"))
    await held(store, claim("r0"))


FORBIDDEN = [
    (claim("r2", owner="bob"), errors.PermissionDenied, "belongs to another key"),
    (begins(owner="bob"), errors.PermissionDenied, "belongs to another key"),
    (claim("r2", owner=""), errors.PermissionDenied, "belongs to another key"),
    (claim("r2", model="large"), errors.InvalidRequest, "is with model small, not large"),
    (begins("r2"), errors.SessionExists, "exists already"),
]


@pytest.mark.parametrize(("asked", "error", "reason"), FORBIDDEN)
async def test_a_session_is_its_owners_with_one_model_and_begins_once(store, asked, error, reason):
    await told(store, begins(), opened(5, 6))
    with pytest.raises(error, match=f"session chat {reason}"):
        await store.acquire(asked)
    with pytest.raises(errors.PermissionDenied):
        await store.delete("chat", "bob")
    await held(store, claim("r2", model=""))


@pytest.mark.parametrize("asked", [claim(), claim(model=""), begins(model="")])
async def test_an_unknown_session_is_not_found(store, asked):
    with pytest.raises(errors.SessionNotFound, match="there is no session chat"):
        await store.acquire(asked)
    with pytest.raises(errors.SessionNotFound, match="there is no session chat"):
        await store.delete("chat", "ann")


async def test_what_is_said_of_a_request_on_its_own_names_the_request(store):
    alone = begins("mine", "r-0123", is_alone=True)
    await told(store, alone, replace(opened(5, 6, 7), ending="done"))
    assert (await store.acquire(alone)).record.output == (7,)
    with pytest.raises(errors.RequestExists, match="request id 'mine'"):
        await store.acquire(replace(alone, digest="another"))
    with pytest.raises(errors.PermissionDenied, match="request 'mine' belongs to another key"):
        await store.acquire(replace(alone, owner="bob"))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"session_id": "a b"}, {"session_id": ""}, {"session_id": "x" * 65}),
        *({"session_id": "{a}"}, {"request_id": "r\n1"}, {"owner": "é"}, {"ttl_s": 0.0}),
    ],
)
def test_names_that_are_out_of_order_are_refused(wrong):
    with pytest.raises(errors.InvalidRequest):
        claim(**wrong)

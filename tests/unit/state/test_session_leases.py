"""Laws of claims: whose records requests get to, when they may run without a store, and what waits
for one in bounded memory."""

import asyncio
from dataclasses import replace
from itertools import count

import pytest

from slipstream.core import errors
from slipstream.core.policy.options import SpeculationOptions
from slipstream.core.request.prompt import PromptForm
from slipstream.core.request.request import Ask, Generation, SessionRef
from slipstream.core.types import SamplingParams, Verification
from slipstream.state.journal import StoreJournal
from slipstream.state.memory import MemoryStore
from slipstream.state.session_leases import (
    KeepRules,
    SessionLeases,
    check_received,
    fingerprint,
    session_of,
)
from slipstream.state.store import Bounds, Opening
from slipstream_router.lease_keeper import LeaseKeeper
from support.state.store_line import CLAIM, ENDING, OPENING, PROMPT, Line

ASKED = Generation("hello", Ask(request_id="r1"))
IN_SESSION = replace(ASKED, session=SessionRef("chat", create=True))


def claims(store=None, **rules):
    store = store or MemoryStore(Bounds(), lambda: 1000.0, next_fence=count(1).__next__)
    return SessionLeases(store, KeepRules(**rules), next_fence=lambda: 7)


OTHERS = [
    *({"prompt": "other"}, {"prompt": (104, 101)}, {"model": "other"}),
    *({"prompt": ({"role": "user", "content": "hello"},)}, {"session": SessionRef("chat")}),
]
ASKS = [
    *({"max_tokens": 5}, {"stop": ("x",)}, {"form": PromptForm(raw=True)}),
    *({"sampling": SamplingParams(seed=1)}, {"speculation": SpeculationOptions(lookup=True)}),
]
OTHERS += [{"ask": replace(ASKED.ask, **fields)} for fields in ASKS]


@pytest.mark.parametrize("fields", OTHERS)
def test_whatever_a_request_asks_for_makes_it_another_request(fields):
    assert fingerprint(replace(ASKED, **fields)) != fingerprint(ASKED)


def test_messages_are_others_where_only_their_borders_are():
    def chat(*contents):
        messages = tuple({"role": "user", "content": content} for content in contents)
        return fingerprint(replace(ASKED, prompt=messages))

    assert len({chat("ab", "c"), chat("a", "bc"), chat("abc"), chat("abuserc")}) == 4


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (ASKED, replace(ASKED, ask=replace(ASKED.ask, request_id="r2"))),
        (ASKED, replace(ASKED, num_received=3)),
        (ASKED, replace(ASKED, ask=replace(ASKED.ask, with_origins=True))),
        (IN_SESSION, replace(IN_SESSION, session=SessionRef("chat"))),
    ],
)
def test_its_id_and_what_its_caller_holds_or_gets_beside_make_it_no_other(one, same):
    assert fingerprint(one) == fingerprint(same)


async def test_a_store_of_this_process_keeps_a_request_on_its_own_once_it_has_ended():
    for asked, ending, kept in [(ASKED, None, ()), (ASKED, ENDING, (4,)), (IN_SESSION, None, (4,))]:
        leases = claims(ends_with_process=True)
        _, journal = await leases.acquire(asked, "", "model")
        journal.open(PROMPT, OPENING)
        await journal.keep([4], ending)
        await journal.close(target=None, draft=None)
        record, _ = await leases.acquire(asked, "", "model")
        assert record.output == kept


def test_requests_on_their_own_are_kept_by_owner_and_id():
    places = {session_of(ASKED, owner) for owner in ("", "alice", "bob")}
    other = replace(ASKED, ask=replace(ASKED.ask, request_id="r2"))
    assert len(places | {session_of(other, "alice")}) == 4
    assert session_of(IN_SESSION, "alice") == "chat"


async def test_no_request_is_found_by_the_name_of_a_session():
    place = session_of(ASKED, "alice")
    with pytest.raises(errors.InvalidRequest, match="of this form"):
        await claims().acquire(replace(ASKED, session=SessionRef(place)), "alice", "m")


class Slow(MemoryStore):
    """A store whose answers to claims are on their way until they are let through."""

    def __init__(self):
        super().__init__(Bounds(), lambda: 1000.0, next_fence=count(1).__next__)
        self.is_claimed, self.answers = asyncio.Event(), asyncio.Event()

    async def acquire(self, claim):
        grant = await super().acquire(claim)
        self.is_claimed.set()
        await self.answers.wait()
        return grant


async def test_a_caller_that_leaves_before_its_claim_is_answered_leaves_the_session_idle():
    store = Slow()
    door, keeper = claims(store), LeaseKeeper(lease_s=15.0)
    store.answers.set()
    _, first = await door.acquire(IN_SESSION, "", "m")
    first.open((1, 2), Opening(2, "hash"))
    await first.keep([3], None)
    await first.close(target="t", draft="d")
    store.answers.clear()
    turn = replace(IN_SESSION, session=SessionRef("chat"), ask=Ask(request_id="r2"))
    store.is_claimed.clear()
    leaves = asyncio.create_task(keeper.acquired(door.acquire(turn, "", "m")))
    await store.is_claimed.wait()
    leaves.cancel()
    await asyncio.wait({leaves})
    assert leaves.cancelled()
    store.answers.set()
    await keeper.aclose()
    other = replace(turn, ask=Ask(request_id="r3"))
    record, _ = await keeper.acquired(door.acquire(other, "", "m"))
    assert (record.tokens, record.target, record.draft) == ((1, 2, 3), "t", "d")
    assert (await door.acquire(replace(other), "", "m"))[1] is not None


async def test_tokens_that_were_not_kept_are_made_again_only_where_they_come_out_the_same():
    record, _ = await claims().acquire(ASKED, "", "m")
    held = replace(ASKED, num_received=3)
    check_received(held, record, is_repeatable=True)
    with pytest.raises(errors.SessionOutOfSync, match="these numerics"):
        check_received(held, record, is_repeatable=False)
    for verification in set(Verification) - {Verification.EXACT}:
        options = SpeculationOptions(verification=verification)
        other = replace(held, ask=replace(held.ask, speculation=options))
        with pytest.raises(errors.SessionOutOfSync, match=verification):
            check_received(other, record, is_repeatable=True)
        check_received(replace(other, num_received=0), record, is_repeatable=False)


async def test_what_waits_for_a_silent_store_takes_no_more_than_it_may(caplog):
    line, keeper = Line(lambda: 1000.0), LeaseKeeper(lease_s=15.0, max_late_bytes=60)
    claims = [replace(CLAIM, session_id=name) for name in "ab"]
    line.is_up = False
    for claim in claims:
        await ended(keeper, line, claim)
    assert "too much waits for the store" in caplog.text
    line.is_up = True
    await keeper.aclose()
    assert keeper._num_late_bytes == 0
    assert (await line.acquire(claims[0])).record.output == (4, 5, 6, 7, 8)
    with pytest.raises(errors.SessionNotFound):
        await line.acquire(replace(claims[1], create=False))


async def ended(keeper, line, claim):
    """A request of 32 bytes of tokens, none of which could be kept."""
    journal = StoreJournal(line, claim, None)
    async with keeper.kept(journal):
        journal.open(PROMPT, OPENING)
        await journal.keep([4, 5, 6, 7, 8], None)

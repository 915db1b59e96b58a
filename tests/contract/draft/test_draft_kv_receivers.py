"""A draft's feed of keys and values: how stale it may be, what it survives, what is never read, and
what it promises a target that asks it for the proposals of granted rounds.

The target here is a real server that sends what each test has it send.
"""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc.aio
import pytest

from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import Copying
from slipstream.core.types import Plan, Session
from slipstream.rpc.conversion.convert import proposed_from_pb
from support.models import tiny
from support.services.background import until
from support.services.scripted_keys import (
    DEEP,
    LAYERS,
    LIMIT_S,
    NUM_KEYS,
    PROMPT,
    SESSION,
    Script,
    following,
    held,
    message,
    proposed,
)
from support.services.tiny_services import MAX_LAG

NOW = TokenSequence(SESSION, PROMPT)


@pytest.mark.parametrize("step", [1, 7, NUM_KEYS])
async def test_keys_arrive_bit_for_bit_however_they_are_cut(models, engine, keys, step):
    cuts = range(0, NUM_KEYS, step)
    sent = [message(keys, at, min(at + step, NUM_KEYS)) for at in cuts]
    async with following(models, Script([*sent, asyncio.Event()])) as (drafts, feed):
        draft, proposal = await proposed(drafts, feed, NUM_KEYS)
        assert held(drafts, keys) == NUM_KEYS
        await draft.release("s")
    embedded = models.drafter("glide", engine).draft
    asked = NOW, DEEP
    assert proposal.tree == (await embedded.propose(*asked)).tree
    assert len(proposal.tree) == MAX_LAG


@pytest.mark.parametrize("staleness", range(MAX_LAG + 2))
async def test_staleness_and_depth_stay_within_the_lag_of_training(models, keys, staleness):
    known = NUM_KEYS - staleness
    script = Script([message(keys, 0, known), asyncio.Event()])
    async with following(models, script) as (drafts, feed):
        draft, proposal = await proposed(drafts, feed, known)
        await draft.release("s")
    assert proposal.staleness == staleness
    assert (len(proposal.tree), proposal.stopped_by) == (max(MAX_LAG - staleness, 0), "lag")


async def part_way(drafts, draft, count):
    """A proposal under way, once its draft holds so many keys."""
    waiting = asyncio.ensure_future(draft.propose(NOW, DEEP))
    while drafts.receivers.view("s", LAYERS).count < count:
        await drafts.load()
    assert not waiting.done()
    return waiting


async def test_a_proposal_waits_for_the_newest_key(models, keys):
    there = asyncio.Event()
    script = Script([message(keys, 0, 5), there, message(keys, 5, NUM_KEYS), asyncio.Event()])
    async with following(models, script, kv_wait_s=LIMIT_S) as (drafts, feed):
        draft = drafts.remote(lambda: feed)
        waiting = await part_way(drafts, draft, 5)
        there.set()
        proposal = await waiting
        await draft.release("s")
    assert proposal.staleness == 0
    assert proposal.timing.kv_wait_s > 0


async def test_a_request_begins_with_keys_that_are_new_enough_to_draft(models, keys):
    there, rest = asyncio.Event(), asyncio.Event()
    known = len(PROMPT) - MAX_LAG
    script = Script([message(keys, 0, known - 1), there, message(keys, known - 1, known), rest])
    async with following(models, script, kv_catch_up_s=LIMIT_S) as (drafts, feed):
        draft = drafts.remote(lambda: feed)
        waiting = await part_way(drafts, draft, known - 1)
        there.set()
        proposal = await waiting
        # A later round does without: what it lacks may never come.
        later = await draft.propose(TokenSequence(SESSION, (*PROMPT, 1, 2)), DEEP)
        await draft.release("s")
    assert (len(proposal.tree), proposal.staleness) == (1, MAX_LAG - 1)
    assert (len(later.tree), later.stopped_by) == (0, "lag")


async def test_a_slice_from_a_lower_start_replaces_what_is_held(models, keys):
    wrong = message(keys + 1, 5, 12)
    script = Script([message(keys, 0, 5), wrong, message(keys, 5, NUM_KEYS), asyncio.Event()])
    async with following(models, script) as (drafts, feed):
        draft, _ = await proposed(drafts, feed, NUM_KEYS)
        assert held(drafts, keys) == NUM_KEYS
        await draft.release("s")


LOST, BROKEN = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(
    ("first", "second", "starts"),
    [
        *((status, status, [0, 5, 5]) for status in (LOST, BROKEN)),
        (LOST, grpc.StatusCode.OUT_OF_RANGE, [0, 5, 0]),  # it holds less than we do
    ],
)
async def test_a_lost_stream_is_taken_up_where_it_broke_off(models, keys, first, second, starts):
    rest = [message(keys, starts[-1], NUM_KEYS), asyncio.Event()]
    script = Script([message(keys, 0, 5), first], [second], rest)
    async with following(models, script) as (drafts, feed):
        draft = drafts.remote(lambda: feed)
        await draft.propose(NOW, DEEP)
        while drafts.receivers.view("s", LAYERS).count < NUM_KEYS:
            await drafts.load()
        assert held(drafts, keys) == NUM_KEYS
        await draft.release("s")
    assert [request.start for request in script.asked] == starts
    assert {request.credential for request in script.asked} == {"secret"}


FINAL = "NOT_FOUND PERMISSION_DENIED FAILED_PRECONDITION"


@pytest.mark.parametrize("status", FINAL.split())
async def test_what_no_second_try_can_mend_is_not_tried_again(models, keys, status):
    script = Script([message(keys, 0, 5), grpc.StatusCode[status]])
    async with following(models, script) as (drafts, feed):
        draft, proposal = await proposed(drafts, feed, NUM_KEYS)
        assert proposal.stopped_by == "lag"
        assert held(drafts, keys) == 5
        await draft.release("s")
    assert len(script.asked) == 1


@pytest.mark.parametrize(("field", "start"), [("incarnation", 0), ("credential", 9)])
async def test_another_process_is_read_anew_and_another_credential_from_what_is_held(
    models, keys, field, start
):
    is_process = field == "incarnation"
    end = asyncio.Event() if is_process else grpc.StatusCode.PERMISSION_DENIED
    rest = message(keys, start, NUM_KEYS, **{"incarnation": "two"} if is_process else {})
    script = Script([message(keys, 0, 9), end], [rest, asyncio.Event()])
    async with following(models, script) as (drafts, feed):
        draft, _ = await proposed(drafts, feed, 9)
        setattr(feed, field, "two")
        await draft.propose(NOW, DEEP)
        await drafts.receivers.wait("s", NUM_KEYS, LIMIT_S)
        assert held(drafts, keys) == NUM_KEYS
        assert (await drafts.load()).num_kv_streams == 1
        await draft.release("s")
    assert [request.start for request in script.asked] == [0, start]
    assert getattr(script.asked[1], field) == "two" != getattr(script.asked[0], field)


BAD = {
    "a flipped bit": lambda keys: {"payload": flipped(message(keys, 5, 9).payload)},
    "another process": lambda keys: {"incarnation": "two"},
    "more positions": lambda keys: {"count": 2**32 - 1},
    "a gap": lambda keys: {"start": 6},
    "far away": lambda keys: {"start": 2**32 - 1},
}


def flipped(payload):
    return bytes([payload[0] ^ 1]) + payload[1:]


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_slice_is_never_read_and_the_session_goes_on(models, keys, name, caplog):
    bad = message(keys, 5, 9, **BAD[name](keys))
    script = Script([message(keys, 0, 5), bad, message(keys, 5, NUM_KEYS), asyncio.Event()])
    async with following(models, script) as (drafts, feed):
        draft, proposal = await proposed(drafts, feed, NUM_KEYS)
        assert held(drafts, keys) == 5
        assert (await drafts.load()).num_kv_streams == 0
        again = await draft.propose(NOW, DEEP)
        await draft.release("s")
    assert proposal.stopped_by == again.stopped_by == "lag"
    assert proposal.staleness == NUM_KEYS - 5
    assert len(script.asked) == 1
    assert "no more keys and values" in caplog.text


async def test_more_positions_than_the_session_has_are_not_held(models, keys):
    session = Session("s", len(PROMPT) - 5, 2)
    script = Script([message(keys, 0, 10), message(keys, 10, NUM_KEYS), asyncio.Event()])
    async with following(models, script) as (drafts, feed):
        draft = drafts.remote(lambda: feed)
        await draft.propose(TokenSequence(session, PROMPT[:10]), DEEP)
        await drafts.receivers.wait("s", NUM_KEYS, LIMIT_S)
        assert held(drafts, keys) == 10
        await draft.release("s")


@asynccontextmanager
async def asked(models, keys):
    """A draft that a router has asked once, and the target that has its keys, all but two sent."""
    script = Script([message(keys, 0, NUM_KEYS - 2), "asks"])
    async with following(models, script) as (drafts, feed):
        draft = drafts.remote(lambda: feed)
        await draft.propose(TokenSequence(SESSION, PROMPT), DEEP)
        await drafts.receivers.wait("s", NUM_KEYS - 2, LIMIT_S)
        yield script, draft
        await draft.release("s")


async def test_a_target_gets_the_proposal_that_a_router_gets(models, keys):
    async with asked(models, keys) as (script, draft):
        (opening,) = script.asked
        assert (opening.session_id, opening.credential, opening.proposes) == ("s", "secret", True)
        last = message(keys, NUM_KEYS - 2, NUM_KEYS)
        asking = script.ask(len(PROMPT) - 2, PROMPT[-2:], DEEP, last)
        theirs = proposed_from_pb(await asking)
        ours = await draft.propose(TokenSequence(SESSION, PROMPT), DEEP)
        assert len(ours.tree) > 1
        assert (theirs.tree, theirs.stats, theirs.staleness) == (ours.tree, ours.stats, 0)
        assert theirs.timing.engine_s > 0


async def test_what_can_t_be_proposed_is_answered_without_a_proposal_and_more_may_follow(
    models, keys
):
    above = (len(PROMPT) + 1, ())  # more than the draft holds
    unknown, deep = (0, [10**6]), replace(DEEP, max_depth=MAX_LAG + 1)
    async with asked(models, keys) as (script, _):
        for (start, tokens), plan in ((above, DEEP), (unknown, DEEP), ((0, PROMPT), deep)):
            assert not (await script.ask(start, tokens, plan)).HasField("proposal")
        assert (await script.ask(0, PROMPT, DEEP)).HasField("proposal")


async def test_copies_of_the_text_stand_behind_what_is_drafted(models, keys):
    plan = Plan(2, 12, lookup=Copying(shortest=2, max_depth=6))
    text = [*PROMPT, *tiny.tokens(6), *tiny.tokens(3)]  # ends as it began before
    async with asked(models, keys) as (script, _):
        plain = await script.ask(0, text, replace(plan, lookup=None))
        both = await script.ask(0, text, plan)
        num_drafted = len(plain.proposal.tree.tokens)
        assert (plain.num_copied, both.num_copied > 0) == (0, True)
        assert len(both.proposal.tree.tokens) == num_drafted + both.num_copied
        assert both.proposal.tree.tokens[:num_drafted] == plain.proposal.tree.tokens


async def test_the_stream_of_a_target_ends_with_the_request(models, keys):
    async with asked(models, keys) as (script, draft):
        assert script.num_open == 1
        await draft.release("s")
        await until(lambda: script.num_open == 0)

"""What the draft service promises beside the port: leases, refusals, and no key it can't trust."""

import itertools
import operator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from slipstream.client.engine import WindowedKv
from slipstream.core import errors
from slipstream.core.policy.options import READING
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, SamplingParams, Session, Shape, StopPolicy
from slipstream.ngrams.store_file import SUFFIX, NgramStores, StoreHeader
from slipstream.options import build
from slipstream.train.data import Document
from slipstream.train.ngrams import CountSettings, count, fitting, write_store
from slipstream_draft.config import DraftConfig
from support.models import tiny
from support.services import tiny_services
from support.services.fleet import eventually
from support.services.tiny_services import draft_place, rounds, target_here, target_place

PROMPT = tuple(tiny.tokens(21))
SESSION = Session("s", len(PROMPT), 30)
PLAN = Plan(max_depth=4, max_nodes=12)
PLANS = [
    PLAN,
    replace(PLAN, shape=Shape.CAPE),
    replace(PLAN, shape=Shape.DYNAMIC),
    replace(PLAN, shape=Shape.PRODUCT, widths=(2, 2, 1)),
]


@asynccontextmanager
async def pair(models, kind="glide", settings=None):
    """A target and a draft, served."""
    async with target_place(models) as targets, draft_place(models, kind, settings) as drafts:
        yield targets, drafts


@asynccontextmanager
async def request(targets, drafts, session, tokens=PROMPT, end="release"):
    """A request's target, which holds the prompt, and its draft."""
    target = await targets.prefilled(session, tokens)
    draft = drafts.remote(lambda: target.feed(targets.address))
    try:
        yield target, draft
    finally:
        for remote in (draft, target):
            await (remote.park(60) if end == "park" else remote.release(session.session_id))


async def played(draft, target, session, prompt, plan=PLAN, count=6):
    """What was proposed, and after which tokens, in the first rounds."""
    seen = []
    async for tokens, proposal, _ in rounds(draft, target, session, prompt, plan):
        seen.append((tokens, proposal.tree, proposal.stopped_by, proposal.staleness))
        if len(seen) == count:
            break
    return seen


async def played_here(models, kind, session, prompt, plan=PLAN, window=0):
    target = tiny.local_target(models.target, free_rows=16)
    draft = models.drafter(kind, WindowedKv(target, window=window)).draft
    return await played(draft, target, session, prompt, plan)


async def played_there(targets, drafts, session, prompt, plan=PLAN):
    target = targets.remote()
    reads = drafts.kind in READING
    draft = drafts.remote(lambda: target.feed(targets.address) if reads else None)
    try:
        return await played(draft, target, session, prompt, plan)
    finally:
        await draft.release(session.session_id)
        await target.release(session.session_id)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.shape.value)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", READING)
async def test_proposals_over_streams_are_the_embedded_ones(models, kind, plan, temperature):
    session = replace(SESSION, sampling=SamplingParams(temperature=temperature, seed=3))
    expected = await played_here(models, kind, session, PROMPT, plan)
    async with pair(models, kind) as (targets, drafts):
        assert await played_there(targets, drafts, session, PROMPT, plan) == expected
        assert (await drafts.load()).kv_streamed_bytes > 0
    assert any(len(tree) > 1 for _, tree, _, _ in expected)


@pytest.mark.parametrize("kind", ["vanilla", "no-cross", "ngram"])
async def test_drafts_that_read_no_keys_propose_as_embedded_ones(models, kind):
    prompt = PROMPT * 2
    session = Session("s", len(prompt), 30)
    plan = replace(PLAN, stop=StopPolicy.FIXED)
    expected = await played_here(models, kind, session, prompt, plan)
    async with pair(models, kind) as (targets, drafts):
        assert await played_there(targets, drafts, session, prompt, plan) == expected
        assert (await drafts.load()).kv_streamed_bytes == 0


async def test_eight_bit_keys_change_no_final_token(models):
    raw = await played_here(models, "glide", SESSION, PROMPT)
    settings = build(DraftConfig, kv_wait_ms=5000.0, kv_encoding="int8", window=0)
    async with pair(models, settings=settings) as (targets, drafts):
        seen = await played_there(targets, drafts, SESSION, PROMPT)
        load = await drafts.load()
    longest = min(len(raw[-1][0]), len(seen[-1][0]))
    assert raw[-1][0][:longest] == seen[-1][0][:longest]
    num_keys = len(seen[-1][0]) + PLAN.max_depth  # those of the last verdict included
    # Two layers of two key and two value heads: 16 bytes and a scale each, instead of 64 bytes.
    assert load.kv_streamed_bytes <= num_keys * 2 * 4 * (16 + 4)


async def test_a_draft_with_a_window_streams_the_first_keys_and_the_newest(models):
    prompt = tuple(tiny.tokens(450))
    session = Session("s", len(prompt), 30)
    settings = build(DraftConfig, kv_wait_ms=5000.0, window=128)
    expected = await played_here(models, "glide", session, prompt, window=128)
    async with pair(models, settings=settings) as (targets, drafts):
        seen = await played_there(targets, drafts, session, prompt)
        load = await drafts.load()
    assert seen == expected
    assert all(len(tree) > 1 and staleness == 0 for _, tree, _, staleness in seen)
    num_keys = len(seen[-1][0]) + PLAN.max_depth - 128  # a page is skipped
    assert load.kv_streamed_bytes <= num_keys * 2 * 4 * 64


TURNS = [(*PROMPT, *tiny.tokens(9, seed=5)), (*PROMPT[:10], *tiny.tokens(15, seed=5))]


@pytest.mark.parametrize("turn", TURNS, ids=["goes on", "has replaced tokens"])
async def test_a_parked_session_reads_anew_what_it_does_not_hold(models, turn):
    session = Session("s", len(turn), 30)
    async with pair(models) as (targets, drafts):
        async with request(targets, drafts, SESSION, end="park") as (_, draft):
            await draft.propose(TokenSequence(SESSION, PROMPT), PLAN)
        load = await drafts.load()
        assert (load.num_sessions, load.num_parked, load.num_kv_streams) == (0, 1, 0)
        assert load.kv_bytes > load.kv_streamed_bytes > 0
        async with request(targets, drafts, SESSION, turn) as (_, draft):
            proposal = await draft.propose(TokenSequence(session, turn), PLAN)
            after = await drafts.load()
    assert proposal.staleness == 0
    num_same = sum(itertools.takewhile(bool, map(operator.eq, PROMPT[:-1], turn)))
    per_position = load.kv_streamed_bytes // (len(PROMPT) - 1)
    new_bytes = per_position * (len(turn) - 1 - num_same)
    assert after.kv_streamed_bytes == load.kv_streamed_bytes + new_bytes
    embedded = models.drafter("glide", target_here(models, turn)).draft
    assert proposal.tree == (await embedded.propose(TokenSequence(session, turn), PLAN)).tree


async def test_a_higher_fence_takes_the_session_over(models):
    async with draft_place(models, "ngram") as drafts:
        older, newer = drafts.remote(fence=1), drafts.remote(fence=2)
        await older.propose(TokenSequence(SESSION, PROMPT), PLAN)
        await newer.propose(TokenSequence(SESSION, PROMPT[:5]), PLAN)
        with pytest.raises(errors.SessionTaken):
            await older.propose(TokenSequence(SESSION, PROMPT), PLAN)
        # What the older one held was taken over, not freed by its end.
        await newer.propose(TokenSequence(SESSION, PROMPT), PLAN)
        with pytest.raises(errors.SessionTaken, match="fence 2, not 1"):
            await drafts.remote(fence=1).propose(TokenSequence(SESSION, PROMPT), PLAN)
        await newer.release("s")


async def test_a_session_drafts_from_the_store_of_its_targets_tokenizer(tmp_path):
    path = tmp_path / f"tiny{SUFFIX}"
    settings = CountSettings(min_count=1)
    text = Document(np.array([5, 6, 7], np.int32), 1)
    tables = count([text] * 4, settings, progress=lambda *_: None)
    write_store(path, fitting(tables, settings, 8), StoreHeader("tiny", 8, 3, 8))
    models, sequence = (
        tiny_services.Models(stores=NgramStores((str(path),))),
        TokenSequence(SESSION, (5,)),
    )
    for numbering, tokens in (("tiny", (6, 7)), ("else", ())):
        async with draft_place(replace(models, tokenizer_hash=numbering), "ngram") as drafts:
            draft = drafts.remote()
            proposal = await draft.propose(sequence, replace(PLAN, shape=Shape.DYNAMIC))
            assert proposal.tree.tokens == tokens
            await draft.release("s")


OTHER = replace(SESSION, session_id="other")


async def test_without_room_for_keys_nothing_is_drafted_until_there_is_some(models):
    async with pair(models) as (targets, drafts):
        drafts.receivers.budget.limit = 1000
        async with request(targets, drafts, SESSION) as (_, draft):
            proposal = await draft.propose(TokenSequence(SESSION, PROMPT), PLAN)
            assert (len(proposal.tree), proposal.stopped_by) == (0, "lag")
            assert drafts.receivers.num_kv_bytes == 0
            drafts.receivers.budget.limit = None
            again = partial(draft.propose, TokenSequence(SESSION, PROMPT), PLAN)
            await eventually(again, lambda proposal: len(proposal.tree) > 0)
        await drafts.until_empty()
        assert drafts.receivers.budget.num_bytes == 0


async def test_keys_of_a_parked_session_give_way_to_those_of_a_running_one(models):
    async with pair(models) as (targets, drafts):
        async with request(targets, drafts, SESSION, end="park") as (_, draft):
            await draft.propose(TokenSequence(SESSION, PROMPT), PLAN)
        drafts.receivers.budget.limit = drafts.receivers.kv_bytes("s")
        assert drafts.receivers.kv_bytes("s") > 0
        async with request(targets, drafts, OTHER) as (_, draft):
            assert len((await draft.propose(TokenSequence(OTHER, PROMPT), PLAN)).tree)
            assert drafts.receivers.kv_bytes("s") == 0 < drafts.receivers.kv_bytes("other")
        async with request(targets, drafts, SESSION) as (_, draft):
            assert len((await draft.propose(TokenSequence(SESSION, PROMPT), PLAN)).tree), (
                "it is read again"
            )

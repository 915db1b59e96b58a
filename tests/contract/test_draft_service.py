"""What the draft service promises beside the port: leases, refusals, and no key it can't trust."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc.aio
import pytest

import tiny
from slipstream.core import errors
from slipstream.core.types import (
    Delta,
    Plan,
    Proposal,
    SamplingParams,
    Session,
    Shape,
    StopPolicy,
    Verification,
)
from slipstream.draft.servicer import DraftSettings
from slipstream.rpc.convert_facts import draft_facts_from_pb
from slipstream.rpc.kv import KvEncoding
from slipstream.rpc.leases import LeaseLimits
from slipstream.rpc.status import error_from
from slipstream.rpc.v1 import common_pb2, draft_pb2, draft_pb2_grpc
from slipstream.target.engine import LocalTarget
from tiny_services import MAX_LAG, Models, draft_place, rounds, target_place

PROMPT = tuple(tiny.tokens(21))
SESSION = Session("s", len(PROMPT), 30)
PLAN = Plan(max_depth=4, max_nodes=12)
PLANS = [
    PLAN,
    replace(PLAN, shape=Shape.CAPE),
    replace(PLAN, shape=Shape.DYNAMIC),
    replace(PLAN, shape=Shape.PRODUCT, widths=(2, 2, 1)),
]
LIMIT_S = 60


@pytest.fixture(scope="module")
def models():
    return Models()


@asynccontextmanager
async def pair(models, kind="glide", settings=None):
    """A target and a draft, served."""
    async with target_place(models) as targets, draft_place(models, kind, settings) as drafts:
        yield targets, drafts


async def until(condition):
    """Ask until it is so: what it asks is another process, as far as the test goes."""
    async with asyncio.timeout(LIMIT_S):
        while not await condition():
            pass


async def is_empty(drafts):
    load = await drafts.load()
    return (load.num_sessions, load.num_parked, load.kv_bytes, load.num_kv_streams) == (0,) * 4


async def played(draft, target, session, prompt, plan=PLAN, count=6):
    """What was proposed, and after which tokens, in the first rounds."""
    seen = []
    async for tokens, proposal, _ in rounds(draft, target, session, prompt, plan):
        seen.append((tokens, proposal.tree, proposal.stopped_by, proposal.staleness))
        if len(seen) == count:
            break
    return seen


async def played_here(models, kind, session, prompt, plan=PLAN):
    target = LocalTarget(models.target, free_rows=16)
    draft = models.drafter(kind, target).draft
    return await played(draft, target, session, prompt, plan)


async def played_there(targets, drafts, session, prompt, plan=PLAN):
    target = targets.remote()
    reads = drafts.kind == "glide"
    draft = drafts.remote(lambda: target.feed(targets.address) if reads else None)
    try:
        return await played(draft, target, session, prompt, plan)
    finally:
        await draft.release(session.session_id)
        await target.release(session.session_id)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.shape.value)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_proposals_over_streamed_keys_are_the_embedded_ones(models, plan, temperature):
    session = replace(SESSION, sampling=SamplingParams(temperature=temperature, seed=3))
    expected = await played_here(models, "glide", session, PROMPT, plan)
    async with pair(models) as (targets, drafts):
        assert await played_there(targets, drafts, session, PROMPT, plan) == expected
        assert (await drafts.load()).kv_streamed_bytes > 0
    assert any(len(tree) > 1 for _, tree, _, _ in expected)


@pytest.mark.parametrize("kind", ["vanilla", "ngram"])
async def test_drafts_that_read_no_keys_propose_as_embedded_ones(models, kind):
    prompt = PROMPT * 2
    session = Session("s", len(prompt), 30)
    plan = replace(PLAN, stop=StopPolicy.FIXED)
    expected = await played_here(models, kind, session, prompt, plan)
    async with pair(models, kind) as (targets, drafts):
        assert await played_there(targets, drafts, session, prompt, plan) == expected
        assert (await drafts.load()).kv_streamed_bytes == 0


async def test_sessions_at_once_propose_as_one_by_one(models):
    prompts = [tuple(tiny.tokens(15 + size, seed=size)) for size in range(8)]
    sessions = [Session(f"s{at}", len(prompt), 30) for at, prompt in enumerate(prompts)]
    pairs = list(zip(sessions, prompts, strict=True))
    expected = [await played_here(models, "glide", *pair) for pair in pairs]
    async with pair(models) as (targets, drafts):
        together = await asyncio.gather(
            *(played_there(targets, drafts, session, prompt) for session, prompt in pairs)
        )
        await until(lambda: is_empty(drafts))
    assert together == expected


async def test_eight_bit_keys_change_no_final_token(models):
    raw = await played_here(models, "glide", SESSION, PROMPT)
    settings = DraftSettings(kv_wait_s=5.0, kv_encoding=KvEncoding.INT8)
    async with pair(models, settings=settings) as (targets, drafts):
        seen = await played_there(targets, drafts, SESSION, PROMPT)
        load = await drafts.load()
    longest = min(len(raw[-1][0]), len(seen[-1][0]))
    assert raw[-1][0][:longest] == seen[-1][0][:longest]
    num_keys = len(seen[-1][0]) - 1
    # Two layers of two key and two value heads: 16 bytes and a scale each, instead of 64 bytes.
    assert load.kv_streamed_bytes <= num_keys * 2 * 4 * (16 + 4)


async def test_cancelling_frees_everything(models):
    async with pair(models) as (targets, drafts):
        target = await targets.prefilled(SESSION, PROMPT)
        draft = drafts.remote(lambda: target.feed(targets.address))
        await draft.propose(SESSION, Delta(0, PROMPT), PLAN)
        load = await drafts.load()
        assert (load.num_sessions, load.num_kv_streams, load.num_rounds) == (1, 1, 1)
        assert load.kv_bytes > load.kv_streamed_bytes > 0
        await draft.release("s")
        await until(lambda: is_empty(drafts))
        await target.release("s")


async def test_a_parked_session_goes_on_from_what_it_holds(models):
    turn = (*PROMPT, *tiny.tokens(9, seed=5))
    async with pair(models) as (targets, drafts):
        target = await targets.prefilled(SESSION, PROMPT)
        draft = drafts.remote(lambda: target.feed(targets.address))
        await draft.propose(SESSION, Delta(0, PROMPT), PLAN)
        await draft.park(60)
        await target.park(60)
        load = await drafts.load()
        assert (load.num_sessions, load.num_parked, load.num_kv_streams) == (0, 1, 0)
        assert load.kv_bytes > load.kv_streamed_bytes > 0
        target = await targets.prefilled(SESSION, turn)
        draft = drafts.remote(lambda: target.feed(targets.address))
        proposal = await draft.propose(Session("s", len(turn), 30), Delta(0, turn), PLAN)
        after = await drafts.load()
        await draft.release("s")
        await target.release("s")
    assert proposal.staleness == 0
    per_position = load.kv_streamed_bytes // (len(PROMPT) - 1)
    assert after.kv_streamed_bytes == per_position * (len(turn) - 1)


async def test_keys_of_tokens_that_were_replaced_meanwhile_are_read_again(models):
    turn = (*PROMPT[:10], *tiny.tokens(15, seed=5))
    session = Session("s", len(turn), 30)
    async with pair(models) as (targets, drafts):
        target = await targets.prefilled(SESSION, PROMPT)
        draft = drafts.remote(lambda: target.feed(targets.address))
        await draft.propose(SESSION, Delta(0, PROMPT), PLAN)
        await draft.park(60)
        await target.park(60)
        target = await targets.prefilled(SESSION, turn)
        draft = drafts.remote(lambda: target.feed(targets.address))
        proposal = await draft.propose(session, Delta(0, turn), PLAN)
        await draft.release("s")
        await target.release("s")
    here = LocalTarget(models.target, free_rows=16)
    embedded = models.drafter("glide", here).draft
    await here.verify(
        replace(session, num_prompt_tokens=len(turn) - 1), Delta(0, turn[:-1]), Proposal()
    )
    assert proposal.tree == (await embedded.propose(session, Delta(0, turn), PLAN)).tree


async def test_a_higher_fence_takes_the_session_over(models):
    async with draft_place(models, "ngram") as drafts:
        older, newer = drafts.remote(fence=1), drafts.remote(fence=2)
        await older.propose(SESSION, Delta(0, PROMPT), PLAN)
        await newer.propose(SESSION, Delta(0, PROMPT[:5]), PLAN)
        with pytest.raises(errors.SessionTaken):
            await older.propose(SESSION, Delta(len(PROMPT), ()), PLAN)
        # What the older one held was taken over, not freed by its end.
        await newer.propose(SESSION, Delta(5, PROMPT[5:]), PLAN)
        with pytest.raises(errors.SessionTaken, match="fence 2, not 1"):
            await drafts.remote(fence=1).propose(SESSION, Delta(0, PROMPT), PLAN)
        await newer.release("s")


async def test_no_more_sessions_than_there_is_room_for(models):
    settings = DraftSettings(limits=LeaseLimits(max_sessions=1))
    async with draft_place(models, "ngram", settings) as drafts:
        first = drafts.remote()
        await first.propose(SESSION, Delta(0, PROMPT), PLAN)
        with pytest.raises(errors.CapacityError):
            second = replace(SESSION, session_id="t")
            await drafts.remote().propose(second, Delta(0, PROMPT), PLAN)
        await first.propose(SESSION, Delta(len(PROMPT), ()), PLAN)
        await first.release("s")


BAD_PLANS = {
    "no depth": (Plan(0, 1), errors.InvalidRequest),
    "no nodes": (Plan(1, 0), errors.InvalidRequest),
    "too deep": (Plan(41, 50), errors.InvalidRequest),
    "past the lag": (Plan(MAX_LAG + 1, 50), errors.InvalidRequest),
    "too many nodes": (Plan(4, 128), errors.InvalidRequest),
    "widths of a chain": (replace(PLAN, widths=(1,)), errors.UnsupportedCombination),
    "no widths": (replace(PLAN, shape=Shape.PRODUCT), errors.UnsupportedCombination),
    "width 0": (replace(PLAN, shape=Shape.PRODUCT, widths=(1, 0)), errors.InvalidRequest),
    "wide": (replace(PLAN, shape=Shape.PRODUCT, widths=(128,)), errors.InvalidRequest),
    "huge": (replace(PLAN, shape=Shape.PRODUCT, widths=(99,) * 40), errors.InvalidRequest),
    "roots of a chain": (replace(PLAN, roots=(1,)), errors.InvalidRequest),
    "a fork": (replace(PLAN, shape=Shape.FORK, roots=(1,)), errors.UnsupportedCombination),
    "a threshold of none": (replace(PLAN, threshold=0.5), errors.InvalidRequest),
    "a bad threshold": (
        replace(PLAN, stop=StopPolicy.SVIP, threshold=-1.0),
        errors.InvalidRequest,
    ),
    "no decision model": (
        replace(PLAN, stop=StopPolicy.DECISION),
        errors.UnsupportedCombination,
    ),
}


@pytest.mark.parametrize("name", BAD_PLANS)
async def test_a_plan_that_can_not_be_followed_is_refused(models, name):
    plan, kind = BAD_PLANS[name]
    async with pair(models) as (targets, drafts):
        target = await targets.prefilled(SESSION, PROMPT)
        draft = drafts.remote(lambda: target.feed(targets.address))
        with pytest.raises(kind) as caught:
            await draft.propose(SESSION, Delta(0, PROMPT), plan)
        assert type(caught.value) is kind
        await until(lambda: is_empty(drafts))
        await target.release("s")


@pytest.mark.parametrize("roots", [(), (1, 1), (tiny.VOCAB,), tuple(range(13))])
async def test_roots_that_can_not_be_grown_are_refused(models, roots):
    session = replace(SESSION, verification=Verification.TARGET_INIT, num_roots=4)
    plan = replace(PLAN, shape=Shape.FORK, roots=roots)
    async with draft_place(models, "vanilla") as drafts:
        with pytest.raises(errors.InvalidRequest, match="root"):
            await drafts.remote().propose(session, Delta(0, PROMPT), plan)


@pytest.mark.parametrize("plan", [replace(PLAN, shape=Shape.CAPE), replace(PLAN, stop="svip")])
async def test_ngrams_have_no_law_to_ask_for(models, plan):
    plan = replace(plan, stop=StopPolicy(plan.stop))
    async with draft_place(models, "ngram") as drafts:
        with pytest.raises(errors.UnsupportedCombination, match="ngram"):
            await drafts.remote().propose(SESSION, Delta(0, PROMPT), plan)


@pytest.mark.parametrize("token", [tiny.VOCAB, 2**32 - 1])
@pytest.mark.parametrize("kind", ["vanilla", "ngram"])
async def test_a_token_outside_the_vocabulary_is_refused(models, kind, token):
    async with draft_place(models, kind) as drafts:
        with pytest.raises(errors.InvalidRequest, match=f"token {token}"):
            await drafts.remote().propose(SESSION, Delta(0, (1, token)), PLAN)


async def test_more_tokens_than_the_request_can_have_are_refused(models):
    async with draft_place(models, "vanilla") as drafts:
        with pytest.raises(errors.InvalidRequest, match="52 tokens, but 51"):
            await drafts.remote().propose(SESSION, Delta(0, (1,) * 52), PLAN)


@pytest.mark.parametrize("kind", ["vanilla", "ngram"])
async def test_a_session_longer_than_the_context_is_refused(models, kind):
    session = Session("s", 2**32 - 1, 2**32 - 1)
    async with draft_place(models, kind) as drafts:
        with pytest.raises(errors.PromptTooLong):
            await drafts.remote().propose(session, Delta(0, PROMPT), PLAN)
        await until(lambda: is_empty(drafts))


async def test_a_draft_that_reads_keys_is_told_where(models):
    async with draft_place(models, "glide") as drafts:
        with pytest.raises(errors.InvalidRequest, match="layers 0, 2: the plan needs a feed"):
            await drafts.remote().propose(SESSION, Delta(0, PROMPT), PLAN)


@pytest.mark.parametrize(
    "changes", [{"address": "nowhere"}, {"session_id": ""}, {"incarnation": ""}]
)
async def test_a_feed_that_can_be_none_is_refused(models, changes):
    given = {"address": "127.0.0.1:1", "session_id": "s", "incarnation": "i"}
    feed = draft_pb2.KvFeed(**{**given, **changes})
    async with draft_place(models, "glide") as drafts:
        with pytest.raises(errors.InvalidRequest):
            await drafts.remote(lambda: feed).propose(SESSION, Delta(0, PROMPT), PLAN)


async def test_a_feed_that_is_of_no_use_is_refused(models):
    feed = draft_pb2.KvFeed(address="127.0.0.1:1", session_id="s", incarnation="i")
    async with draft_place(models, "vanilla") as drafts:
        with pytest.raises(errors.InvalidRequest, match="reads none"):
            await drafts.remote(lambda: feed).propose(SESSION, Delta(0, PROMPT), PLAN)


def opening(models, **changes):
    """The first message of a stream, some fields of the target's identity or layout changed."""
    identity, layout = common_pb2.ModelIdentity(), common_pb2.KvLayout()
    identity.CopyFrom(models.identity)
    layout.CopyFrom(models.layout)
    for name, value in changes.items():
        setattr(identity if name in identity.DESCRIPTOR.fields_by_name else layout, name, value)
    session = common_pb2.SessionParams(
        session_id="s", num_prompt_tokens=5, max_tokens=5, num_roots=1
    )
    opened = draft_pb2.OpenDraft(session=session, target=identity, target_layout=layout)
    return draft_pb2.SpeculateRequest(open=opened)


async def answers(drafts, *messages):
    """Everything that is said to these messages. Raises the error the stream ends with."""
    stub = draft_pb2_grpc.DraftServiceStub(drafts.channel)
    try:
        return [answer async for answer in stub.Speculate(iter(messages), timeout=LIMIT_S)]
    except grpc.aio.AioRpcError as status:
        raise error_from(status) from None


MISMATCHES = {
    "protocol_version": 2,
    "model_id": "another",
    "tokenizer_hash": "else",
    "vocab_size": 49,
    "num_layers": 4,
    "num_kv_heads": 3,
    "head_dim": 8,
}


@pytest.mark.parametrize("name", MISMATCHES)
async def test_another_target_is_refused_with_both_values(models, name):
    theirs = MISMATCHES[name]
    about = models.layout if hasattr(models.layout, name) else models.identity
    async with draft_place(models, "glide") as drafts:
        (answer,) = await answers(drafts, opening(models))
        assert answer.opened.incarnation == "a-draft"
        with pytest.raises(errors.HandshakeError) as caught:
            await answers(drafts, opening(models, **{name: theirs}))
    assert str(getattr(about, name)) in str(caught.value)
    assert str(theirs) in str(caught.value)


@pytest.mark.parametrize("name", ["dtype", "vocab_size"])
async def test_what_the_draft_needs_to_know_of_the_target_is_asked_for(models, name):
    async with draft_place(models, "glide") as drafts:
        with pytest.raises(errors.HandshakeError, match="says nothing"):
            await answers(drafts, opening(models, **{name: 0}))


async def test_any_target_with_the_same_tokenizer_will_do_for_a_plain_draft(models):
    different = {"model_id": "another", "vocab_size": 64, "num_layers": 9, "dtype": 0}
    async with draft_place(models, "vanilla") as drafts:
        assert len(await answers(drafts, opening(models, **different))) == 1
        with pytest.raises(errors.HandshakeError):
            await answers(drafts, opening(models, tokenizer_hash="else"))


async def test_messages_out_of_order_are_refused(models):
    park = draft_pb2.SpeculateRequest(park=draft_pb2.Park(ttl_ms=1000))
    nothing = draft_pb2.SpeculateRequest()
    first = opening(models)
    async with draft_place(models, "ngram") as drafts:
        assert await answers(drafts) == []
        for messages in ([park], [nothing], [first, first], [first, nothing]):
            with pytest.raises(errors.InvalidRequest):
                await answers(drafts, *messages)
        for ttl_ms in (0, 2**32 - 1):
            never = draft_pb2.SpeculateRequest(park=draft_pb2.Park(ttl_ms=ttl_ms))
            with pytest.raises(errors.InvalidRequest):
                await answers(drafts, first, never)
        await until(lambda: is_empty(drafts))


async def test_a_draft_says_what_it_is(models):
    async with draft_place(models, "glide") as drafts:
        stub = draft_pb2_grpc.DraftServiceStub(drafts.channel)
        about = await stub.DescribeDraft(draft_pb2.DescribeDraftRequest())
    assert (about.kind, about.max_lag, list(about.target_layers)) == ("glide", MAX_LAG, [0, 2])
    assert (about.target_model_id, about.identity.vocab_size) == ("tiny", tiny.VOCAB)
    assert draft_facts_from_pb(about) == models.drafter("glide", drafts.feeds).facts

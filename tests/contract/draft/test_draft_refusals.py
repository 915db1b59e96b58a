"""What a draft service refuses, and how: plans, tokens, targets, orders of messages, addresses."""

import asyncio
from dataclasses import replace

import grpc.aio
import pytest

from slipstream.core import errors
from slipstream.core.policy.profile import DraftFacts
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Session, Shape, StopPolicy, Verification
from slipstream.drafting.checks import check_plan
from slipstream.rpc.status import error_from
from slipstream.rpc.v1 import common_pb2, draft_pb2, draft_pb2_grpc, target_pb2_grpc
from slipstream_draft.kv_sources import ANYWHERE, KvSources
from slipstream_target.servicer import SERVICE
from support.models import tiny
from support.services.scripted_keys import Script
from support.services.tiny_services import MAX_LAG, Models, draft_place, serving

PROMPT = tuple(tiny.tokens(21))
SESSION = Session("s", len(PROMPT), 30)
PLAN = Plan(max_depth=4, max_nodes=12)
LIMIT_S = 60


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
    "a bad threshold": (replace(PLAN, stop=StopPolicy.SVIP, threshold=-1.0), errors.InvalidRequest),
    "no decision model": (replace(PLAN, stop=StopPolicy.DECISION), errors.UnsupportedCombination),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_a_plan_that_can_not_be_followed_is_refused(name):
    plan, kind = BAD_PLANS[name]
    with pytest.raises(kind) as caught:
        check_plan(plan, SESSION, DraftFacts("glide", max_lag=MAX_LAG), tiny.VOCAB)
    assert type(caught.value) is kind


ROOTED = replace(SESSION, verification=Verification.TARGET_INIT, num_roots=4)
ROOTS = [(), (1, 1), (tiny.VOCAB,), tuple(range(13))]
FORKS = [{"session": ROOTED, "plan": replace(PLAN, shape=Shape.FORK, roots=at)} for at in ROOTS]
WITH_LAW = [
    {"plan": replace(PLAN, shape=Shape.CAPE)},
    {"plan": replace(PLAN, stop=StopPolicy.SVIP)},
]
FEED = {"address": "127.0.0.1:1", "session_id": "s", "incarnation": "i"}
NO_FEEDS = [{"address": "nowhere"}, {"session_id": ""}, {"incarnation": ""}]
ENDLESS = {"session": Session("s", 2**32 - 1, 2**32 - 1)}
TOKENS = (tiny.VOCAB, 2**32 - 1)
Invalid, Unsupported = errors.InvalidRequest, errors.UnsupportedCombination


@pytest.mark.parametrize(
    ("kind", "given", "error", "sentence"),
    [
        *(("vanilla", fork, Invalid, "root") for fork in FORKS),
        *(("ngram", law, Unsupported, "ngram") for law in WITH_LAW),
        *(("vanilla", {"tokens": (1, at)}, Invalid, f"token id {at}") for at in TOKENS),
        *(("ngram", {"tokens": (1, at)}, Invalid, f"token id {at}") for at in TOKENS),
        ("vanilla", {"tokens": (1,) * 52}, Invalid, "52 tokens, but 51"),
        *((kind, ENDLESS, errors.PromptTooLong, None) for kind in ("vanilla", "ngram")),
        ("glide", {}, Invalid, "layers 0, 2: the plan needs a feed"),
        *(("glide", {"feed": {**FEED, **changes}}, Invalid, None) for changes in NO_FEEDS),
        ("vanilla", {"feed": FEED}, Invalid, "reads none"),
    ],
)
async def test_what_a_draft_has_no_use_for_or_can_not_do_is_refused(
    models, kind, given, error, sentence
):
    given = {"session": SESSION, "tokens": PROMPT, "plan": PLAN, "feed": None, **given}
    feed = given["feed"] and draft_pb2.KvFeed(**given["feed"])
    async with draft_place(models, kind) as drafts:
        sequence = TokenSequence(given["session"], given["tokens"])
        with pytest.raises(error, match=sentence):
            await drafts.remote(lambda: feed).propose(sequence, given["plan"])
        await drafts.until_empty()


def opening(models, **changes):
    """The first message of a stream, some fields of the target's identity or layout changed."""
    identity, layout = common_pb2.ModelIdentity(), common_pb2.KvLayout()
    identity.CopyFrom(models.identity)
    layout.CopyFrom(models.layout)
    for name, value in changes.items():
        setattr(identity if name in identity.DESCRIPTOR.fields_by_name else layout, name, value)
    session = {"session_id": "s", "num_prompt_tokens": 5, "max_tokens": 5, "num_roots": 1}
    opened = draft_pb2.OpenDraft(session=session, target=identity, target_layout=layout)
    return draft_pb2.SpeculateRequest(open=opened)


async def answers(drafts, *messages):
    """Everything that is said to these messages. Raises the error the stream ends with."""
    stub = draft_pb2_grpc.DraftServiceStub(drafts.channel)
    try:
        return [answer async for answer in stub.Speculate(iter(messages), timeout=LIMIT_S)]
    except grpc.aio.AioRpcError as status:
        raise error_from(status) from None


MISMATCHES = {"protocol_version": 2, "model_id": "another", "tokenizer_hash": "else"}
MISMATCHES |= {"vocab_size": 49, "num_layers": 4, "num_kv_heads": 3, "head_dim": 8}


@pytest.mark.parametrize("name", MISMATCHES)
async def test_another_target_is_refused_with_both_values(models, name):
    theirs = MISMATCHES[name]
    about = models.layout if hasattr(models.layout, name) else models.identity
    async with draft_place(models, "glide") as drafts:
        (answer,) = await answers(drafts, opening(models))
        assert answer.opened.incarnation == "a-draft"
        with pytest.raises(errors.HandshakeError) as caught:
            await answers(drafts, opening(models, **{name: theirs}))
        for unknown in {"vocab_size": ("vocab_size", "dtype")}.get(name, ()):
            with pytest.raises(errors.HandshakeError, match="says nothing"):
                await answers(drafts, opening(models, **{unknown: 0}))
    assert str(getattr(about, name)) in str(caught.value)
    assert str(theirs) in str(caught.value)


class StateReader(Models):
    """Models whose GliDe draft is described as if it read states that layers take in."""

    def drafter(self, kind, source):
        return replace(super().drafter(kind, source), layers=(3, 6))


@pytest.mark.parametrize(
    ("kept", "changes", "error", "sentence"),
    [
        ((0, 3), {}, None, ""),
        ((), {}, errors.ModelMismatch, "layers 0, 3, .* of none: start .* --hidden-layers 0,3$"),
        ((0,), {}, errors.ModelMismatch, "keeps those of 0: start .* --hidden-layers 0,3$"),
        ((0, 3), {"hidden_size": 62}, errors.HandshakeError, "hidden_size"),
    ],
)
async def test_a_target_without_the_states_that_a_draft_reads_is_refused(
    kept, changes, error, sentence
):
    models = StateReader(target=tiny.causal(hidden_layers=kept))
    async with draft_place(models, "glide") as drafts:
        if error is None:
            assert (await answers(drafts, opening(models)))[0].opened.incarnation
            return
        with pytest.raises(error, match=sentence):
            await answers(drafts, opening(models, **changes))


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
        await drafts.until_empty()


def feed_at(address):
    return draft_pb2.KvFeed(address=address, session_id="s", incarnation="one", credential="key")


@pytest.mark.parametrize(
    ("patterns", "address", "kind"),
    [
        (ANYWHERE, "unix:{path}", errors.InvalidRequest),
        (("localhost:*",), "127.0.0.1:{port}", errors.PermissionDenied),
    ],
)
async def test_a_forbidden_source_is_never_dialled(models, tmp_path, patterns, address, kind):
    dialled = []

    async def answer(reader, writer):
        dialled.append(writer)
        writer.close()

    path = tmp_path / "s"
    async with (
        await asyncio.start_unix_server(answer, path),
        await asyncio.start_server(answer, "127.0.0.1", 0) as server,
        draft_place(models, "glide", sources=KvSources(patterns)) as drafts,
    ):
        port = server.sockets[0].getsockname()[1]
        feed = feed_at(address.format(path=path, port=port))
        with pytest.raises(kind):
            await drafts.remote(lambda: feed).propose(TokenSequence(SESSION, PROMPT), PLAN)
        await drafts.until_empty()
    assert dialled == []


@pytest.mark.parametrize("prefix", ["", "dns:///"])
async def test_a_source_that_is_allowed_is_read(models, prefix):
    script = Script([grpc.StatusCode.NOT_FOUND])

    def register(server):
        target_pb2_grpc.add_TargetServiceServicer_to_server(script, server)

    async with serving({SERVICE: register}) as address:
        sources = KvSources((address,))
        async with draft_place(models, "glide", sources=sources) as drafts:
            draft = drafts.remote(lambda: feed_at(prefix + address))
            await draft.propose(TokenSequence(SESSION, PROMPT), PLAN)
            await drafts.receivers.wait("s", 1, LIMIT_S)
            await draft.release("s")
    assert [asked.credential for asked in script.asked] == ["key"]

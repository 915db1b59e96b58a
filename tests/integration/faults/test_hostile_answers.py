"""Drafts and targets that answer requests with bytes of their own: no request fails."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from slipstream.client import Mode, SpeculationOptions, StopPolicy
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2, target_pb2_grpc
from support.network.hostile_replicas import (
    GARBAGE,
    REFUSALS,
    draft_description,
    draft_replies,
    hostile,
    says,
    watches,
)
from support.services import fleet
from support.services.fleet import num_ready, routed

EXACT = SpeculationOptions(mode=Mode.FORCED, stop=StopPolicy.FIXED, max_draft_tokens=2)
OFF = SpeculationOptions(mode=Mode.OFF)
OPENED = draft_pb2.SpeculateResponse(opened=draft_pb2.DraftOpened()).SerializeToString()


async def described(served):
    async with connect(served.address, ChannelOptions()) as channel:
        stub = target_pb2_grpc.TargetServiceStub(channel)
        return await stub.DescribeTarget(target_pb2.DescribeTargetRequest(with_tokenizer=True))


@asynccontextmanager
async def beside(served, speculate, **config):
    """A client of a router over the target and a draft that fits it, and proposes so."""
    identity = (await described(served)).identity
    described_draft = draft_description(identity=identity).SerializeToString()
    replies = draft_replies(DescribeDraft=says(described_draft), Speculate=speculate)
    async with hostile(replies) as address, routed([served], [address], **config) as client:
        await fleet.until(client, lambda info: num_ready(info, "draft") == 1)
        yield client


def proposes(proposal: common_pb2.Proposal):
    message = draft_pb2.SpeculateResponse(proposed=draft_pb2.Proposed(proposal=proposal))
    return says(OPENED, message.SerializeToString())


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_draft_that_refuses_in_any_way_fails_no_request(served, refusal):
    async with beside(served, REFUSALS[refusal]) as client:
        result = await client.generate("hello", max_tokens=8, speculation=EXACT)
    assert len(result.token_ids) == 8
    assert result.stats.speculation.fallbacks


async def silent(context, messages):
    """Open a session, and answer nothing more."""
    yield OPENED
    await asyncio.Event().wait()


HUGE = common_pb2.Proposal(stopped_by="x" * (2 << 20))
MANY = common_pb2.Proposal(tree=common_pb2.TokenTree(tokens=[1] * 100_000, parents=[-1] * 100_000))


@pytest.mark.parametrize(
    ("speculate", "word"),
    [
        (says(OPENED, GARBAGE), "failed"),
        (silent, "timeout"),
        (proposes(HUGE), "full"),
        (proposes(MANY), "invalid"),
    ],
    ids=["garbage", "silence", "2 MiB", "100,000 nodes"],
)
async def test_an_answer_that_is_no_proposal_changes_no_token(served, speculate, word):
    limit = {"draft_round_timeout_s": 0.5} if word == "timeout" else {}
    async with beside(served, speculate, **limit) as client:
        plain = await client.generate("hello", max_tokens=8, speculation=OFF)
        result = await client.generate("hello", max_tokens=8, speculation=EXACT)
    assert result.token_ids == plain.token_ids
    assert result.stats.speculation.fallbacks.keys() == {word}


async def test_a_draft_of_another_protocol_is_not_used_and_both_versions_are_named(served):
    identity = (await described(served)).identity
    identity.protocol_version = 99
    about = draft_description(identity=identity).SerializeToString()
    replies = draft_replies(DescribeDraft=says(about))
    async with hostile(replies) as address, routed([served], [address]) as client:
        info = await fleet.until(client, lambda info: info.replicas[0].state == "unfit")
        assert "version 99 of the protocol, but this router version 1" in info.replicas[0].reason
        await client.generate("hello", max_tokens=5)


def decides(**fields):
    """A target that opens each session, and answers every round with one verdict."""
    opened = target_pb2.VerifyResponse(opened=target_pb2.TargetOpened(kv_credential="key"))
    verdict = target_pb2.VerifyResponse(verdict=target_pb2.Verdict(**fields))
    return says(opened.SerializeToString(), verdict.SerializeToString())


def target_replies(about, verify):
    """Methods of a target that describes itself so, and verifies so."""
    return {
        "Watch": watches,
        "DescribeTarget": says(about.SerializeToString()),
        "GetTargetLoad": says(target_pb2.GetTargetLoadResponse().SerializeToString()),
        "Verify": verify,
    }


async def test_a_target_with_a_tokenizer_that_is_not_its_own_is_not_used(served):
    about = await described(served)
    about.identity.tokenizer_hash = "0" * 64
    replies = target_replies(about, says(GARBAGE))
    async with hostile(replies) as liar, routed([served.address, liar]) as client:
        is_unfit = lambda info: any(at.state == "unfit" for at in info.replicas)  # noqa: E731
        info = await fleet.until(client, is_unfit)
        (unfit,) = (at for at in info.replicas if at.state == "unfit")
        assert unfit.address == liar
        assert "but it says 000000000000" in unfit.reason
        await client.generate("hello", max_tokens=3)


@pytest.mark.parametrize(
    "verify",
    [
        says(GARBAGE),
        REFUSALS["broken details"],
        REFUSALS["huge pushback"],
        decides(),
        decides(tokens=[5], logprobs=[common_pb2.TokenLogprob()] * 600_000),
    ],
    ids=["garbage", "broken details", "huge pushback", "no token", "1.2 MB of empty messages"],
)
async def test_a_target_that_answers_nonsense_is_lost_and_another_one_goes_on(served, verify):
    asked = 0

    async def counted(context, messages):
        nonlocal asked
        asked += 1
        async for answer in verify(context, messages):
            yield answer

    replies = target_replies(await described(served), counted)
    async with hostile(replies) as liar, routed([served.address, liar]) as client:
        await fleet.until(client, lambda info: num_ready(info, "target") == 2)
        results = [await client.generate("hello", max_tokens=8) for _ in range(3)]
    assert asked >= 1
    assert len({result.token_ids for result in results}) == 1

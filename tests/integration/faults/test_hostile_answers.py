"""Drafts and targets that answer requests with bytes of their own: no request fails."""

from contextlib import asynccontextmanager
from math import inf, nan

import pytest

from slipstream.client import Mode, SamplingParams, SpeculationOptions, StopPolicy, Verification
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, SparseDistribution
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.conversion.convert_proposal import proposal_to_pb
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
MCSD = SpeculationOptions(
    mode=Mode.FORCED, stop=StopPolicy.FIXED, max_draft_tokens=1, verification=Verification.MCSD
)
SAMPLED = SamplingParams(temperature=1.0, seed=7)
OPENED = draft_pb2.SpeculateResponse(opened=draft_pb2.DraftOpened()).SerializeToString()


async def described(served):
    async with connect(served.address, ChannelOptions()) as channel:
        stub = target_pb2_grpc.TargetServiceStub(channel)
        return await stub.DescribeTarget(target_pb2.DescribeTargetRequest(with_tokenizer=True))


@asynccontextmanager
async def beside(served, speculate):
    """A client of a router over the target and a draft that fits it, and proposes so."""
    identity = (await described(served)).identity
    described_draft = draft_description(identity=identity).SerializeToString()
    replies = draft_replies(DescribeDraft=says(described_draft), Speculate=speculate)
    async with hostile(replies) as address, routed([served], [address]) as client:
        await fleet.until(client, lambda info: num_ready(info, "draft") == 1)
        yield client


def proposes(proposal: common_pb2.Proposal):
    message = draft_pb2.SpeculateResponse(proposed=draft_pb2.Proposed(proposal=proposal))
    return says(OPENED, message.SerializeToString())


def drawn(*probs: float):
    """A proposal of a token, drawn from a distribution with such probabilities."""
    drawn_from = SparseDistribution(tuple(range(5, 5 + len(probs))), probs)
    proposal = Proposal(TokenTree.chain([5]), distributions=(drawn_from, None))
    return proposes(proposal_to_pb(proposal))


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_draft_that_refuses_in_any_way_fails_no_request(served, refusal):
    async with beside(served, REFUSALS[refusal]) as client:
        result = await client.generate("hello", max_tokens=8, speculation=EXACT)
    assert len(result.token_ids) == 8
    assert result.stats.speculation.fallbacks


HUGE = common_pb2.Proposal(stopped_by="x" * (2 << 20))
MANY = common_pb2.Proposal(tree=common_pb2.TokenTree(tokens=[1] * 100_000, parents=[-1] * 100_000))


@pytest.mark.parametrize(
    ("speculate", "word"),
    [
        (says(GARBAGE), "failed"),
        (says(b""), "failed"),
        (says(OPENED, GARBAGE), "failed"),
        (says(OPENED), "failed"),
        (proposes(HUGE), "full"),
        (proposes(MANY), "invalid"),
    ],
    ids=["garbage", "nothing", "garbage later", "opened twice", "2 MiB", "100,000 nodes"],
)
async def test_an_answer_that_is_no_proposal_fails_no_request(served, speculate, word):
    async with beside(served, speculate) as client:
        result = await client.generate("hello", max_tokens=8, speculation=EXACT)
    assert len(result.token_ids) == 8
    assert result.stats.speculation.fallbacks.keys() == {word}


@pytest.mark.parametrize(
    "probs", [(inf,), (inf, -inf), (1e308, 1e308), (nan, 1.0), (2.0, -1.0), (0.9, 0.9)], ids=str
)
async def test_probabilities_that_are_none_fail_no_request(served, probs):
    async with beside(served, drawn(*probs)) as client:
        result = await client.generate("hello", max_tokens=8, speculation=MCSD, sampling=SAMPLED)
    assert len(result.token_ids) == 8
    assert result.stats.speculation.fallbacks.keys() == {"invalid"}


def decides(**fields):
    """A target that opens each session, and answers every round with one verdict."""
    opened = target_pb2.VerifyResponse(opened=target_pb2.TargetOpened(kv_credential="key"))
    verdict = target_pb2.VerifyResponse(verdict=target_pb2.Verdict(**fields))
    return says(opened.SerializeToString(), verdict.SerializeToString())


@pytest.mark.parametrize(
    "verify",
    [
        says(GARBAGE),
        REFUSALS["broken details"],
        REFUSALS["huge pushback"],
        decides(),
        decides(tokens=[5, 6, 7]),
        decides(tokens=[5], num_accepted=2**32 - 1),
        decides(tokens=[2**32 - 1]),
        decides(tokens=[5], finish_reason=99),
        decides(tokens=[1] * 300_000),
        decides(tokens=[5], logprobs=[common_pb2.TokenLogprob()] * 600_000),
    ],
    ids=[
        *("garbage", "broken details", "huge pushback", "no token", "too many tokens"),
        *("too many accepted", "no token of the vocabulary", "finish reason"),
        *("300,000 tokens", "1.2 MB of empty messages"),
    ],
)
async def test_a_target_that_answers_nonsense_is_lost_and_another_one_goes_on(served, verify):
    asked = 0

    async def counted(context, messages):
        nonlocal asked
        asked += 1
        async for answer in verify(context, messages):
            yield answer

    answer = target_pb2.GetTargetLoadResponse().SerializeToString()
    replies = {
        "Watch": watches,
        "DescribeTarget": says((await described(served)).SerializeToString()),
        "GetTargetLoad": says(answer),
        "Verify": counted,
    }
    async with hostile(replies) as liar, routed([served.address, liar]) as client:
        await fleet.until(client, lambda info: num_ready(info, "target") == 2)
        results = [await client.generate("hello", max_tokens=8) for _ in range(3)]
    assert asked >= 1
    assert len({result.token_ids for result in results}) == 1

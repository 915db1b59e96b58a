"""Replicas that make things up, about the text or about themselves: no token is theirs."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from slipstream.client import Mode, SpeculationOptions, StopPolicy
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.conversion.convert_proposal import proposal_to_pb
from slipstream.rpc.server import Server, ServerOptions
from slipstream.rpc.v1 import common_pb2, draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc
from slipstream_target.servicer import SERVICE as TARGET
from support.services import fleet
from support.services.fleet import draft_worker, glide_of, num_ready, routed

FORCED = SpeculationOptions(mode=Mode.FORCED, stop=StopPolicy.FIXED, max_draft_tokens=3)


class Hostile(draft_pb2_grpc.DraftServiceServicer):
    """A draft that says it is a fine one, and then answers as it likes."""

    def __init__(self, about, proposal):
        self._about = about
        self._proposal = proposal
        self.num_asked = 0

    async def DescribeDraft(self, request, context):
        return self._about

    async def Speculate(self, requests, context):
        async for message in requests:
            if message.HasField("open"):
                yield draft_pb2.SpeculateResponse(opened=draft_pb2.DraftOpened())
                continue
            self.num_asked += 1
            if self._proposal is None:
                await asyncio.Event().wait()
            proposed = draft_pb2.Proposed(proposal=self._proposal)
            yield draft_pb2.SpeculateResponse(proposed=proposed)


@asynccontextmanager
async def hostile_draft(folder, proposal, **identity):
    """A hostile draft's address, and it; `identity` is what it claims beside the truth."""
    loaded = draft_worker(str(glide_of(folder)), folder)
    async with fleet.running(loaded), connect(loaded.address, ChannelOptions()) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        about = await stub.DescribeDraft(draft_pb2.DescribeDraftRequest())
    for name, value in identity.items():
        setattr(about.identity, name, value)
    servicer = Hostile(about, proposal)
    server = Server(
        ServerOptions(),
        {
            "slipstream.rpc.v1.DraftService": lambda at: (
                draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, at)
            )
        },
    )
    port = await server.start()
    yield f"127.0.0.1:{port}", servicer
    await server.stop(0)


@pytest.mark.parametrize(
    "proposal",
    [
        proposal_to_pb(Proposal(TokenTree.chain([4000]))),
        proposal_to_pb(Proposal(TokenTree((5,) * 100, (-1, *range(99))))),
        common_pb2.Proposal(tree=common_pb2.TokenTree(tokens=[1], parents=[5])),
        common_pb2.Proposal(tree=common_pb2.TokenTree(tokens=[1, 2, 3])),
    ],
    ids=["id out of range", "far too deep", "no tree", "no parents"],
)
async def test_a_draft_that_makes_things_up_changes_no_token(served, folder, proposal):
    async with (
        hostile_draft(folder, proposal) as (address, draft),
        routed([served], [address]) as client,
    ):
        await fleet.until(client, lambda info: num_ready(info, "draft") == 1)
        result = await client.generate("hello", max_tokens=20, speculation=FORCED)
        plain = await client.generate(
            "hello", max_tokens=20, speculation=SpeculationOptions(mode=Mode.OFF)
        )
    assert result.token_ids == plain.token_ids
    assert result.stats.speculation.fallbacks.keys() == {"invalid"}
    assert draft.num_asked >= 1


async def test_a_draft_that_never_answers_is_given_up_and_changes_no_token(served, folder):
    async with (
        hostile_draft(folder, None) as (address, draft),
        routed([served], [address], draft_round_timeout_s=0.2) as client,
    ):
        await fleet.until(client, lambda info: num_ready(info, "draft") == 1)
        result = await client.generate("hello", max_tokens=20, speculation=FORCED)
    assert len(result.token_ids) == 20
    assert result.stats.speculation.fallbacks.keys() == {"timeout"}
    assert draft.num_asked >= 1


async def test_a_draft_of_another_protocol_is_not_used_and_both_versions_are_named(served, folder):
    async with (
        hostile_draft(folder, None, protocol_version=99) as (address, draft),
        routed([served], [address]) as client,
    ):
        info = await fleet.until(client, lambda info: info.replicas[0].state == "unfit")
        assert "version 99 of the protocol, but this router version 1" in info.replicas[0].reason
        await client.generate("hello", max_tokens=5)
    assert draft.num_asked == 0


class Liar(target_pb2_grpc.TargetServiceServicer):
    """A target whose tokenizer is not the one that it names."""

    def __init__(self, about):
        self._about = about

    async def DescribeTarget(self, request, context):
        return self._about


async def test_a_target_with_a_tokenizer_that_is_not_its_own_is_not_used(served):
    async with connect(served.address, ChannelOptions()) as channel:
        stub = target_pb2_grpc.TargetServiceStub(channel)
        about = await stub.DescribeTarget(target_pb2.DescribeTargetRequest(with_tokenizer=True))
    about.identity.tokenizer_hash = "0" * 64
    server = Server(
        ServerOptions(),
        {TARGET: lambda at: target_pb2_grpc.add_TargetServiceServicer_to_server(Liar(about), at)},
    )
    liar = f"127.0.0.1:{await server.start()}"
    async with routed([served.address, liar]) as client:
        info = await fleet.until(
            client, lambda info: any(at.state == "unfit" for at in info.replicas)
        )
        unfit = next(at for at in info.replicas if at.state == "unfit")
        assert unfit.address == liar
        assert "but it says 000000000000" in unfit.reason
        await client.generate("hello", max_tokens=3)
    await server.stop(0)

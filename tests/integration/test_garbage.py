"""Random, mutated and broken messages to every RPC: right codes, nobody hurt."""

import asyncio
import os
from contextlib import suppress
from random import Random

import grpc
import grpc.aio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cluster
import garbage
from background import LoopThread
from slipstream.client import Client
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.v1 import (
    common_pb2,
    draft_pb2,
    draft_pb2_grpc,
    generation_pb2,
    target_pb2,
    target_pb2_grpc,
)
from tiny_checkpoint import save_checkpoint

MESSAGES = 1_500
"""To each method; SLIPSTREAM_FUZZ asks for more."""
PER_EXAMPLE = 250
AT_ONCE = 25
DEADLINE_S = 0.1
LOST_STATUS = "Internal error from Core"
LIMIT_S = 30
PACKAGE = "slipstream.rpc.v1"
CODE = grpc.StatusCode
ALLOWED = {
    CODE.OK,
    CODE.INVALID_ARGUMENT,
    CODE.FAILED_PRECONDITION,
    CODE.NOT_FOUND,
    CODE.ALREADY_EXISTS,
    CODE.UNIMPLEMENTED,
    CODE.OUT_OF_RANGE,
    CODE.PERMISSION_DENIED,
    CODE.RESOURCE_EXHAUSTED,
    CODE.ABORTED,
    CODE.DEADLINE_EXCEEDED,  # a message that happened to be fine, and asked for much
}
UNARY = {
    "Generate": generation_pb2.GenerateRequest,
    "GenerateStream": generation_pb2.GenerateStreamRequest,
    "Tokenize": generation_pb2.TokenizeRequest,
    "GetModelInfo": generation_pb2.GetModelInfoRequest,
    "GetServerInfo": generation_pb2.GetServerInfoRequest,
    "DeleteSession": generation_pb2.DeleteSessionRequest,
    "StreamKv": target_pb2.StreamKvRequest,
    "DescribeTarget": target_pb2.DescribeTargetRequest,
    "GetTargetLoad": target_pb2.GetTargetLoadRequest,
    "DescribeDraft": draft_pb2.DescribeDraftRequest,
    "GetDraftLoad": draft_pb2.GetDraftLoadRequest,
}
STREAMS = {"Verify": target_pb2.VerifyRequest, "Speculate": draft_pb2.SpeculateRequest}


class Victim:
    """A whole cluster, the messages it would take, and what it says that it holds."""

    def __init__(self, services, thread):
        self.services, self.thread = services, thread
        self.valid = thread.run(self._valid)

    def service(self, method):
        """The address and the full name of the service that has a method."""
        if method in ("Verify", "StreamKv", "DescribeTarget", "GetTargetLoad"):
            return self.services.target_address, f"/{PACKAGE}.TargetService/{method}"
        if method in ("Speculate", "DescribeDraft", "GetDraftLoad"):
            return self.services.draft_address, f"/{PACKAGE}.DraftService/{method}"
        return self.services.address, f"/{PACKAGE}.GenerationService/{method}"

    async def _valid(self):
        async with connect(self.services.target_address, ChannelOptions()) as channel:
            about = await target_pb2_grpc.TargetServiceStub(channel).DescribeTarget(
                target_pb2.DescribeTargetRequest()
            )
        return {**asked(), **verified(about), **drafted(about)}

    async def held(self):
        """Sessions and bytes of both engines."""
        async with (
            connect(self.services.target_address, ChannelOptions()) as to_target,
            connect(self.services.draft_address, ChannelOptions()) as to_draft,
        ):
            target = await target_pb2_grpc.TargetServiceStub(to_target).GetTargetLoad(
                target_pb2.GetTargetLoadRequest()
            )
            draft = await draft_pb2_grpc.DraftServiceStub(to_draft).GetDraftLoad(
                draft_pb2.GetDraftLoadRequest()
            )
        return [
            (at.num_sessions, at.num_parked, at.kv_bytes, at.num_kv_streams)
            for at in (target.load, draft.load)
        ]

    async def until_empty(self):
        """Wait until the engines hold nothing."""
        async with asyncio.timeout(LIMIT_S):
            while await self.held() != [(0, 0, 0, 0)] * 2:
                await asyncio.sleep(0.02)


def session():
    """A request for an engine."""
    return common_pb2.SessionParams(
        session_id="g", num_prompt_tokens=3, max_tokens=20, num_roots=1, fence=1
    )


def delta():
    """Its prompt."""
    return common_pb2.Delta(start=0, tokens=[5, 6, 7])


def asked():
    """What a router takes."""
    generation = generation_pb2.Generation(prompt=generation_pb2.Prompt(text="hello"))
    generation.stopping.max_new_tokens = 8
    generation.sampling.temperature = 0.7
    generation.speculation.max_nodes = 7
    return {
        "Generate": [generation_pb2.GenerateRequest(generation=generation)],
        "GenerateStream": [generation_pb2.GenerateStreamRequest(generation=generation)],
        "Tokenize": [generation_pb2.TokenizeRequest(prompt=generation.prompt)],
    }


def verified(about):
    """What a target that is described by `about` takes."""
    request = target_pb2.VerifyRequest
    proposal = common_pb2.Proposal(tree=common_pb2.TokenTree(tokens=[9, 10], parents=[-1, 0]))
    return {
        "Verify": [
            request(open=target_pb2.OpenTarget(session=session(), expected=about.identity)),
            request(verify=target_pb2.VerifyProposal(delta=delta())),
            request(verify=target_pb2.VerifyProposal(delta=delta(), proposal=proposal)),
            request(park=draft_pb2.Park(ttl_ms=20)),
        ],
        "StreamKv": [
            target_pb2.StreamKvRequest(
                protocol_version=1,
                session_id="g",
                incarnation=about.identity.incarnation,
                layers=[0, 1],
            )
        ],
    }


def drafted(about):
    """What a draft takes for that target."""
    request = draft_pb2.SpeculateRequest
    plan = draft_pb2.Plan(max_depth=3, max_nodes=7)
    opening = draft_pb2.OpenDraft(
        session=session(), target=about.identity, target_layout=about.layout
    )
    return {
        "Speculate": [
            request(open=opening),
            request(propose=draft_pb2.Propose(delta=delta(), plan=plan)),
            request(park=draft_pb2.Park(ttl_ms=20)),
        ]
    }


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    model = save_checkpoint(tmp_path_factory.mktemp("model"))
    thread = LoopThread()
    # Sessions that happened to be fine are kept for a next turn, but not for long.
    with cluster.running(model, f"vanilla:{model}", park_ttl_s=0.2) as services:
        yield Victim(services, thread)
    thread.close()


def answer(victim):
    """What somebody else's request gives."""
    with Client(victim.services.address) as client:
        return client.generate("the quick brown fox", max_tokens=24).token_ids


@pytest.mark.parametrize("method", [*UNARY, *STREAMS])
def test_garbage_gets_the_right_code_and_hurts_nobody(victim, method):
    expected = answer(victim)
    count = int(os.environ.get("SLIPSTREAM_FUZZ", MESSAGES))

    @settings(
        max_examples=-(-count // PER_EXAMPLE),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(seed=st.integers(0, 2**64))
    def bombarded(seed):
        victim.thread.run(lambda: bombard(victim, method, Random(seed)))

    bombarded()
    victim.thread.run(victim.until_empty)
    assert answer(victim) == expected


async def bombard(victim, method, random):
    address, path = victim.service(method)
    send = in_stream if method in STREAMS else alone
    kind = STREAMS.get(method) or UNARY[method]
    valid = victim.valid.get(method, [])
    async with connect(address, ChannelOptions()) as channel:
        for _ in range(PER_EXAMPLE // AT_ONCE):
            batch = [garbage.message_bytes(kind, valid, random) for _ in range(AT_ONCE)]
            await asyncio.gather(*send(channel, path, batch, valid, random))


def alone(channel, path, batch, valid, random):
    """Each message in a call of its own. A reader takes one answer or a stream of them alike."""

    async def call(data):
        return await outcome(channel.unary_stream(path)(data, timeout=DEADLINE_S))

    return [call(data) for data in batch]


def in_stream(channel, path, batch, valid, random):
    """Streams of a few messages, most of which begin as they should."""

    async def call(messages):
        stream = channel.stream_stream(path)(timeout=DEADLINE_S)
        return await outcome(said(stream, messages))

    for start in range(0, len(batch), 5):
        opening = [valid[0].SerializeToString()] if random.random() < 0.7 else []
        yield call([*opening, *batch[start : start + 5]])


async def said(stream, messages):
    """One message after the other, each once the one before was answered."""
    for message in messages:
        with suppress(asyncio.InvalidStateError):  # the stream has ended, and reading says why
            await stream.write(message)
        if (answer := await stream.read()) is grpc.aio.EOF:
            return
        yield answer
    await stream.done_writing()
    while (answer := await stream.read()) is not grpc.aio.EOF:
        yield answer


async def outcome(call):
    """Read it all; the code must be one that a caller can do something with."""
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        # What grpc.aio's client makes of a write that meets the end of its stream is no answer.
        assert error.code() in ALLOWED or error.details() == LOST_STATUS, error

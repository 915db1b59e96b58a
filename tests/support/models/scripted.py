"""The other ends of streams, for tests of what the ports promise over a wire: scripted engines."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from slipstream.core import errors
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import Plan, Proposal, ReplyTiming, Session, Shape, Verdict
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.conversion.convert_common import message_of, proposal_to_pb
from slipstream.rpc.exchange import CallOptions, Peer
from slipstream.rpc.remote_draft import SPECULATE, RemoteDraft, TargetSide
from slipstream.rpc.remote_target import VERIFY, RemoteTarget
from slipstream.rpc.status import status_of
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2

LIMIT_S = 60
_NAMED = {"model_id": "small", "vocab_size": 100, "incarnation": "one"}
IDENTITY = common_pb2.ModelIdentity(protocol_version=1, **_NAMED)
LAYOUT = common_pb2.KvLayout(num_layers=2, num_kv_heads=1, head_dim=4)
SESSION = Session("s", num_prompt_tokens=3, max_tokens=20, stop_token_ids=frozenset({0}))
PLAN = Plan(max_depth=3, max_nodes=5, shape=Shape.CAPE, threshold=0.5)
FEED = draft_pb2.KvFeed(address="10.0.0.1:7", session_id="s", incarnation="one", credential="key")
TIMING = ReplyTiming(service_s=0.004, queue_s=0.001, engine_s=0.002, kv_wait_s=0.0005)


class RoundOptions(CallOptions):
    """Time limits of rounds alone: what sends no tokens may take long."""

    def limit_s(self, num_tokens):
        return super().limit_s(num_tokens) if num_tokens else LIMIT_S


class Engine:
    """The other end of a stream: answers from a list, and remembers what it was sent.
    An answer is bytes, a message, an exception, a tuple of answers, or None: say nothing, and wait.
    """

    def __init__(self, method, kind):
        self.method, self.kind = method, kind
        self.answers = []
        self.got = []
        self.ended = asyncio.Event()
        self.waits = asyncio.Event()

    async def serve(self, requests, context):
        try:
            async for data in requests:
                message = self.kind.FromString(data)
                self.got.append(message)
                await self._answer(self.answers.pop(0), context)
        finally:
            self.ended.set()

    async def _answer(self, answer, context):
        if isinstance(answer, tuple):  # one after the other
            for each in answer:
                await self._answer(each, context)
            return
        if hasattr(answer, "released"):  # held back
            await answer.released.wait()
            answer = answer.answer
        if answer is None:
            self.waits.set()
            await asyncio.Event().wait()
        if isinstance(answer, errors.SlipstreamError):
            await context.abort_with_status(status_of(answer))
        data = answer if isinstance(answer, bytes) else answer.SerializeToString()
        await context.write(data)

    @property
    def kinds(self):
        return [message.WhichOneof("message") for message in self.got]


@asynccontextmanager
async def reached(engine):
    """The engine behind a server, and a channel to it."""
    server = grpc.aio.server()
    service, name = engine.method.strip("/").split("/")
    handler = grpc.stream_stream_rpc_method_handler(engine.serve)
    methods = grpc.method_handlers_generic_handler(service, {name: handler})
    server.add_generic_rpc_handlers((methods,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    address = f"127.0.0.1:{port}"
    async with connect(address, ChannelOptions()) as channel:
        yield Peer(f"replica {address}", channel)
    await server.stop(0)


@asynccontextmanager
async def dialled(engine, make_remote, *answers, **options):
    """A port to an engine that gives these answers, released in the end."""
    engine.answers += answers
    async with reached(engine) as peer:
        engine.name = peer.name
        remote = make_remote(peer, **options)
        yield remote
        await remote.release("s")


def target_engine():
    engine = Engine(VERIFY, target_pb2.VerifyRequest)
    opened = target_pb2.TargetOpened(kv_credential="key")
    engine.answers = [target_pb2.VerifyResponse(opened=opened)]
    return engine


def draft_engine():
    engine = Engine(SPECULATE, draft_pb2.SpeculateRequest)
    engine.answers = [draft_pb2.SpeculateResponse(opened=draft_pb2.DraftOpened(incarnation="d"))]
    return engine


def verdict(*tokens):
    return target_pb2.VerifyResponse(
        verdict=message_of(target_pb2.Verdict, Verdict(tokens, 0, timing=TIMING))
    )


def proposed(proposal):
    told = {"staleness": 2, "timing": message_of(common_pb2.ReplyTiming, TIMING)}
    message = draft_pb2.Proposed(proposal=proposal_to_pb(proposal), **told)
    return draft_pb2.SpeculateResponse(proposed=message)


def remote_target(peer, **options):
    return RemoteTarget(peer, IDENTITY, RoundOptions(fence=7, **options))


def remote_draft(peer, **options):
    side = TargetSide(IDENTITY, LAYOUT, lambda: FEED)
    return RemoteDraft(peer, side, RoundOptions(fence=7, **options))


async def first_round(remote):
    """One round of whichever port it is."""
    if isinstance(remote, RemoteTarget):
        return await remote.verify(TokenSequence(SESSION, (1, 2, 3)), Proposal())
    return await remote.propose(TokenSequence(SESSION, (1, 2, 3)), PLAN)


BOTH = pytest.mark.parametrize(
    ("make_engine", "make_remote", "answer"),
    [
        (target_engine, remote_target, verdict(9)),
        (draft_engine, remote_draft, proposed(Proposal(TokenTree.chain([4])))),
    ],
    ids=["target", "draft"],
)

"""What the ports promise, kept over a wire: by RemoteTarget and RemoteDraft, whoever is there."""

import asyncio
import socket
from contextlib import asynccontextmanager

import grpc
import pytest

from slipstream.core import errors
from slipstream.core.tree import TokenTree
from slipstream.core.types import Delta, Plan, Proposal, ReplyTiming, Session, Shape, Verdict
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.convert import proposal_to_pb, timing_to_pb, verdict_to_pb
from slipstream.rpc.exchange import Peer, Terms
from slipstream.rpc.remote_draft import SPECULATE, RemoteDraft, TargetSide
from slipstream.rpc.remote_target import VERIFY, RemoteTarget
from slipstream.rpc.status import status_of
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2

LIMIT_S = 10
IDENTITY = common_pb2.ModelIdentity(protocol_version=1, model_id="small", incarnation="one")
LAYOUT = common_pb2.KvLayout(num_layers=2, num_kv_heads=1, head_dim=4)
SESSION = Session("s", num_prompt_tokens=3, max_tokens=20, stop_token_ids=frozenset({0}))
PLAN = Plan(max_depth=3, max_nodes=5, shape=Shape.CAPE, threshold=0.5)
FEED = draft_pb2.KvFeed(address="10.0.0.1:7", session_id="s", incarnation="one", credential="key")
TIMING = ReplyTiming(service_s=0.004, queue_s=0.001, engine_s=0.002, kv_wait_s=0.0005)


class Engine:
    """The other end of a stream: answers from a list, and remembers what it was sent.

    An answer is bytes, a message, an exception, or None: say nothing, and wait.
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
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {name: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    address = f"127.0.0.1:{port}"
    async with connect(address, ChannelOptions()) as channel:
        yield Peer(f"replica {address}", channel)
    await server.stop(0)


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
    return target_pb2.VerifyResponse(verdict=verdict_to_pb(Verdict(tokens, 0), TIMING))


def proposed(proposal, staleness=2):
    return draft_pb2.SpeculateResponse(
        proposed=draft_pb2.Proposed(
            proposal=proposal_to_pb(proposal), staleness=staleness, timing=timing_to_pb(TIMING)
        )
    )


def remote_target(peer, **terms):
    return RemoteTarget(peer, IDENTITY, Terms(fence=7, **terms))


def remote_draft(peer, *, feed=FEED, **terms):
    return RemoteDraft(peer, TargetSide(IDENTITY, LAYOUT, lambda: feed), Terms(fence=7, **terms))


async def first_round(remote):
    """One round of whichever port it is."""
    if isinstance(remote, RemoteTarget):
        return await remote.verify(SESSION, Delta(0, (1, 2, 3)), Proposal())
    return await remote.propose(SESSION, Delta(0, (1, 2, 3)), PLAN)


BOTH = pytest.mark.parametrize(
    ("make_engine", "make_remote", "answer"),
    [
        (target_engine, remote_target, verdict(9)),
        (draft_engine, remote_draft, proposed(Proposal(TokenTree.chain([4])))),
    ],
    ids=["target", "draft"],
)


async def test_the_first_verification_opens_the_session_and_says_whom_it_expects():
    engine = target_engine()
    engine.answers += [verdict(9), verdict(8, 7)]
    async with reached(engine) as peer:
        remote = remote_target(peer)
        assert remote.feed("10.0.0.1:7") is None
        proposal = Proposal(TokenTree.chain([5, 6]))
        assert await remote.verify(SESSION, Delta(0, (1, 2, 3)), Proposal()) == Verdict((9,), 0)
        assert await remote.verify(SESSION, Delta(3, (9,)), proposal) == Verdict((8, 7), 0)
        assert remote.feed("10.0.0.1:7") == FEED
        await remote.release("s")
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)
    assert engine.kinds == ["open", "verify", "verify"]
    assert engine.got[0].open.expected == IDENTITY
    assert engine.got[0].open.session.fence == 7
    assert list(engine.got[2].verify.delta.tokens) == [9]
    assert list(engine.got[2].verify.proposal.tree.tokens) == [5, 6]


async def test_the_first_proposal_opens_the_session_for_this_target_and_names_its_keys():
    engine = draft_engine()
    proposal = Proposal(TokenTree.chain([4, 5]), stopped_by="depth")
    engine.answers += [proposed(proposal), proposed(Proposal(stopped_by="lag"))]
    async with reached(engine) as peer:
        remote = remote_draft(peer)
        first = await remote.propose(SESSION, Delta(0, (1, 2, 3)), PLAN)
        second = await remote.propose(SESSION, Delta(3, (9,)), PLAN)
        await remote.release("s")
    assert (first.tree, first.stopped_by, first.staleness) == (proposal.tree, "depth", 2)
    assert second.stopped_by == "lag"
    assert engine.got[0].open.target == IDENTITY
    assert engine.got[0].open.target_layout == LAYOUT
    assert engine.got[1].propose.plan.feed == FEED
    assert engine.got[1].propose.plan.threshold == 0.5


async def test_a_draft_that_reads_no_keys_is_told_of_none_and_is_never_stale():
    engine = draft_engine()
    engine.answers.append(proposed(Proposal(TokenTree.chain([4])), staleness=3))
    async with reached(engine) as peer:
        remote = remote_draft(peer, feed=None)
        proposal = await remote.propose(SESSION, Delta(0, (1, 2, 3)), PLAN)
        await remote.release("s")
    assert proposal.staleness is None
    assert not engine.got[1].propose.plan.HasField("feed")


@BOTH
async def test_an_answer_says_where_the_time_went_serialisation_included(
    make_engine, make_remote, answer
):
    engine = make_engine()
    engine.answers.append(answer)
    ticks = iter(range(100))
    async with reached(engine) as peer:
        remote = make_remote(peer, clock=lambda: next(ticks))
        timing = (await first_round(remote)).timing
        await remote.release("s")
    spent = 2  # one tick for packing, one for unpacking
    assert timing == ReplyTiming(0.004, 0.001, 0.002, 0.0005, spent)


@BOTH
async def test_a_released_stream_ends_at_once_and_again_is_fine(make_engine, make_remote, answer):
    engine = make_engine()
    engine.answers.append(answer)
    async with reached(engine) as peer:
        remote = make_remote(peer)
        await remote.release("s")
        remote = make_remote(peer)
        await first_round(remote)
        await remote.release("s")
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)
        await remote.release("s")
        with pytest.raises(errors.Unavailable, match="has ended the stream"):
            await first_round(remote)


@BOTH
async def test_a_parked_stream_ends_well(make_engine, make_remote, answer):
    engine = make_engine()
    parked = type(answer)(parked=draft_pb2.Parked())
    engine.answers += [answer, parked]
    async with reached(engine) as peer:
        remote = make_remote(peer)
        await first_round(remote)
        await remote.park(30)
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)
    assert engine.kinds[-1] == "park"
    assert engine.got[-1].park.ttl_ms == 30_000


@BOTH
async def test_what_was_never_opened_needs_no_parking(make_engine, make_remote, answer):
    engine = make_engine()
    async with reached(engine) as peer:
        await make_remote(peer).park(30)
    assert engine.got == []


@BOTH
async def test_taking_a_session_over_and_ending_asks_for_nothing(make_engine, make_remote, answer):
    engine = make_engine()
    async with reached(engine) as peer:
        remote = make_remote(peer)
        await remote.open(SESSION)
        remote.end()
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)
    assert engine.kinds == ["open"]


@BOTH
@pytest.mark.parametrize("when", [0, 1])
@pytest.mark.parametrize(
    "error",
    [
        errors.HandshakeError("this target has model_id x, but the caller expects y"),
        errors.SessionTaken("held with fence 8, not 7"),
        errors.SessionOutOfSync("a gap"),
        errors.CapacityError("64 sessions are running"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_of_the_other_side_is_raised_here(
    make_engine, make_remote, answer, when, error
):
    engine = make_engine()
    engine.answers[when:] = [error]
    async with reached(engine) as peer:
        remote = make_remote(peer)
        with pytest.raises(type(error), match=str(error)):
            await first_round(remote)
        with pytest.raises(errors.Unavailable):
            await first_round(remote)


@BOTH
async def test_a_replica_that_says_nothing_is_given_up_by_name(make_engine, make_remote, answer):
    engine = make_engine()
    engine.answers.append(None)
    async with reached(engine) as peer:
        remote = make_remote(peer, round_s=0.5, token_s=0.1)
        with pytest.raises(errors.DeadlineExceeded, match=f"{peer.name} did not answer.*0.8 s"):
            await first_round(remote)
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)


@BOTH
async def test_the_deadline_of_the_request_ends_the_stream(make_engine, make_remote, answer):
    engine = make_engine()
    engine.answers.append(None)
    async with reached(engine) as peer:
        remote = make_remote(peer, remaining=lambda: 0.5)
        with pytest.raises(errors.DeadlineExceeded):
            await first_round(remote)
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)
        late = make_remote(peer, remaining=lambda: -1.0)
        with pytest.raises(errors.DeadlineExceeded):
            await first_round(late)


@BOTH
async def test_a_cancelled_round_frees_the_other_side(make_engine, make_remote, answer):
    engine = make_engine()
    engine.answers.append(None)
    async with reached(engine) as peer:
        running = asyncio.get_running_loop().create_task(first_round(make_remote(peer)))
        await asyncio.wait_for(engine.waits.wait(), LIMIT_S)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)


@BOTH
async def test_nobody_there_is_unavailable_and_named(make_engine, make_remote, answer):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with connect(address, ChannelOptions()) as channel:
        with pytest.raises(errors.Unavailable, match=f"replica {address} can't be reached"):
            await first_round(make_remote(Peer(f"replica {address}", channel)))


@BOTH
@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff", b"", b"\x1a\x00"], ids=["junk", "empty", "parked"]
)
async def test_an_answer_that_is_none_is_no_answer(make_engine, make_remote, answer, data):
    engine = make_engine()
    engine.answers.append(data)
    async with reached(engine) as peer:
        remote = make_remote(peer)
        with pytest.raises(errors.InternalError, match=peer.name):
            await first_round(remote)
        await remote.release("s")


async def test_a_broken_verdict_is_the_replicas_fault():
    engine = target_engine()
    engine.answers.append(
        target_pb2.VerifyResponse(verdict=target_pb2.Verdict(tokens=[1], finish_reason=77))  # type: ignore[arg-type]
    )
    async with reached(engine) as peer:
        remote = remote_target(peer)
        with pytest.raises(errors.InternalError, match="broken verdict"):
            await first_round(remote)
        await remote.release("s")


async def test_a_tree_that_is_none_is_refused():
    engine = draft_engine()
    tree = common_pb2.TokenTree(tokens=[1, 2], parents=[1, -1])
    broken = draft_pb2.Proposed(proposal=common_pb2.Proposal(tree=tree))
    engine.answers.append(draft_pb2.SpeculateResponse(proposed=broken))
    async with reached(engine) as peer:
        remote = remote_draft(peer)
        with pytest.raises(errors.InvalidRequest, match="tree is broken"):
            await first_round(remote)
        await remote.release("s")

"""What the target service promises beside the port: handshakes, leases, refusals, and rounds that
wait for memory: told so, limited, and never taken for lost ones."""

import asyncio
import itertools

import pytest
from grpc import StatusCode

from slipstream.core import errors
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, Session
from slipstream.rpc.exchange import CallOptions, Peer
from slipstream.rpc.remote_target import RemoteTarget
from slipstream.rpc.status import error_from
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2
from support.models import scripted, tiny
from support.models.scripted import (
    LIMIT_S,
    RoundOptions,
    first_round,
    reached,
    remote_target,
    target_engine,
)
from support.network.streams import refusal
from support.services.served_target import IDENTITY, Served, served_target

PROMPT = tuple(tiny.tokens(20))
SESSION = Session("s", len(PROMPT), 50)


async def last_message(at: Served, *messages: target_pb2.VerifyRequest):
    """The refusal that a stream of these messages ends with."""
    call = at.stub.Verify()
    for message in messages[:-1]:
        await call.write(message)
        await call.read()
    await call.write(messages[-1])
    return await refusal(call.read())


def opening(session_id="s", prompt=20, **expected) -> target_pb2.VerifyRequest:
    identity = common_pb2.ModelIdentity()
    identity.CopyFrom(IDENTITY)
    for name, value in expected.items():
        setattr(identity, name, value)
    params = common_pb2.SessionParams(
        session_id=session_id, num_prompt_tokens=prompt, max_tokens=50, num_roots=1
    )
    return target_pb2.VerifyRequest(open=target_pb2.OpenTarget(session=params, expected=identity))


async def test_a_delta_may_come_behind_the_tokens_of_the_last_verdict_or_repeat_them(served):
    told, repeated = await served.open(SESSION), await served.open(Session("t", len(PROMPT), 50))
    tokens = PROMPT
    for _ in range(4):
        start = 0 if tokens == PROMPT else len(tokens)
        verdict = await told.verify(start, tokens[start:])
        assert verdict.tokens == (await repeated.verify(0, tokens)).tokens
        tokens = (*tokens, *verdict.tokens)
    refused = await refusal(told.verify(len(tokens) + 1, ()))
    assert refused.code() is StatusCode.FAILED_PRECONDITION
    await repeated.end()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("protocol_version", 99),
        ("model_id", "huge"),
        ("tokenizer_hash", "another one"),
        ("vocab_size", 49),
        ("incarnation", "that process"),
    ],
)
async def test_a_caller_that_expects_another_target_gets_both_values(served, name, value):
    status = await last_message(served, opening(**{name: value}))
    assert status.code() is StatusCode.FAILED_PRECONDITION
    assert isinstance(error_from(status), errors.HandshakeError)
    for side in (value, getattr(IDENTITY, name)):
        assert str(side) in status.details()


async def test_a_caller_who_expects_nothing_is_served(served):
    stream = await served.open(SESSION, expected=common_pb2.ModelIdentity())
    assert (await stream.verify(0, PROMPT)).tokens
    await stream.end()


VERIFY = target_pb2.VerifyRequest(verify=target_pb2.VerifyProposal())
PARK = target_pb2.VerifyRequest(park=draft_pb2.Park(ttl_ms=1000))
EMPTY = target_pb2.VerifyRequest()


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ((VERIFY,), "opens a session first, but got verify"),
        ((PARK,), "opens a session first, but got park"),
        ((EMPTY,), "opens a session first, but got an empty message"),
        ((opening(), opening()), "verifies or parks, but got open"),
        ((opening(), EMPTY), "verifies or parks, but got an empty message"),
        ((opening(""),), "no id"),
        ((opening("x" * 300),), "300 characters"),
        ((opening(prompt=0),), "at least 1 token"),
    ],
)
async def test_messages_out_of_order_are_refused_and_leave_nothing(served, messages, sentence):
    status = await last_message(served, *messages)
    assert status.code() is StatusCode.INVALID_ARGUMENT
    assert sentence in status.details()
    await served.until_empty()


async def test_a_stream_that_is_cancelled_frees_its_session_and_no_other(served):
    kept = await served.open(Session("kept", len(PROMPT), 50))
    await kept.verify(0, PROMPT)
    stream = await served.open(SESSION)
    await stream.verify(0, PROMPT)
    stream.call.cancel()
    await served.until(lambda load: load.num_sessions == 1)
    assert (await served.load()).kv_bytes == served.engine.kv_bytes("kept") > 0
    again = await kept.verify(0, PROMPT)
    assert again.num_cached == len(PROMPT) - 1
    await kept.end()


async def test_a_higher_fence_takes_a_session_over_with_all_it_holds(served):
    old = await served.open(SESSION, fence=4)
    await old.verify(0, PROMPT)
    new = await served.open(SESSION, fence=5)
    status = await refusal(old.call.read())
    assert status.code() is StatusCode.ABORTED
    assert isinstance(error_from(status), errors.SessionTaken)
    assert (await new.verify(0, PROMPT)).num_cached == len(PROMPT) - 1
    assert new.credential != old.credential
    await new.end()
    await served.until_empty()


LONG, OTHER = (tuple(tiny.tokens(100, seed)) for seed in (0, 1))
QUEUED = target_pb2.VerifyResponse(queued=target_pb2.Queued())


@pytest.fixture
async def full(model):
    """A target all of whose memory the session `first` holds, and its stream."""
    async with served_target(model, num_pages=1) as served:
        stream = await served.open(long_session("first"))
        await stream.verify(0, LONG)
        yield served, stream


def long_session(name):
    return Session(name, len(LONG), 20)


def remote(served: Served, **terms):
    return RemoteTarget(Peer("target", served.channel), IDENTITY, CallOptions(**terms))


def verifying(target, name, prompt=OTHER):
    asked = target.verify(TokenSequence(long_session(name), prompt), Proposal())
    return asyncio.ensure_future(asked)


async def until_waiting(served, count):
    await served.until(lambda load: load.num_waiting == count)


async def test_who_came_first_gets_memory_first(full):
    served, stream = full
    targets = [remote(served) for _ in range(2)]
    early = verifying(targets[0], "early")
    await until_waiting(served, 1)
    late = verifying(targets[1], "late", LONG)
    await until_waiting(served, 2)
    await stream.end()
    assert (await early).tokens
    assert not late.done()
    targets[0].end()
    assert (await late).tokens
    targets[1].end()


async def test_a_round_that_waits_for_too_long_is_refused_as_busy_and_leaves_the_queue(full):
    served, stream = full
    with pytest.raises(errors.CapacityError, match=r"waited 0\.05 s for memory"):
        await verifying(remote(served, queue_s=0.05), "late")
    await until_waiting(served, 0)
    assert (await stream.verify(100, (1,))).tokens
    await stream.end()


async def test_a_caller_that_takes_no_news_of_the_queue_gets_its_verdict_alone(full):
    served, stream = full
    waiting = await served.open(long_session("old"))
    verdict = asyncio.ensure_future(waiting.verify(0, OTHER))
    await until_waiting(served, 1)
    await stream.end()
    assert (await verdict).tokens
    await waiting.end()


async def test_a_caller_that_leaves_the_queue_frees_its_place(full):
    served, stream = full
    leaver, stayer = remote(served), remote(served)
    gone = verifying(leaver, "gone")
    await until_waiting(served, 1)
    stays = verifying(stayer, "stays")
    await until_waiting(served, 2)
    gone.cancel()
    await until_waiting(served, 1)
    await stream.end()
    assert (await stays).tokens
    stayer.end()


class QueuedOptions(RoundOptions):
    """Those of a round that may take 0.1 s once it has come into the queue."""

    num_limits = itertools.count()

    def limit_s(self, num_tokens):
        return 0.1 if num_tokens and next(self.num_limits) else LIMIT_S


async def test_a_target_that_only_says_that_it_queues_is_lost_after_both_limits():
    engine = target_engine()
    engine.answers += [QUEUED]
    async with reached(engine) as peer:
        target = RemoteTarget(peer, scripted.IDENTITY, QueuedOptions(queue_s=0.2))
        with pytest.raises(errors.DeadlineExceeded, match=r"did not answer within 0\.3 s"):
            await first_round(target)
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)


async def test_news_of_the_queue_twice_are_no_verdict():
    engine = target_engine()
    engine.answers.append(QUEUED)
    answer = engine._answer

    async def twice(message, context):
        for _ in range(2 if message is QUEUED else 1):
            await answer(message, context)

    engine._answer = twice
    async with reached(engine) as peer:
        with pytest.raises(errors.InternalError, match="answered queued, but verdict was due"):
            await first_round(remote_target(peer))

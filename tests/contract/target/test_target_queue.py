"""Rounds that wait for a target's memory: told so, limited, and never taken for lost ones."""

import asyncio
import itertools

import pytest

from slipstream.core import errors
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, Session
from slipstream.rpc.exchange import CallOptions, Peer
from slipstream.rpc.remote_target import RemoteTarget
from slipstream.rpc.v1 import target_pb2
from support.models import scripted, tiny
from support.models.scripted import (
    LIMIT_S,
    RoundOptions,
    first_round,
    reached,
    remote_target,
    target_engine,
)
from support.services.served_target import IDENTITY, Served, served_target

PROMPT, OTHER = (tuple(tiny.tokens(100, seed)) for seed in (0, 1))
QUEUED = target_pb2.VerifyResponse(queued=target_pb2.Queued())


@pytest.fixture
async def full(model):
    """A target all of whose memory the session `first` holds, and its stream."""
    async with served_target(model, num_pages=1) as served:
        stream = await served.open(session("first"))
        await stream.verify(0, PROMPT)
        yield served, stream


def session(name):
    return Session(name, len(PROMPT), 20)


def remote(served: Served, **terms):
    return RemoteTarget(Peer("target", served.channel), IDENTITY, CallOptions(**terms))


def verifying(target, name, prompt=OTHER):
    asked = target.verify(TokenSequence(session(name), prompt), Proposal())
    return asyncio.ensure_future(asked)


async def until_waiting(served, count):
    await served.until(lambda load: load.num_waiting == count)


async def test_who_came_first_gets_memory_first(full):
    served, stream = full
    targets = [remote(served) for _ in range(2)]
    early = verifying(targets[0], "early")
    await until_waiting(served, 1)
    late = verifying(targets[1], "late", PROMPT)
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
    waiting = await served.open(session("old"))
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

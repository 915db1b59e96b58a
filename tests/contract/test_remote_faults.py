"""Remote engines that fail, stay silent or are not there: one typed error, and nothing held."""

import asyncio

import pytest

from slipstream.core import errors
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.exchange import Peer
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2
from support.models import scripted
from support.models.scripted import BOTH, LIMIT_S, dialled, first_round, reached
from support.network.ports import free_port


@BOTH
@pytest.mark.parametrize("when", [0, 1])
@pytest.mark.parametrize(
    "error",
    [
        errors.SessionTaken("held with fence 8, not 7"),
        errors.ModelError("the best score of a position is nan"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_of_the_peer_is_raised_here(make_engine, make_remote, answer, when, error):
    engine = make_engine()
    engine.answers[when:] = [error]
    async with dialled(engine, make_remote) as remote:
        with pytest.raises(type(error), match=str(error)):
            await first_round(remote)
        with pytest.raises(errors.Unavailable):
            await first_round(remote)


@BOTH
async def test_a_replica_that_says_nothing_is_given_up_by_name(make_engine, make_remote, answer):
    engine = make_engine()
    async with dialled(engine, make_remote, None, round_s=0.5, token_s=0.1) as remote:
        with pytest.raises(errors.DeadlineExceeded, match=f"{engine.name} did not answer.*0.8 s"):
            await first_round(remote)
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)


@BOTH
async def test_the_deadline_of_the_request_ends_the_stream(make_engine, make_remote, answer):
    engine = make_engine()
    async with dialled(engine, make_remote, None, remaining=lambda: 1.0) as remote:
        with pytest.raises(errors.DeadlineExceeded):
            await first_round(remote)
        await asyncio.wait_for(engine.ended.wait(), LIMIT_S)
    async with dialled(make_engine(), make_remote, remaining=lambda: -1.0) as late:
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
    address = f"127.0.0.1:{free_port()}"
    async with connect(address, ChannelOptions()) as channel:
        with pytest.raises(errors.Unavailable, match=f"replica {address} can't be reached"):
            await first_round(make_remote(Peer(f"replica {address}", channel)))


@BOTH
@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff", b"", b"\x1a\x00"], ids=["junk", "empty", "parked"]
)
async def test_an_answer_that_is_none_is_no_answer(make_engine, make_remote, answer, data):
    engine = make_engine()
    async with dialled(engine, make_remote, data) as remote:
        with pytest.raises(errors.InternalError, match=engine.name):
            await first_round(remote)


async def test_a_broken_verdict_is_the_replicas_fault():
    engine = scripted.target_engine()
    broken = target_pb2.Verdict(tokens=[1], finish_reason=77)  # type: ignore[arg-type]
    async with dialled(
        engine, scripted.remote_target, target_pb2.VerifyResponse(verdict=broken)
    ) as remote:
        with pytest.raises(errors.InternalError, match="broken verdict"):
            await first_round(remote)


async def test_a_tree_that_is_none_is_refused():
    engine = scripted.draft_engine()
    tree = common_pb2.TokenTree(tokens=[1, 2], parents=[1, -1])
    broken = draft_pb2.Proposed(proposal=common_pb2.Proposal(tree=tree))
    async with dialled(
        engine, scripted.remote_draft, draft_pb2.SpeculateResponse(proposed=broken)
    ) as remote:
        with pytest.raises(errors.InvalidRequest, match="tree is broken"):
            await first_round(remote)

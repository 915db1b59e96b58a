"""Proposals that come late: what is waited for, what is sent meanwhile, what becomes of them."""

import asyncio
from dataclasses import replace

import pytest

from slipstream.core import errors
from slipstream.core.round import LATE
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal
from slipstream.rpc.v1 import draft_pb2
from support.models import scripted
from support.models.scripted import PLAN, SESSION, dialled, draft_engine, proposed, remote_draft
from support.services.background import until

HASTY = replace(PLAN, worth_s=0.01)
FIRST, SECOND = (proposed(Proposal(TokenTree.chain(tokens))) for tokens in ((4, 5, 6), (9,)))
PARKED = draft_pb2.SpeculateResponse(parked=draft_pb2.Parked())


class Held:
    """An answer that comes when it is let go."""

    def __init__(self, answer):
        self.answer = answer
        self.released = asyncio.Event()


@pytest.fixture
async def late():
    """A draft that holds its first answer back, dialled, that answer, and what is proposed for."""
    engine, sequence = draft_engine(), TokenSequence(SESSION, (1, 2, 3))
    held = Held(FIRST)
    async with dialled(engine, remote_draft, held) as remote:
        yield engine, remote, held, sequence


async def arrived(remote):
    """Wait until the late answer has come."""
    await until(remote._late.done)


async def test_a_late_proposal_is_not_waited_for_and_nothing_more_is_sent_until_it_comes(late):
    engine, remote, held, sequence = late
    engine.answers.append(SECOND)
    for token in (4, 7):
        proposal = await remote.propose(sequence, HASTY)
        assert (proposal.fallback, len(proposal.tree)) == (LATE, 0)
        sequence.append((token,))
    await until(lambda: len(engine.got) == 2)
    assert engine.kinds == ["open", "propose"]
    held.released.set()
    await arrived(remote)
    proposal = await remote.propose(sequence, PLAN)  # the late one is dropped
    assert (proposal.fallback, proposal.tree) == (None, TokenTree.chain([9]))
    assert list(engine.got[-1].propose.delta.tokens) == [4, 7]


@pytest.mark.parametrize("answer", [b"\xff\xff", PARKED, errors.SessionTaken("taken over")])
async def test_a_late_answer_that_is_no_proposal_is_the_error_of_the_next_round(late, answer):
    _, remote, held, sequence = late
    held.answer = answer
    assert (await remote.propose(sequence, HASTY)).fallback == LATE
    held.released.set()
    await arrived(remote)
    kind = type(answer) if isinstance(answer, Exception) else errors.InternalError
    with pytest.raises(kind):
        await remote.propose(sequence, HASTY)


async def test_a_stream_whose_proposal_is_late_parks_behind_it(late):
    engine, remote, held, sequence = late
    engine.answers.append(PARKED)
    assert (await remote.propose(sequence, HASTY)).fallback == LATE
    parking = asyncio.ensure_future(remote.park(30))
    held.released.set()
    await parking
    await asyncio.wait_for(engine.ended.wait(), scripted.LIMIT_S)
    assert engine.kinds == ["open", "propose", "park"]


async def test_a_stream_whose_proposal_is_late_ends_with_its_session(late):
    engine, remote, _, sequence = late
    assert (await remote.propose(sequence, HASTY)).fallback == LATE
    await remote.release("s")
    await asyncio.wait_for(engine.ended.wait(), scripted.LIMIT_S)
    await arrived(remote)


async def test_a_draft_that_does_not_answer_at_all_is_lost_once_its_limit_is_over():
    async with dialled(draft_engine(), remote_draft, None, round_s=0.05, token_s=0.0) as remote:
        sequence = TokenSequence(SESSION, (1, 2, 3))
        assert (await remote.propose(sequence, replace(PLAN, worth_s=0.0))).fallback == LATE
        await arrived(remote)
        with pytest.raises(errors.DeadlineExceeded, match=r"did not answer within 0\.05 s"):
            await remote.propose(sequence, HASTY)

"""A proposal is waited for as long as it is worth, and still serves when it comes after that."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from slipstream.core import errors
from slipstream.core.sequence import TokenSequence
from slipstream.core.stop_reasons import LATE, PENDING
from slipstream.core.tree import TokenTree
from slipstream.core.types import NodeStats, Proposal
from support.models.scripted import PLAN, SESSION, dialled, draft_engine, proposed, remote_draft

HASTY = replace(PLAN, worth_s=0.01)
LINE = TokenTree.chain([4, 5, 6])


class Held:
    """An answer that comes when it is let go."""

    def __init__(self, answer):
        self.answer = answer
        self.released = asyncio.Event()


def line(tokens=(4, 5, 6)):
    tree = TokenTree.chain(tokens)
    stats = (NodeStats(0.5, 0.5, 1.0),) * len(tree)
    return proposed(Proposal(tree, stats, stopped_by="depth"))


async def arrived(remote, count=1):
    async with asyncio.timeout(10):
        while remote._exchange._answers.qsize() < count:
            await asyncio.sleep(0.001)


@pytest.fixture
async def late():
    """A draft that holds its first answer back, dialled, and that answer."""
    engine = draft_engine()
    held = Held(line())
    async with dialled(engine, remote_draft, held, line((9,))) as remote:
        yield engine, remote, held


async def test_a_late_proposal_is_not_waited_for_and_nothing_more_is_sent_until_it_comes(late):
    engine, remote, held = late
    sequence = TokenSequence(SESSION, (1, 2, 3))
    for token in (4, 7):
        proposal = await remote.propose(sequence, HASTY)
        assert (proposal.fallback, len(proposal.tree)) == (LATE, 0)
        sequence.append((token,))
    assert engine.kinds == ["open", "propose"]
    held.released.set()
    await arrived(remote)
    proposal = await remote.propose(sequence, PLAN)  # 4, 7 is not what was drafted
    assert (proposal.fallback, proposal.tree) == (None, TokenTree.chain([9]))
    assert list(engine.got[-1].propose.delta.tokens) == [4, 7]


async def test_a_late_proposal_serves_as_far_as_it_fits_what_came_meanwhile(late):
    engine, remote, held = late
    sequence = TokenSequence(SESSION, (1, 2, 3))
    assert (await remote.propose(sequence, HASTY)).fallback == LATE
    sequence.append((4,))
    held.released.set()
    await arrived(remote)
    proposal = await remote.propose(sequence, HASTY)
    assert (proposal.fallback, proposal.tree) == (None, TokenTree.chain([5, 6]))
    assert engine.kinds[-1] == "propose"  # the next one is under way


async def test_a_draft_is_not_waited_for_where_its_last_answer_took_longer_than_that_is_worth():
    engine = draft_engine()
    answers = line(), line((9, 8)), line((6,))
    seconds = itertools.count()  # each reading of the clock is a second later
    options = {"clock": lambda: float(next(seconds)), "round_s": 1e6, "token_s": 0.0}
    async with dialled(engine, remote_draft, *answers, **options) as remote:
        sequence = TokenSequence(SESSION, (1, 2, 3))
        assert (await remote.propose(sequence, PLAN)).tree == LINE
        sequence.append((7,))
        hasty = replace(PLAN, worth_s=0.5)
        assert (await remote.propose(sequence, hasty)).fallback == LATE
        await arrived(remote)
        sequence.append((9,))
        assert (await remote.propose(sequence, hasty)).tree == TokenTree.chain([8])


async def test_with_overlap_such_a_round_is_one_whose_proposal_is_pending():
    engine = draft_engine()
    async with dialled(engine, remote_draft, None) as remote:
        sequence = TokenSequence(SESSION, (1, 2, 3))
        overlapping = replace(HASTY, ahead=8)
        proposals = [await remote.propose(sequence, overlapping) for _ in range(2)]
        assert [at.fallback for at in proposals] == [PENDING] * 2


async def test_a_draft_that_does_not_answer_at_all_is_lost_once_its_limit_is_over():
    engine = draft_engine()
    ticks = [0.0]
    options = {"clock": lambda: ticks[0], "round_s": 5.0, "token_s": 0.0}
    async with dialled(engine, remote_draft, None, **options) as remote:
        sequence = TokenSequence(SESSION, (1, 2, 3))
        for seconds in (0.0, 1.0, 4.9):
            ticks[0] = seconds
            assert (await remote.propose(sequence, HASTY)).fallback == LATE
        ticks[0] = 5.1
        with pytest.raises(errors.DeadlineExceeded, match="did not answer within 5 s"):
            await remote.propose(sequence, HASTY)

"""Proposals that come late, and those of a draft that goes on while its proposal is verified: what
is used of them, what is waited for, and what is refused."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from slipstream.core import errors
from slipstream.core.sequence import TokenSequence
from slipstream.core.stop_reasons import AHEAD, LATE, PENDING
from slipstream.core.tree import TokenTree
from slipstream.core.types import NodeStats, Proposal
from slipstream.rpc.v1 import draft_pb2
from support.models import scripted
from support.models.scripted import (
    PLAN,
    SESSION,
    ahead,
    dialled,
    draft_engine,
    proposed,
    remote_draft,
)
from support.services.background import until

OVERLAP = replace(PLAN, ahead=16)
FIRST = proposed(Proposal(TokenTree.chain([4]), stopped_by="depth"))
LINE = TokenTree.chain([4, 5, 6, 7])


async def rounds(answers, news, unread):
    """The proposals to a sequence that gets these news in turn, with what the draft was sent.

    `unread` answers have come behind each of them.
    """
    engine = draft_engine()
    engine.answers += answers
    found = []
    async with dialled(engine, remote_draft) as remote:
        sequence = TokenSequence(SESSION, (1, 2, 3))
        for tokens, count in zip(news, unread, strict=True):
            sequence.append(tokens)
            found.append(await remote.propose(sequence, OVERLAP))
            await arrived(remote, count)
        await received(engine, 1 + len(news))
    return found, engine.got


async def received(engine, count):
    """Wait until a draft has got so many messages."""
    await until(lambda: len(engine.got) >= count)


async def arrived(remote, count=1):
    """Wait until so many answers have come that are not used yet."""
    await until(lambda: remote._exchange._answers.qsize() >= count)


async def test_what_a_tree_has_below_the_verdict_is_the_next_proposal_without_a_wait():
    nothing = None  # the draft never answers the second request
    found, got = await rounds([(FIRST, ahead(LINE)), nothing], [(), (4, 5)], [1, 0])
    assert found[0].tree == TokenTree.chain([4])
    assert (found[1].tree, found[1].stopped_by) == (TokenTree.chain([6, 7]), AHEAD)
    news = got[2].propose.delta  # it is told all the same, so that it goes on from there
    assert (news.start, list(news.tokens)) == (3, [4, 5])


async def test_another_outcome_is_proposed_for_as_ever():
    second = proposed(Proposal(TokenTree.chain([8])))
    found, _ = await rounds([(FIRST, ahead(LINE)), second], [(), (4, 9)], [1, 0])
    assert found[1].tree == TokenTree.chain([8])


async def test_a_tree_that_comes_while_its_outcome_is_waited_for_is_used():
    late = (proposed(Proposal(TokenTree.chain([8]))), ahead(TokenTree.chain([5, 6, 7])))
    found, _ = await rounds([(FIRST, ahead(LINE)), late, None], [(), (4,), (5, 6)], [1, 2, 0])
    assert found[1].tree == TokenTree.chain([5, 6, 7])
    assert found[2].tree == TokenTree.chain([7])


@pytest.mark.parametrize(
    "push",
    [
        *(ahead(TokenTree.chain(range(17))), ahead(LINE), FIRST, b"\xff\xff"),
        draft_pb2.SpeculateResponse(parked=draft_pb2.Parked()),
    ],
    ids=["more nodes", "a fourth tree", "a proposal", "no message", "another answer"],
)
async def test_what_was_not_allowed_for_is_refused(push):
    extra = (*(ahead(LINE),) * 3, push) if push != FIRST else (push,)
    with pytest.raises(errors.InternalError):
        await rounds([(FIRST, *extra), FIRST], [(), (4,)], [len(extra), 0])


async def test_a_stream_with_unread_trees_parks_well():
    engine = draft_engine()
    parked = draft_pb2.SpeculateResponse(parked=draft_pb2.Parked())
    async with dialled(engine, remote_draft, (FIRST, ahead(LINE)), parked) as remote:
        await remote.propose(TokenSequence(SESSION, (1, 2, 3)), OVERLAP)
        await remote.park(30)
        await asyncio.wait_for(engine.ended.wait(), scripted.LIMIT_S)
    assert engine.kinds[-1] == "park"


async def test_a_draft_that_never_stops_talking_is_read_no_further_than_a_few_answers():
    engine = draft_engine()
    async with dialled(engine, remote_draft, (FIRST, *(ahead(LINE),) * 3000)) as remote:
        sequence = TokenSequence(SESSION, (1, 2, 3))
        await remote.propose(sequence, OVERLAP)
        await arrived(remote, 8)  # more are not read
        with pytest.raises(errors.InternalError, match="went on with 4 nodes, but up to 0"):
            await remote.propose(sequence, OVERLAP)


async def test_a_draft_that_is_lost_after_a_hit_is_missed_by_the_next_proposal_that_needs_it():
    lost = errors.Unavailable("gone")
    with pytest.raises(errors.Unavailable):
        await rounds([(FIRST, ahead(LINE)), lost], [(), (4, 5), (9,)], [1, 1, 0])


HASTY = replace(PLAN, worth_s=0.01)


class Held:
    """An answer that comes when it is let go."""

    def __init__(self, answer):
        self.answer = answer
        self.released = asyncio.Event()


def line(tokens=(4, 5, 6)):
    tree = TokenTree.chain(tokens)
    stats = (NodeStats(0.5, 0.5, 1.0),) * len(tree)
    return proposed(Proposal(tree, stats, stopped_by="depth"))


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
    await received(engine, 2)
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
    await received(engine, 3)  # the next one is under way
    assert engine.kinds[-1] == "propose"


async def test_a_draft_is_not_waited_for_where_its_last_answer_took_longer_than_that_is_worth():
    engine = draft_engine()
    answers = line(), line((9, 8)), line((6,))
    seconds = itertools.count()  # each reading of the clock is a second later
    options = {"clock": lambda: float(next(seconds)), "round_s": 1e6, "token_s": 0.0}
    async with dialled(engine, remote_draft, *answers, **options) as remote:
        sequence = TokenSequence(SESSION, (1, 2, 3))
        assert (await remote.propose(sequence, PLAN)).tree == TokenTree.chain([4, 5, 6])
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

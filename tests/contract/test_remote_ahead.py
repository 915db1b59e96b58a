"""A draft that goes on while its proposal is verified: what is used of it, and what is refused."""

import asyncio
from dataclasses import replace

import pytest

from slipstream.core import errors
from slipstream.core.sequence import TokenSequence
from slipstream.core.stop_reasons import AHEAD
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal
from slipstream.rpc.v1 import draft_pb2
from support.models import scripted
from support.models.scripted import PLAN, SESSION, ahead, dialled, proposed, remote_draft

OVERLAP = replace(PLAN, ahead=16)
FIRST = proposed(Proposal(TokenTree.chain([4]), stopped_by="depth"))
LINE = TokenTree.chain([4, 5, 6, 7])


async def rounds(answers, news, *, plan=OVERLAP):
    """The proposals to a sequence that gets these news in turn, with what the draft was sent.

    What the draft says unasked has come before each of them.
    """
    engine = scripted.draft_engine()
    engine.answers += answers
    found = []
    async with dialled(engine, remote_draft) as remote:
        sequence = TokenSequence(SESSION, (1, 2, 3))
        for tokens in news:
            sequence.append(tokens)
            found.append(await remote.propose(sequence, plan))
            await arrival(remote)
    return found, engine.got


async def arrival(remote):
    """Let everything come that is under way."""
    for _ in range(20):
        await asyncio.sleep(0.005)
    assert remote


async def test_what_a_tree_has_below_the_verdict_is_the_next_proposal_without_a_wait():
    nothing = None  # the draft never answers the second request
    found, got = await rounds([(FIRST, ahead(LINE)), nothing], [(), (4, 5)])
    assert found[0].tree == TokenTree.chain([4])
    assert (found[1].tree, found[1].stopped_by) == (TokenTree.chain([6, 7]), AHEAD)
    news = got[2].propose.delta  # it is told all the same, so that it goes on from there
    assert (news.start, list(news.tokens)) == (3, [4, 5])


async def test_another_outcome_is_proposed_for_as_ever():
    second = proposed(Proposal(TokenTree.chain([8])))
    found, _ = await rounds([(FIRST, ahead(LINE)), second], [(), (4, 9)])
    assert found[1].tree == TokenTree.chain([8])


async def test_a_tree_that_comes_while_its_outcome_is_waited_for_is_used():
    late = (proposed(Proposal(TokenTree.chain([8]))), ahead(TokenTree.chain([5, 6, 7])))
    found, _ = await rounds([(FIRST, ahead(LINE)), late, None], [(), (4,), (5, 6)])
    assert found[1].tree == TokenTree.chain([5, 6, 7])
    assert found[2].tree == TokenTree.chain([7])


async def test_a_draft_is_only_asked_to_go_on_where_the_plan_says_so():
    found, got = await rounds([FIRST, FIRST], [(), (4,)], plan=PLAN)
    assert [message.propose.plan.ahead for message in got[1:]] == [0, 0]
    assert all(at.stopped_by == "depth" for at in found)


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
        await rounds([(FIRST, *extra), FIRST], [(), (4,)])


async def test_a_stream_with_unread_trees_parks_well():
    engine = scripted.draft_engine()
    parked = draft_pb2.SpeculateResponse(parked=draft_pb2.Parked())
    async with dialled(engine, remote_draft, (FIRST, ahead(LINE)), parked) as remote:
        await remote.propose(TokenSequence(SESSION, (1, 2, 3)), OVERLAP)
        await remote.park(30)
        await asyncio.wait_for(engine.ended.wait(), scripted.LIMIT_S)
    assert engine.kinds[-1] == "park"


async def test_a_draft_that_never_stops_talking_is_read_no_further_than_a_few_answers():
    engine = scripted.draft_engine()
    async with dialled(engine, remote_draft, (FIRST, *(ahead(LINE),) * 3000)) as remote:
        sequence = TokenSequence(SESSION, (1, 2, 3))
        await remote.propose(sequence, OVERLAP)
        await arrival(remote)
        with pytest.raises(errors.InternalError, match="went on with 4 nodes, but up to 0"):
            await remote.propose(sequence, OVERLAP)


async def test_a_draft_that_is_lost_after_a_hit_is_missed_by_the_next_proposal_that_needs_it():
    lost = errors.Unavailable("gone")
    with pytest.raises(errors.Unavailable):
        await rounds([(FIRST, ahead(LINE)), lost], [(), (4, 5), (9,)])

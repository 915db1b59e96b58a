"""Laws of granted rounds at the router: which it grants, how many, and when it asks itself."""

from collections import deque

import pytest

from slipstream.core.grammar import Grammar, GrammarKind
from slipstream.core.round import LATE, NO_PLAN
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import Copying, TokenTree
from slipstream.core.types import Plan, Proposal, Session, Verdict, Verification
from slipstream_router.replicas.request_replicas import GrantingPorts

PLAN = Plan(max_depth=4, max_nodes=8, worth_s=1.0)
COPIES = Plan(max_depth=4, max_nodes=8, lookup=Copying(2, 4, alone=0.0))
DRAFTED = Proposal(TokenTree.chain([1, 2]), staleness=0)
WINDOW = 3


class Side:
    """A target that may be granted rounds, and a draft that answers as it is told."""

    window = WINDOW

    def __init__(self, *proposals):
        self.num_due = self.num_failed = 0
        self.granted, self.proposals = [], deque(proposals)
        self.num_asked, self._next, self.is_lost = 0, 0, False

    async def grant(self, plan, num_rounds):
        self.granted.append((plan, num_rounds))
        if self.num_due:
            self.num_due += num_rounds
        else:
            self._next = num_rounds

    async def verify(self, sequence, proposal):
        if self.num_due and self.is_lost:
            self.fall_back()
            return Verdict((9,), 0, proposal=Proposal(fallback="unavailable"))
        if self.num_due:
            self.num_due -= 1
            return Verdict((9,), 0, proposal=Proposal())
        self.num_due, self._next = self._next, 0
        return Verdict((9,), 0)

    async def propose(self, sequence, plan):
        self.num_asked += 1
        return self.proposals.popleft() if self.proposals else DRAFTED

    async def release(self, session_id):
        pass

    def fall_back(self):
        self.num_due, self.num_failed = 0, self.num_failed + 1


async def play(side, *plans, session=None):
    """Rounds under these plans; whether each was granted."""
    sequence = TokenSequence(session or Session("s", 1, 500), (1,))
    ports = GrantingPorts(side, None, side, lambda: side)
    found = []
    for plan in plans:
        proposal = Proposal()
        if plan.max_depth:
            proposal = await ports.propose(sequence, plan)
        verdict = await ports.verify(sequence, proposal)
        sequence.append(verdict.tokens)
        found.append(verdict.proposal is not None)
    return found


async def test_a_run_of_drafted_rounds_is_asked_for_once_and_as_many_are_under_way_as_fit():
    side = Side()
    found = await play(side, *[PLAN] * 20)
    assert found == [False] + [True] * 19
    assert (side.num_asked, side.num_due) == (1, WINDOW - 1)
    assert sum(count for _, count in side.granted) == 19 + WINDOW - 1
    assert all(plan is PLAN for plan, _ in side.granted)


async def test_every_so_often_the_router_asks_the_draft_itself():
    side = Side()
    found = await play(side, *[PLAN] * 200)
    longest = max(len(run) for run in "".join("g" if each else " " for each in found).split())
    assert longest == GrantingPorts.LONGEST_RUN + WINDOW
    assert side.num_asked == found.count(False)


async def test_plain_rounds_are_granted_the_more_the_longer_they_go_on():
    side = Side()
    found = await play(side, *[NO_PLAN] * 12)
    assert found == [False, False] + [True] * 10
    assert [count for _, count in side.granted[:3]] == [2, 1, 1]
    assert side.num_due == WINDOW - 1


async def test_drafting_begins_when_what_was_granted_is_over_and_so_does_plain_decoding():
    side = Side()
    found = await play(side, *[NO_PLAN] * 4, *[PLAN] * 6, *[NO_PLAN] * 6)
    drafted = found[4:10]
    assert drafted[: WINDOW - 1] == [True] * (WINDOW - 1)  # plain ones that were under way
    assert side.num_asked == 1
    assert not all(found[10:])


async def test_copies_are_looked_up_by_the_router_and_a_round_without_any_is_plain():
    side = Side()
    found = await play(side, *[COPIES] * 12)
    assert (side.num_asked, {plan for plan, _ in side.granted}) == (0, {NO_PLAN})
    assert 3 <= found.count(False) < 12  # it looks again and again


async def test_a_round_that_asks_a_draft_which_was_left_meanwhile_is_a_plain_one():
    side, sequence = Side(), TokenSequence(Session("s", 1, 500), (1,))
    ports = GrantingPorts(side, None, side, lambda: side)
    for _ in range(4):
        await ports.verify(sequence, await ports.propose(sequence, PLAN))
    side.is_lost = True
    await ports.release("s")
    verdict = await ports.verify(sequence, Proposal())
    assert (verdict.proposal.fallback, side.num_due) == (None, 0)
    side.is_lost = False
    for _ in range(2):
        verdict = await ports.verify(sequence, await ports.propose(sequence, PLAN))
    assert verdict.proposal is not None  # it is granted at once


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal(fallback=LATE),
        Proposal(TokenTree.chain([1])),  # of a draft that reads no keys
        Proposal(staleness=0, fallback="no keys"),
    ],
)
async def test_a_draft_that_the_target_can_t_ask_is_asked_by_the_router(proposal):
    side = Side(*[proposal] * 5)
    assert await play(side, *[PLAN] * 5) == [False] * 5
    assert side.num_asked == 5


@pytest.mark.parametrize(
    "more",
    [
        {"verification": Verification.MCSD},
        {"verification": Verification.TARGET_INIT},
        {"grammar": Grammar(GrammarKind.REGEX, "a+")},
    ],
)
async def test_what_the_router_has_to_see_before_the_next_round_is_never_granted(more):
    for plan in (PLAN, NO_PLAN):
        side = Side()
        assert await play(side, *[plan] * 6, session=Session("s", 1, 500, **more)) == [False] * 6


async def test_the_more_granted_rounds_fell_back_the_later_the_next_ones_are_granted():
    side = Side()
    sequence = TokenSequence(Session("s", 1, 5000), (1,))
    ports = GrantingPorts(side, None, side, lambda: side)
    waits = []
    for _ in range(4):
        before = side.num_asked
        while not side.num_due:
            await ports.verify(sequence, await ports.propose(sequence, PLAN))
        waits.append(side.num_asked - before)
        side.fall_back()
    assert waits == [1, 2, 4, 8]

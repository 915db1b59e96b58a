"""Prompt lookup beside a draft: copies are added, sure ones spare the draft, nothing is lost."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.draft.ngram_draft import GRAMMAR, LOOKUP, LookupDraft, with_forced
from slipstream.core.round import LATE, TOO_DEAR, Round
from slipstream.core.sequence import Delta
from slipstream.core.tree import Copying, CopySource, TokenTree
from slipstream.core.types import NodeStats, Plan, Proposal, Session, Verdict
from support.models.deltas import ByDeltas
from support.models.toy import trees

BESIDE = Plan(8, 15, lookup=Copying(1, 4))
ALONE = Plan(8, 15, lookup=Copying(1, 4, alone=0.3))
NEVER = Plan(8, 15, lookup=Copying(1, 4, alone=0.0))
AGAIN = Delta(0, (1, 2, 3, 1, 2))
UNSURE = NodeStats(0.5, 0.5, 1)
GUESS = Proposal(TokenTree.chain([70, 71]), stats=(UNSURE, UNSURE), stopped_by="policy")


class Guesser:
    """A draft that makes one guess always, and remembers what it was told and asked."""

    def __init__(self, proposal=GUESS):
        self.proposal = proposal
        self.texts = []
        self.plans = []
        self.released = []

    async def propose(self, sequence, plan):
        self.texts.append([*sequence.tokens])
        self.plans.append(plan)
        if isinstance(self.proposal, Exception):
            raise self.proposal
        return self.proposal

    async def release(self, session_id):
        self.released.append(session_id)


def guessing():
    guesser = Guesser()
    return guesser, ByDeltas(LookupDraft(guesser))


def session_of():
    return Session("s", 1, 1000)


async def test_a_copy_stands_beside_what_the_draft_proposes():
    proposal = await ByDeltas(LookupDraft(Guesser())).propose(session_of(), AGAIN, BESIDE)
    assert proposal.tree == TokenTree((70, 71, 3, 1, 2, 3), (-1, 0, -1, 2, 3, 4))
    assert (len(proposal.sources), proposal.stopped_by) == (4, "policy")
    assert proposal.drafted == GUESS.tree


async def test_without_the_draft_s_answer_a_round_has_copies_only_where_each_has_a_price():
    waiting = Proposal(fallback=LATE)
    free = await ByDeltas(LookupDraft(Guesser(waiting))).propose(session_of(), AGAIN, BESIDE)
    assert free == waiting
    priced = replace(BESIDE, row_prices=(0.01,) * 15)
    copied = await ByDeltas(LookupDraft(Guesser(waiting))).propose(session_of(), AGAIN, priced)
    assert (copied.fallback, copied.tree) == (LATE, TokenTree.chain([3, 1, 2, 3]))


async def test_a_sure_copy_spares_the_draft():
    guesser = Guesser()
    proposal = await ByDeltas(LookupDraft(guesser)).propose(session_of(), AGAIN, ALONE)
    assert proposal.tree == TokenTree.chain([3, 1, 2, 3])
    assert (len(proposal.sources), proposal.stopped_by, guesser.texts) == (4, LOOKUP, [])


async def test_a_draft_that_was_spared_gets_what_it_missed():
    guesser, draft = guessing()
    await draft.propose(session_of(), Delta(0, (1, 2, 3)), ALONE)
    for start in range(3, 30):
        await draft.propose(session_of(), Delta(start, (1 + start % 3,)), ALONE)
    assert len(guesser.texts) == 1
    await draft.propose(session_of(), Delta(30, (99,)), ALONE)
    assert guesser.texts[-1] == [1 + at % 3 for at in range(30)] + [99]


@pytest.mark.parametrize("plan", [BESIDE, Plan(8, 15)])
async def test_no_draft_sees_what_a_plan_says_of_lookup(plan):
    guesser, draft = guessing()
    proposal = await draft.propose(session_of(), Delta(0, (1, 2, 1)), plan)
    assert guesser.plans == [Plan(8, 15)]
    assert (proposal is GUESS) == (plan.lookup is None)


async def test_copies_that_keep_failing_give_the_draft_its_turn_back():
    guesser, draft = guessing()
    tokens = [7, 7, 7]
    await draft.propose(session_of(), Delta(0, tuple(tokens)), ALONE)
    assert guesser.texts == []
    for fresh in range(100, 140):  # 7 7 never goes on as it did before
        news = (fresh, 7, 7)
        await draft.propose(session_of(), Delta(len(tokens), news), ALONE)
        tokens += news
    assert len(guesser.texts) > 20
    assert guesser.texts[-1] == tokens


@pytest.mark.parametrize("plan", [BESIDE, ALONE])
async def test_repeating_a_call_changes_nothing(plan):
    guesser, draft = guessing()
    await draft.propose(session_of(), Delta(0, (1, 2, 3)), plan)
    first = await draft.propose(session_of(), Delta(3, (1, 9)), plan)
    for _ in range(20):
        assert await draft.propose(session_of(), Delta(3, (1, 9)), plan) == first
    assert guesser.texts[-1] == [1, 2, 3, 1, 9]
    after = await draft.propose(session_of(), Delta(5, (1,)), plan)
    fresh = ByDeltas(LookupDraft(Guesser()))
    for delta in (Delta(0, (1, 2, 3)), Delta(3, (1, 9))):
        await fresh.propose(session_of(), delta, plan)
    assert await fresh.propose(session_of(), Delta(5, (1,)), plan) == after


@settings(deadline=None)
@given(trees((0, 8), 4), st.lists(st.integers(0, 3), max_size=8).map(tuple))
def test_a_forced_path_shares_what_the_draft_has_and_comes_last(tree, forced):
    whole = with_forced(Proposal(tree), forced)
    assert whole.drafted == tree
    assert len(set(zip(whole.tree.tokens, whole.tree.parents, strict=True))) == len(whole.tree)
    assert len(whole.tree.matching(forced)) == len(forced)
    assert whole.stopped_by == (GRAMMAR if forced and not len(tree) else "none")
    verdict = Verdict((*forced, 9), len(forced))
    kept = Round(1, 0.0, proposal=whole, verdict=verdict).accepted_sources
    assert len(kept) == len(forced) - len(tree.matching(forced))


class Store:
    """An n-gram store that knows what follows 70 and 71."""

    def after(self, latest):
        return {70: [(71, 0.5), (72, 0.4)], 71: [(73, 0.9)]}.get(latest[0], [])


async def test_what_a_store_knows_is_proposed_where_the_draft_is_not_asked_or_proposes_nothing():
    guesser = Guesser()
    draft = ByDeltas(LookupDraft(guesser, Store()))
    asked = await draft.propose(session_of(), Delta(0, (1, 71)), ALONE)
    assert (len(guesser.texts), asked.drafted) == (1, GUESS.tree)
    assert CopySource.STORE not in asked.sources
    alone = await draft.propose(session_of(), Delta(2, (70,)), NEVER)
    assert (len(guesser.texts), CopySource.STORE in alone.sources) == (1, True)
    assert {71, 72} <= {*alone.tree.tokens}
    guesser.proposal = Proposal(stopped_by=TOO_DEAR)
    empty = await draft.propose(session_of(), Delta(2, (70,)), ALONE)
    assert (len(guesser.texts), empty.tree) == (2, alone.tree)

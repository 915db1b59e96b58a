"""Rules of what a draft may propose: nothing else reaches the target, and the round is plain."""

import math

import pytest

from slipstream.core.tree import TokenTree
from slipstream.core.types import (
    NodeStats,
    Plan,
    Proposal,
    Session,
    Shape,
    Verification,
)
from support.services.failover_drafts import Guesser, World

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal(TokenTree.chain([50])),
        Proposal(TokenTree((1, 1), (-1, -1))),
        Proposal(TokenTree.chain([1, 2, 3, 4, 5])),
        Proposal(TokenTree(tuple(range(1, 8)), (-1,) * 7)),
        Proposal(TokenTree.chain([1]), stopped_by="whim 4711"),
    ],
    ids=["id out of range", "equal siblings", "too deep", "too many nodes", "made-up reason"],
)
async def test_a_proposal_that_was_not_asked_for_never_reaches_the_target(proposal):
    world = World(Guesser("a", proposal))
    assert await world.round(0, 1, 2, 3) == Proposal(fallback="invalid")


@pytest.mark.parametrize("number", [INF, -INF, NAN])
async def test_statistics_that_are_no_numbers_never_reach_the_target(number):
    stats = (NodeStats(0.5, number, 1.0),)
    world = World(Guesser("a", Proposal(TokenTree.chain([1]), stats)))
    assert (await world.round(0, 1, 2, 3)).fallback == "invalid"


async def test_roots_that_are_not_the_targets_are_refused():
    session = Session("s", 3, 20, verification=Verification.TARGET_INIT, num_roots=2)
    plan = Plan(max_depth=3, max_nodes=6, shape=Shape.FORK, roots=(7, 9))
    world = World(Guesser("a", Proposal(TokenTree((7, 8), (-1, -1)))))
    proposal = await world.round(0, 1, 2, 3, plan=plan, session=session)
    assert proposal == Proposal(TokenTree((7, 9), (-1, -1)), fallback="invalid")

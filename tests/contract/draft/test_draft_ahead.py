"""A draft that goes on with its tree while that is verified changes no proposal and no token."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from slipstream.core.draft.ahead import MAX_TREES
from slipstream.core.policy.options import READING
from slipstream.core.sequence import TokenSequence
from slipstream.core.stop_reasons import AHEAD
from slipstream.core.types import Plan, SamplingParams, Session, Shape
from slipstream.drafting.growers import NUM_CANDIDATES
from slipstream.drafting.growth import DraftRequest
from support.models import tiny
from support.models.toy import path_tokens
from support.services.tiny_services import draft_place, rounds, target_here, target_place

PROMPT = tuple(tiny.tokens(7) * 3)
SHAPES = {shape: () for shape in (Shape.CHAIN, Shape.CAPE, Shape.DYNAMIC)}
SHAPES[Shape.PRODUCT] = (2, 2, 1)
SAMPLINGS = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=1.0, seed=5)}
BOTH = pytest.mark.parametrize("sampling", list(SAMPLINGS))


def plan(shape, ahead=0, max_depth=3):
    return Plan(max_depth, 12, shape, widths=SHAPES[shape], ahead=ahead)


def gone_on(draft, sequence, num_nodes):
    request = DraftRequest(sequence, Plan(0, 0, ahead=num_nodes), is_ahead=True)
    draft.begin(request)
    while not request.is_done:
        draft.step([request])
    return request.result()


@BOTH
@pytest.mark.parametrize("kind", ["glide", "eagle3", "vanilla"])
@pytest.mark.parametrize("shape", list(SHAPES))
async def test_a_tree_that_goes_on_begins_with_what_was_proposed(models, kind, shape, sampling):
    draft = models.drafter(kind, target_here(models, PROMPT)).draft
    sequence = TokenSequence(Session("s", len(PROMPT), 40, SAMPLINGS[sampling]), PROMPT)
    alone = await draft.propose(sequence, plan(shape))
    proposal = await draft.propose(sequence, plan(shape, ahead=120))
    assert replace(proposal, stats=()) == replace(alone, stats=())
    tree = gone_on(draft, sequence, 120)
    assert tree.stopped_by == AHEAD
    assert len(proposal.tree) < len(tree.tree) <= 120
    # Nodes of a tree that was proposed are in it, but those that the likelier ones push out.
    likeliest = path_tokens(proposal.tree, 0)
    assert len(tree.tree.matching(likeliest)) == len(likeliest)
    deepest = max(tree.tree.depths())
    assert deepest > 1
    assert kind == "vanilla" or deepest <= models.glide.max_lag
    few = await draft.propose(sequence, plan(shape, ahead=5))
    assert few.tree == proposal.tree
    assert len(gone_on(draft, sequence, 5).tree) == 5


async def test_a_tree_goes_on_from_where_it_was_and_only_that_of_the_last_proposal(models):
    draft = models.drafter("glide", target_here(models, PROMPT)).draft
    sequence = TokenSequence(Session("s", len(PROMPT), 40), PROMPT)
    await draft.propose(sequence, plan(Shape.CAPE, ahead=120))
    first, second = (gone_on(draft, sequence, 120) for _ in range(2))
    assert len(second.tree) >= len(first.tree) > NUM_CANDIDATES
    assert second.tree != first.tree
    await draft.propose(sequence, plan(Shape.CAPE, ahead=60))
    await draft.propose(sequence, plan(Shape.CAPE))
    assert not len(gone_on(draft, sequence, 60).tree)


async def everything(draft):
    """Wait for the proposals that are due, and the trees behind the last: tiny rounds are short."""
    async with asyncio.timeout(60):
        while draft._exchange._answers.qsize() < len(draft._due) + MAX_TREES:
            await asyncio.sleep(0)


@BOTH
@pytest.mark.parametrize("kind", ["glide", "eagle3", "vanilla"])
async def test_tokens_are_plain_decodings_and_some_rounds_wait_for_no_draft(models, kind, sampling):
    async with target_place(models) as targets, draft_place(models, kind) as drafts:

        async def answered(name, nodes):
            """The output, and the number of rounds that waited for no draft."""
            session = Session(name, len(PROMPT), 60, SAMPLINGS[sampling])
            target = targets.remote()
            is_reading = kind in READING
            feed = partial(target.feed, targets.address) if is_reading else lambda: None
            draft = drafts.remote(feed)
            output, num_ahead = [], 0
            running = rounds(draft, target, session, PROMPT, plan(Shape.CAPE, ahead=nodes))
            async for _, proposal, verdict in running:
                output += verdict.tokens
                num_ahead += proposal.stopped_by == AHEAD
                if nodes:
                    await everything(draft)
            await draft.release(name)
            await target.release(name)
            return output, num_ahead

        plainly, _ = await answered("plain", 0)
        output, num_ahead = await answered("ahead", 120)
    assert output == plainly
    # A tiny GliDe draft is nearly never right, and no path of a tiny greedy model is likely.
    assert num_ahead > 0 or (kind, sampling) != ("vanilla", "sampled")

"""Laws of every draft, here and elsewhere: what a delta does, a plan bounds, and is refused."""

import math
from contextlib import asynccontextmanager
from dataclasses import astuple, replace

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.options import DRAFTERS, READING, SpeculationOptions
from slipstream.core.policy.planner import Planner
from slipstream.core.policy.profile import DraftFacts, resolve
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import ROOT
from slipstream.core.types import (
    Plan,
    SamplingParams,
    Session,
    Shape,
    StopPolicy,
    Verdict,
    Verification,
)
from support.models import tiny
from support.services.tiny_services import Models, draft_place, target_here, target_place

PROMPT = tuple(tiny.tokens(7) * 3)
SESSION = Session("s", len(PROMPT), 40)
MODELS = ["glide", "eagle3", "vanilla"]
LEVELLED = [Shape.DYNAMIC, Shape.PRODUCT]


@pytest.fixture(scope="module")
def models():
    return Models(glide=tiny.glide(max_lag=6))


@pytest.fixture(params=["local", "grpc"])
def place(request):
    return request.param


@pytest.fixture(params=list(DRAFTERS))
async def draft(request, place, models):
    async with made(request.param, place, models) as draft:
        yield draft


@pytest.fixture(params=MODELS)
async def model_draft(request, place, models):
    async with made(request.param, place, models) as draft:
        yield draft


@asynccontextmanager
async def made(kind, place, models, tokens=PROMPT):
    """A draft of this kind, and a target that holds the keys of all tokens but the last."""
    if place == "local":
        yield models.drafter(kind, target_here(models, tokens)).draft
        return
    async with target_place(models) as targets, draft_place(models, kind) as drafts:
        target = await targets.prefilled(SESSION, tokens)
        draft = Redialled(drafts, lambda: target.feed(targets.address), reads=kind in READING)
        yield draft
        await draft.release("s")
        await target.release("s")


class Redialled:
    """A draft elsewhere, for one request after the other: each is a stream of its own."""

    def __init__(self, place, feed, *, reads):
        self._place = place
        self._feed = feed if reads else lambda: None
        self._fence = 0
        self._draft = place.remote(self._feed)

    async def propose(self, sequence, plan):
        proposal = await self._draft.propose(sequence, plan)
        return replace(proposal, timing=None)

    async def release(self, session_id):
        await self._draft.release(session_id)
        self._fence += 1
        self._draft = self._place.remote(self._feed, fence=self._fence)


def plan(shape=Shape.CHAIN, **more):
    widths = (2, 2, 1) if shape is Shape.PRODUCT else ()
    return Plan(**{"max_depth": 3, "max_nodes": 12, "shape": shape, "widths": widths, **more})


async def test_repeating_a_call_changes_nothing(draft):
    first = await draft.propose(TokenSequence(SESSION, PROMPT), plan())
    same = TokenSequence(SESSION, PROMPT)
    for sequence in (same, same, TokenSequence(SESSION, PROMPT)):
        again = await draft.propose(sequence, plan())
        assert replace(again, stats=()) == replace(first, stats=())
        # Scores of a text that was read differ in the last bit from those while it is read.
        for now, before in zip(again.stats, first.stats, strict=True):
            assert astuple(now)[:3] == pytest.approx(astuple(before)[:3], rel=1e-5)
    assert len(first.tree) > 0


async def test_chains_under_roots_may_be_as_long_as_any(place, models):
    roots = {"verification": Verification.TARGET_INIT, "num_roots": 3}
    session = replace(SESSION, **roots)
    options = SpeculationOptions(**roots, max_draft_tokens=40, max_nodes=127)
    settings = resolve(options, DraftFacts("vanilla"))
    longest = Planner(settings).plan(100, Verdict((), 0, roots=(3, 4, 5)))
    assert longest.max_depth == 41
    fixed = replace(longest, stop=StopPolicy.FIXED, threshold=None)
    async with made("vanilla", place, models) as draft:
        policy = await draft.propose(TokenSequence(session, PROMPT), longest)
        whole = await draft.propose(TokenSequence(session, PROMPT), fixed)
    assert 1 < max(policy.tree.depths()) <= max(whole.tree.depths()) == 41


async def test_pieces_give_the_result_of_the_whole(draft):
    whole = await draft.propose(TokenSequence(SESSION, PROMPT), plan())
    for _ in range(2):  # the second one changes nothing
        await draft.release("s")
    await draft.propose(TokenSequence(SESSION, PROMPT[:9]), plan())
    await draft.propose(TokenSequence(SESSION, (*PROMPT[:9], 5, 6, 7)), plan())
    pieces = await draft.propose(TokenSequence(SESSION, PROMPT), plan())
    assert pieces.tree == whole.tree
    for ours, theirs in zip(pieces.stats, whole.stats, strict=True):
        assert ours.entropy == pytest.approx(theirs.entropy, abs=1e-4)


@pytest.mark.parametrize("shape", [Shape.CHAIN, Shape.CAPE, *LEVELLED])
@pytest.mark.parametrize("max_nodes", [1, 2, 12])
async def test_a_tree_keeps_to_its_plan_best_siblings_first_with_their_statistics(
    model_draft, shape, max_nodes
):
    asked = plan(shape, max_nodes=max_nodes)
    proposal = await model_draft.propose(TokenSequence(SESSION, PROMPT), asked)
    tree = proposal.tree
    assert len(tree) == len(proposal.stats) <= max_nodes
    assert max(tree.depths(), default=0) <= asked.max_depth
    for node in range(ROOT, len(tree)):
        children = tree.children(node)
        assert len({tree.tokens[child] for child in children}) == len(children)
        probs = [proposal.stats[child].prob for child in children]
        assert probs == sorted(probs, reverse=True)
    for stats in proposal.stats:
        assert 0 < stats.prob <= stats.top_prob <= 1
        assert 0 < stats.entropy <= math.log(tiny.VOCAB)


async def test_a_stop_token_ends_the_chain(model_draft):
    free = await model_draft.propose(TokenSequence(SESSION, PROMPT), plan())
    stop = free.tree.tokens[0]
    await model_draft.release("s")
    session = Session("s", len(PROMPT), 40, stop_token_ids=frozenset({stop}))
    proposal = await model_draft.propose(TokenSequence(session, PROMPT), plan())
    assert (proposal.tree.tokens, proposal.stopped_by) == ((stop,), "eos")


async def test_an_eager_policy_still_drafts_one_token(model_draft):
    asked = plan(stop=StopPolicy.SVIP, threshold=1e-6)
    proposal = await model_draft.propose(TokenSequence(SESSION, PROMPT), asked)
    assert (len(proposal.tree), proposal.stopped_by) == (1, "policy")


@pytest.mark.parametrize(
    ("mode", "shape"),
    [("mcsd", Shape.PRODUCT), ("mcsd", Shape.CAPE), ("mcsd-replacement", Shape.PRODUCT)],
)
async def test_draws_come_with_the_law_they_were_drawn_from(model_draft, mode, shape):
    sampling = SamplingParams(temperature=1.0, seed=1)
    session = Session("s", len(PROMPT), 40, sampling, Verification(mode))
    proposal = await model_draft.propose(TokenSequence(session, PROMPT), plan(shape))
    tree = proposal.tree
    assert len(proposal.distributions) == len(tree) + 1
    for node in set(tree.parents):
        distribution = proposal.distributions[node + 1]
        assert sum(distribution.probs) == pytest.approx(1)
        assert {tree.tokens[child] for child in tree.children(node)} <= set(distribution.tokens)


async def test_a_draft_without_tokens_is_refused(model_draft):
    with pytest.raises(InvalidRequest):
        await model_draft.propose(TokenSequence(SESSION, ()), plan())


async def test_a_later_turn_that_needs_more_room_gets_it(models, place):
    turn = (*PROMPT, *tiny.tokens(200 - len(PROMPT), seed=2))
    async with made("glide", place, models, turn) as glide:
        await glide.propose(TokenSequence(SESSION, PROMPT), plan())
        if place == "grpc":
            await glide.release("s")
        proposal = await glide.propose(TokenSequence(Session("s", 200, 100), turn), plan())
    assert len(proposal.tree) == 3

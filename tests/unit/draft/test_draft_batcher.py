"""Sessions that share a draft's steps propose as each would alone, and fail and end alone."""

import asyncio
from dataclasses import replace

import pytest

from slipstream.core.errors import Cancelled, InternalError, InvalidRequest, Unavailable
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, SamplingParams, Session, Shape, StopPolicy
from slipstream.drafting.batcher import BatchedDraft
from slipstream.drafting.engine import LocalDraft, TargetKv
from slipstream.drafting.growth import CHUNK, DraftRequest
from slipstream.engine.thread import MAX_FAILED_STEPS, EngineThread
from slipstream.models.causal_scorer import CausalScorer
from slipstream.models.scorer import Sync
from support.models import tiny
from support.models.in_memory import causal_model
from support.services import draft_crowd
from support.services.draft_crowd import PROFILE, Keys, alone, asked, batched, engine, same


@pytest.fixture(scope="module")
def scorers():
    return draft_crowd.both_scorers()


ON_GPU = pytest.param("vanilla", "cuda", marks=pytest.mark.gpu)


@pytest.mark.parametrize(("kind", "device"), [("glide", "cpu"), ("vanilla", "cpu"), ON_GPU])
def test_newcomers_change_nothing_for_those_under_way(scorers, kind, device):
    calls = [asked(number) for number in range(8)]
    own = scorers
    if device == "cuda":
        model = causal_model(tiny.hf_model().to(device), numerics="fast")
        assert model.engine.startswith("cuda")
        own = {"vanilla": CausalScorer(model)}
    local = engine(own, kind)
    draftings = []
    for call in calls:
        draftings.append(local.begin(DraftRequest(*call)))
        local.step(draftings)
    while not all(drafting.is_done for drafting in draftings):
        local.step(draftings)
    for call, drafting in zip(calls, draftings, strict=True):
        same(drafting.result(), alone(scorers, kind, *call))


@pytest.mark.parametrize("kind", ["glide", "vanilla"])
def test_a_long_prefix_comes_in_pieces_that_end_in_the_same_proposal(scorers, kind):
    scorer, keys, tokens = scorers[kind], Keys(398), tuple(tiny.tokens(400, seed=5))
    local = engine(scorers, kind, keys=keys)
    drafting = local.begin(DraftRequest(TokenSequence(Session("s1", 190, 250), tokens), Plan(1, 1)))
    sizes = []
    while not drafting.is_done:
        sizes.append(drafting.num_tokens)
        local.step([drafting])
    assert sizes == [CHUNK, 400 - CHUNK]
    view = keys.view("s1", (0, 2)) if kind == "glide" else None
    best = int(scorer.score([Sync(scorer.open(400), tokens, view)]).logits[0].argmax())
    best = best if scorer.vocab is None else int(scorer.vocab[best])
    assert drafting.result().tree.tokens == (best,)


async def test_what_is_under_way_ends_with_its_session(scorers):
    local = engine(scorers)
    first, second = asked(0), (asked(1)[0], Plan(4, 4, stop=StopPolicy.FIXED))
    one, other = local.begin(DraftRequest(*first)), local.begin(DraftRequest(*second))
    local.step([one, other])
    await local.release("s0")
    with pytest.raises(Cancelled, match="s0"):
        one.result()
    newer = local.begin(DraftRequest(*second))
    with pytest.raises(Cancelled, match="s1"):
        other.result()
    while not newer.is_done:
        local.step([one, other, newer])
    same(newer.result(), alone(scorers, "glide", *second))


async def test_what_is_asked_of_a_session_happens_in_the_order_given(scorers):
    local, call = engine(scorers), asked(1)
    async with batched(local) as draft:
        asks = draft.propose(*call), draft.release("s1"), draft.propose(*call)
        first, _, second = await asyncio.gather(*asks, return_exceptions=True)
        assert isinstance(first, Cancelled)
        same(second, alone(scorers, "glide", *call))
        asks = draft.propose(*call), draft.release("s1")
        last, _ = await asyncio.gather(*asks, return_exceptions=True)
        assert isinstance(last, Cancelled) and local.num_kv_bytes == 0


async def test_an_error_of_one_session_fails_no_other(scorers):
    sequence, how = asked(0)
    wrong = [(TokenSequence(sequence.session), how)]
    odd = replace(how, shape=Shape.CHAIN, stop=StopPolicy.FIXED, threshold=0.5)
    calls = [*wrong, (asked(1)[0], odd), asked(2)]
    async with batched(engine(scorers)) as draft:
        found = await proposals(draft, calls)
    assert [type(one) for one in found[:2]] == [InvalidRequest, InvalidRequest]
    same(found[2], alone(scorers, "glide", *calls[2]))


async def proposals(draft, calls):
    """Proposals of calls at once, or the errors that they end with."""
    asked = (draft.propose(*call) for call in calls)
    return await asyncio.gather(*asked, return_exceptions=True)


class Garbled(Keys):
    """Keys of which one session's are no numbers, and another one's lack a layer."""

    def view(self, session_id, layers):
        seen = super().view(session_id, layers)
        if session_id == "s1":
            return replace(seen, layers={at: kv * float("nan") for at, kv in seen.layers.items()})
        if session_id == "s2":
            return replace(seen, layers={0: seen.layers[0]})
        return seen


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_keys_that_are_none_end_one_draft(scorers, temperature):
    local = LocalDraft(scorers["glide"], TargetKv(Garbled(), (0, 2)), profile=PROFILE)
    sampling = SamplingParams(temperature=temperature)
    calls = [
        (TokenSequence(replace(at.session, sampling=sampling), at.tokens), Plan(3, 3))
        for at, _ in map(asked, range(5))
    ]
    async with batched(local) as draft:
        found = await proposals(draft, calls)
    assert [isinstance(one, Exception) for one in found] == [False, True, True, False, False]
    for at in (0, 3, 4):
        same(found[at], alone(scorers, "glide", *calls[at]))


class Failing:
    def __init__(self, scorer):
        self._scorer = scorer
        self.num_failures = 0

    def __getattr__(self, name):
        return getattr(self._scorer, name)

    def score(self, asks):
        scores = self._scorer.score(asks)
        if self.num_failures:
            self.num_failures -= 1
            raise RuntimeError("out of luck")
        return scores


async def test_a_pass_that_fails_ends_those_in_it_and_leaves_no_trace(scorers, caplog):
    scorer = Failing(scorers["glide"])
    local = LocalDraft(scorer, TargetKv(Keys(), (0, 2)), profile=PROFILE)
    calls = [asked(0), asked(3)]
    async with batched(local) as draft:
        scorer.num_failures = 1
        found = await proposals(draft, calls)
        assert [type(one) for one in found] == [InternalError] * 2
        assert "out of luck" in caplog.text
        assert local.num_kv_bytes == 0
        for call in calls:
            same(await draft.propose(*call), alone(scorers, "glide", *call))


async def test_a_draft_is_broken_after_so_many_failed_passes_in_a_row_and_not_before(scorers):
    scorer = Failing(scorers["glide"])
    async with batched(LocalDraft(scorer, TargetKv(Keys(), (0, 2)), profile=PROFILE)) as draft:
        broken = asyncio.ensure_future(draft.failed_steps.too_many())

        async def fail(times):
            scorer.num_failures = times
            for _ in range(times):
                assert not broken.done()
                with pytest.raises(InternalError):
                    await draft.propose(*asked(0))

        await fail(MAX_FAILED_STEPS - 1)
        await draft.propose(*asked(0))
        await fail(MAX_FAILED_STEPS)
        assert f"{MAX_FAILED_STEPS} steps of the draft in a row have failed" in await broken


async def test_a_thread_that_stops_leaves_no_caller_waiting(scorers):
    thread = EngineThread("draft")
    draft = BatchedDraft(engine(scorers), thread)
    thread.close()
    with pytest.raises(Unavailable):
        await draft.propose(*asked(0))

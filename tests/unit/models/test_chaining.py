"""Chains that a device or native code follows are those that grow step by step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from slipstream.config import NATIVE_VARIABLE
from slipstream.core.errors import ModelError
from slipstream.core.policy.profile import Profile
from slipstream.core.policy.stop import Calibration, Stop
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, SamplingParams, Session, Shape, StopPolicy, Verification
from slipstream.drafting.engine import LocalDraft, TargetKv
from slipstream.drafting.growth import DraftRequest
from slipstream.models.dtypes import BFLOAT16, FLOAT32
from slipstream.models.glide.glide_chains import GlideChains
from slipstream.models.glide.load import draft_scorer, glide_chains, target_parts
from slipstream.models.glide.torch_parts import as_native
from slipstream.models.native import library
from slipstream.models.native.weights import eight_bits, plain
from slipstream.models.scorer import ChainRequest, Grow, KvView, Sync, skippable
from slipstream.train.decision import DecisionNetwork
from support.models import tiny, tiny_eagle, tiny_glide
from support.models.instruction_sets import available

on_device = pytest.mark.gpu
PLACES = [
    pytest.param("cuda", marks=on_device),
    pytest.param(
        "native",
        marks=pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built"),
    ),
]
everywhere = pytest.mark.parametrize("place", PLACES)
DEVICE = torch.device("cuda")
LENGTHS = (40, 3, 17, 1)
PLAN = Plan(4, 12)
STOPS = frozenset({7, 21})
PROFILE = Profile(
    step_cost=0.02,
    calibration=Calibration((0.2, 0.7, 0.9)),
    calibration_sampled=Calibration((0.3, 0.5)),
)


class Source:
    """A target's keys and values, with so many positions missing."""

    def __init__(self, target, texts, missing, window=0):
        self._target, self._texts, self._missing = target, texts, missing
        self._window = window

    def view(self, session_id, layers):
        text = self._texts[int(session_id)]
        count = max(len(text) - 1 - self._missing, 0)
        if not count:
            return KvView(0, {})
        skipped = skippable(len(text), self._window)[-1]
        made = tiny_glide if min(layers) < self._target.config.num_hidden_layers else tiny_eagle
        return made.view(self._target, text, count, skipped=skipped)


def decision():
    torch.manual_seed(5)
    network = DecisionNetwork(32)
    for value in network.parameters():
        torch.nn.init.normal_(value, std=0.4)
    return network.model()


def drafts(num_layers=1, missing=0, texts=None, window=0, place="cuda"):
    """The same draft, without layers a head, twice: step by step, and with its chains at once."""
    texts = texts or [tiny.tokens(length, seed=length) for length in LENGTHS]
    made = []
    for has_chains in (False, True):
        device = DEVICE if has_chains and place == "cuda" else torch.device("cpu")
        target, model = tiny_glide.llama(max_position_embeddings=512).to(device), decision()
        if num_layers:
            draft = tiny_glide.draft(tiny_glide.config(target, num_layers)).to(device)
            scorer = tiny_glide.scorer(target, draft, native=place == "native")
        else:
            draft = tiny_eagle.model(tiny_eagle.config(target, norms_output=True))
            scorer = tiny_eagle.scorer(target, draft, native=place == "native")
        chains = glide_chains(scorer, 500, model, PROFILE) if has_chains else None
        feed = TargetKv(Source(target, texts, missing, window), scorer.layers)
        made.append(LocalDraft(scorer, feed, decision=model.score, profile=PROFILE, chains=chains))
    return made, texts


def begin(draft, texts, plans, samplings, mode=Verification.EXACT):
    begun = []
    for at, (text, plan) in enumerate(zip(texts, plans, strict=True)):
        sampling = samplings[at % len(samplings)]
        session = Session(str(at), len(text), 30, sampling, mode, stop_token_ids=STOPS)
        begun.append(draft.begin(DraftRequest(TokenSequence(session, text), plan)))
    return begun


def propose(draft, *asked):
    begun, num_steps = begin(draft, *asked), 0
    while any(not drafting.is_done for drafting in begun):
        draft.step(begun)
        num_steps += 1
    return [drafting.result() for drafting in begun], num_steps


def assert_same(ours, theirs):
    assert [one.tree for one in ours] == [one.tree for one in theirs]
    assert [one.stopped_by for one in ours] == [one.stopped_by for one in theirs]
    assert [one.staleness for one in ours] == [one.staleness for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(one.stats, other.stats, strict=True):
            assert (a.score is None) is (b.score is None)
            own, others = ((c.top_prob, c.prob, c.entropy, c.score or 0.0) for c in (a, b))
            assert own == pytest.approx(others, rel=3e-4, abs=1e-6)


@everywhere
@pytest.mark.parametrize(("num_layers", "missing"), [(1, 3), (2, 0), (0, 3), (0, 0)])
def test_sessions_of_every_kind_share_a_pass(num_layers, missing, place):
    (host, device), texts = drafts(num_layers, missing, place=place)
    plans = [
        Plan(3, 12, Shape.CAPE, StopPolicy.SVIP, 0.74),
        Plan(4, 4, Shape.CHAIN, StopPolicy.COST, 0.02, worth=0.3),
        Plan(1, 1, Shape.CHAIN, StopPolicy.DECISION, 0.1),
        Plan(3, 9, Shape.CAPE, StopPolicy.FIXED),
    ]
    samplings = [SamplingParams(temperature=heat, seed=4) for heat in (0.0, 0.6, 1.0)]
    found, num_steps = propose(device, texts, plans, samplings)
    assert_same(found, propose(host, texts, plans, samplings)[0])
    is_caught_up = max(LENGTHS) > device.chains.max_new_tokens
    assert num_steps == 1 + is_caught_up, "the chains are one step behind the longest prefix"


@everywhere
@pytest.mark.parametrize(("num_layers", "missing"), [(1, 0), (0, 0), (0, 2)])
def test_rounds_go_on_from_what_became_final(num_layers, missing, place):
    (host, device), texts = drafts(num_layers, missing, place=place)
    plan, sampling = Plan(3, 9, Shape.CAPE, StopPolicy.FIXED), SamplingParams()
    for round_id in range(3):
        found, _ = propose(device, texts, [plan] * 4, [sampling])
        assert_same(found, propose(host, texts, [plan] * 4, [sampling])[0])
        for text, proposal in zip(texts, found, strict=True):
            kept = proposal.tree.tokens[:round_id]  # then one that was not proposed
            text += [*kept, 1 + round_id]


@everywhere
@pytest.mark.parametrize("kernels", available())
@pytest.mark.parametrize(("num_layers", "temperature"), [(1, 1.0), (2, 0.0), (0, 1.0)])
def test_long_texts_are_read_without_what_is_skipped(
    num_layers, temperature, kernels, place, monkeypatch
):
    monkeypatch.setenv(NATIVE_VARIABLE, kernels)
    texts = [tiny.tokens(length, seed=5) for length in (420, 382, 30, 385)]
    texts = [[token % tiny_glide.VOCAB for token in text] for text in texts]
    (host, device), texts = drafts(num_layers, texts=texts, window=128, place=place)
    asked = [Plan(3, 9, Shape.CAPE)] * 4, [SamplingParams(temperature=temperature, seed=1)]
    for _ in range(2):
        assert_same(propose(device, texts, *asked)[0], propose(host, texts, *asked)[0])
        for text in texts:
            text += [9, 8, 7]
    skipped = [device._sessions[str(at)].state.skipped for at in range(4)]
    assert skipped == ([231, 193, 0, 196] if num_layers else [167, 129, 0, 132])


@pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_each_instruction_set_finds_the_same_chains_to_the_last_bit(temperature, monkeypatch):
    plan = Plan(4, 30, Shape.CAPE, StopPolicy.COST, 0.01)
    found = []
    for name in available():
        monkeypatch.setenv(NATIVE_VARIABLE, name)
        (_, chained), texts = drafts(place="native")
        sampling = SamplingParams(temperature=temperature, seed=3)
        found.append(propose(chained, texts, [plan] * 4, [sampling])[0])
    assert all(proposals == found[0] for proposals in found)
    assert max(len(proposal.tree) for proposal in found[0]) > 4


@pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")
@pytest.mark.parametrize("kind", [plain, lambda rows: plain(rows.astype(BFLOAT16)), eight_bits])
@pytest.mark.parametrize(("temperature", "text"), [(0.0, [*range(61)]), (1.0, [9, 50, 3])])
def test_tokens_of_the_text_and_the_noisiest_ones_are_ranked_as_by_a_whole_head(
    kind, temperature, text
):
    target, found = tiny_glide.llama(), []
    embedding = kind(20 * target_parts(target).embedding.numpy())
    own = {"embedding": embedding, "head_rows": embedding.dense(FLOAT32).__getitem__}
    parts = replace(as_native(target_parts(target)), is_tied=True, **own)
    for size in (40, 61):
        model = tiny_glide.draft(replace(tiny_glide.config(target), head_size=size))
        scorer = draft_scorer(tiny.weights_of(model, torch.arange(61 - size, 61)), parts)
        feed = TargetKv(Source(target, [text], 0), scorer.layers)
        draft = LocalDraft(scorer, feed, chains=glide_chains(scorer, 99, None, PROFILE))
        sampling = SamplingParams(temperature=temperature, seed=3)
        found.append(propose(draft, [text], [Plan(4, 30, Shape.CAPE)], [sampling])[0])
    assert_same(*found)
    assert min(found[0][0].tree.tokens) < 21, "the trimmed head lacks it"


CUT = [{"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2}]


@everywhere
def test_what_cannot_be_followed_at_once_grows_step_by_step(place):
    (host, device), texts = drafts(place=place)
    asked = ([Plan(3, 9, Shape.CHAIN, StopPolicy.FIXED)] * 4, [SamplingParams(temperature=1.0)])
    expected = propose(host, texts, *asked, Verification.MCSD)
    assert_same(propose(device, texts, *asked, Verification.MCSD)[0], expected[0])
    assert propose(device, texts, *asked, Verification.MCSD)[1] == expected[1]


def followed():
    """A target, a draft of it, and the draft's chains, on a device."""
    target = tiny_glide.llama().to(DEVICE)
    draft = tiny_glide.draft(tiny_glide.config(target)).to(DEVICE)
    scorer = tiny_glide.scorer(target, draft, native=False)
    return target, scorer, GlideChains(scorer, 200)


@on_device
def test_a_tree_can_be_grown_behind_a_followed_prefix():
    target, scorer, chains = followed()
    text = tiny.tokens(12)
    view = tiny_glide.view(target, text, 11)
    scores = []
    for is_followed in (True, False):
        state = scorer.open(60)
        if is_followed:
            ask = ChainRequest(state, text, view, SamplingParams(), Stop(StopPolicy.FIXED, 3), 3, 1)
            chains.follow([ask])
        scorer.score([Sync(state, [*text, 9], view)])
        scores.append(scorer.score([Grow(state, [4], [-1])]).logits)
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-5)


@everywhere
def test_a_truncated_request_is_drafted_at_once_as_if_it_were_whole(place):
    (_, device), texts = drafts(place=place)
    plan = Plan(3, 9, Shape.CAPE, StopPolicy.FIXED)
    greedy, whole = (
        propose(device, texts, [plan] * 4, [SamplingParams(temperature=heat)])[0]
        for heat in (0.0, 1.0)
    )
    for cut in ({"top_k": 1}, *CUT):
        own = SamplingParams(temperature=1.0, **cut)
        found, num_steps = propose(device, texts, [plan] * 4, [own])
        assert_same(found, greedy if cut == {"top_k": 1} else whole)
        assert num_steps == 1


@on_device
@pytest.mark.parametrize("num_layers", [1, 0])
def test_all_that_comes_later_is_captured_before_and_a_chain_that_ends_is_soon_left(num_layers):
    (host, device), texts = drafts(num_layers)
    device.prepare()
    chains, runs = device.chains, []
    captured, later = set(chains.replay._entries), chains._later
    chains._later = lambda memory, depth, state: runs.append(depth) or later(memory, depth, state)
    for samplings in ([SamplingParams()], [SamplingParams(temperature=0.6, seed=4)]):
        for plan in (PLAN, Plan(12, 30, Shape.CHAIN, StopPolicy.FIXED), Plan(1, 1, Shape.CHAIN)):
            asked = ([plan] * 4, samplings)
            assert_same(propose(device, texts, *asked)[0], propose(host, texts, *asked)[0])
    assert set(chains.replay._entries) == captured
    runs.clear()
    ending = Plan(12, 30, Shape.CHAIN, StopPolicy.SVIP, 1e-6)
    assert {
        len(one.tree) for one in propose(device, texts, [ending] * 4, [SamplingParams()])[0]
    } == {1}
    assert not runs


class SpoiltSource(Source):
    """The same, but one session's values are no numbers."""

    def view(self, session_id, layers):
        view = super().view(session_id, layers)
        if session_id == "2":
            for buffer in view.layers.values():
                buffer[len(buffer) // 2 :].fill_(float("nan"))
        return view


@everywhere
def test_a_chain_without_numbers_is_an_error_of_its_session_alone(place):
    (_, device), texts = drafts(place=place)
    whole, _ = propose(device, texts, [PLAN] * 4, [SamplingParams()])
    target = tiny_glide.llama().to(DEVICE if place == "cuda" else "cpu")
    device._target_kv = TargetKv(SpoiltSource(target, texts, 0), device._target_kv.layers)
    begun = begin(device, texts, [PLAN] * 4, [SamplingParams()])
    device.step(begun)
    with pytest.raises(ModelError):
        begun.pop(2).result()
    assert_same([one.result() for one in begun], [whole[0], whole[1], whole[3]])

"""A device's decision to stop is that of the policies in `core.policy.stop`; the decision model has
chances from what is known of a slot, and files that fit or are refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from slipstream.core.errors import WeightsError
from slipstream.core.inline import finished
from slipstream.core.policy.stop import Calibration, Stop, StopSignal
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, SamplingParams, Session, Shape, StopPolicy, Verification
from slipstream.drafting.engine import LocalDraft
from slipstream.drafting.reader import CandidateReader, CandidateRows, read_candidates, read_each
from slipstream.models.causal_scorer import CausalScorer
from slipstream.models.decision import (
    DECISION_NAME,
    GREEDY,
    SAMPLED,
    load_decision,
    save_decision,
    slot_stats,
)
from slipstream.models.glide.glide_chain import (
    AT_END,
    AT_LIMIT,
    BY_POLICY,
    GOES_ON,
    ChainNumber,
    StateNumber,
)
from slipstream.models.glide.glide_config import WEIGHTS_NAME
from slipstream.models.scorer import Scores
from slipstream.train.decision import DecisionNetwork
from support.cuda.operators import ChainSlot, state_behind
from support.models import tiny

chance = st.floats(0, 1)
limits, bounds = st.integers(1, 6), st.floats(0.01, 2)
stops = st.one_of(
    st.builds(Stop, st.just(StopPolicy.FIXED), limits),
    st.builds(Stop, st.just(StopPolicy.SVIP), limits, bounds),
    st.builds(Stop, st.just(StopPolicy.DECISION), limits, chance, bounds),
    st.builds(Stop, st.just(StopPolicy.COST), limits, st.floats(0.01, 0.9)),
)
calibrations = st.lists(chance, min_size=2, max_size=5).map(lambda own: Calibration(tuple(own)))
numbers = st.tuples(  # token, entropy, top probability, score
    st.integers(0, 9),
    st.one_of(st.just(math.nan), st.floats(-1e-6, 12)),
    st.one_of(st.just(math.nan), chance),
    st.one_of(st.none(), chance),
)
slots = st.lists(numbers, min_size=6, max_size=6)
cases = st.tuples(stops, calibrations, st.integers(1, 6), st.floats(0, 0.5), slots)
ENDS = (7, 8)


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


def end_on_host(stop, calibration, limit, least, chain):
    """Length of a chain and why it ends, by `core.policy.stop`."""
    stop = replace(stop, calibration=calibration)
    path = 1.0
    for depth, (token, entropy, top_prob, score) in enumerate(chain, start=1):
        path *= calibration.probability(top_prob) if score is None else score
        if token in ENDS:
            return depth, AT_END
        if limit <= depth:
            return depth, AT_LIMIT
        if path < least or stop.should_stop(StopSignal(depth, top_prob, entropy, score, path)):
            return depth, BY_POLICY
    return len(chain), GOES_ON


@settings(deadline=None)
@given(st.lists(cases, min_size=1, max_size=5))
def test_chains_end_on_a_device_where_the_policies_say(chains):
    policies, calibrations, limits, least, rows = zip(*chains, strict=True)
    given = doubles([[-1.0] * (ChainNumber.POINTS + 5)] * len(chains))
    rules = [(own.threshold, own.fallback, own.number, own.max_depth) for own in policies]
    into = [ChainNumber.THRESHOLD, ChainNumber.FALLBACK, ChainNumber.POLICY, ChainNumber.MAX_DEPTH]
    given[:, into] = doubles(rules)
    given[:, ChainNumber.LEAST_PATH], given[:, ChainNumber.LIMIT] = doubles(least), doubles(limits)
    given[:, ChainNumber.ENDS : ChainNumber.ENDS + len(ENDS)] = doubles(ENDS)
    for own, calibration in zip(given, calibrations, strict=True):
        own[ChainNumber.NUM_POINTS] = num = len(calibration.points)
        own[ChainNumber.POINTS : ChainNumber.POINTS + num] = doubles(calibration.points)
    state = doubles([[0, 0, GOES_ON, 1]] * len(chains)).t()
    for column in zip(*rows, strict=True):
        tokens, entropies, top_probs, scores = zip(*column, strict=True)
        scores = [math.nan if score is None else score for score in scores]
        known = map(doubles, (entropies, top_probs, scores))
        state = state_behind(ChainSlot(torch.tensor(tokens)[:, None], *known), given, state)
    found = state[StateNumber.LENGTH : StateNumber.REASON + 1].t().tolist()
    assert [tuple(end) for end in found] == [end_on_host(*case) for case in chains]


def test_a_network_scores_as_the_decision_model_does_also_states_in_bfloat16():
    torch.manual_seed(0)
    network = DecisionNetwork(6, 4)
    for value in network.parameters():
        torch.nn.init.normal_(value, std=0.4)
    rows = [(math.log(0.9), math.log(0.05)), (math.log(0.3), math.log(0.2)), (0.0, -math.inf)]
    entropies, lags, hidden = (0.4, 3.0, 0.0), (0, 7, 2), torch.randn(3, 6).bfloat16()
    stats = np.float32(list(map(slot_stats, rows, entropies, lags)))
    chances = network(hidden, torch.from_numpy(stats)).sigmoid().detach()
    assert chances.dtype == torch.float32
    theirs = network.model().score(hidden.float().numpy(), stats)
    np.testing.assert_allclose(chances, theirs, rtol=1e-5)


LAWS = [(0.9, 0.05, 0.4, 0), (0.3, 0.2, 3.0, 7), (1.0, 1e-30, 0.0, 2)]
STATS = np.float32([slot_stats((math.log(p), math.log(q)), *rest) for p, q, *rest in LAWS])


def model(width=4):
    """A decision model whose weights matter everywhere."""
    torch.manual_seed(0)
    network = DecisionNetwork(6, width)
    with torch.no_grad():
        for value in network.parameters():
            value.copy_(torch.randn_like(value) * 0.5)
    return network.model()


def noise(*size):
    return torch.randn(size).numpy()


@pytest.fixture
def folder(tmp_path):
    """A draft's directory, as far as a decision model looks at it."""
    (tmp_path / WEIGHTS_NAME).write_bytes(b"the draft")
    return tmp_path


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_which_token_carries_which_probability_has_no_say_where_that_would_bias(temperature):
    sampling, mode = SamplingParams(temperature=temperature), Verification.MCSD
    reader = CandidateReader(Session("s", 1, 1, sampling, verification=mode), None, model().score)
    logits, hidden = noise(40) * 3, noise(6)
    rows = np.stack([logits, logits[torch.randperm(40)]])
    readings = [CandidateRows(reader, [5], [2], 1), CandidateRows(reader, [9], [2], 4)]
    [[first], [second]] = read_each(Scores(rows, np.stack([hidden, hidden])), readings)
    slots = [first, second]
    assert slots[0].tokens[0] != slots[1].tokens[0]
    assert slots[0].score == pytest.approx(slots[1].score, abs=1e-5)


def test_greedy_requests_and_sampled_ones_have_a_chance_each():
    logits, hidden, decision = noise(40) * 3, noise(6), model()
    for column, temperature in ((GREEDY, 0.0), (SAMPLED, 0.7)):
        session = Session("s", 1, 1, SamplingParams(temperature=temperature))
        reader = CandidateReader(session, None, decision.score)
        log_probs = torch.from_numpy(reader.ranked(logits, 1)).log_softmax(-1)
        best = log_probs.sort(descending=True).values[:2].tolist()
        stats = slot_stats(best, float(-(log_probs.exp() * log_probs).sum()), 3)
        chances = decision.score(hidden[None], np.float32([stats]))[0].tolist()
        chance = chances[column]
        assert chance != pytest.approx(chances[1 - column])
        rows = CandidateRows(reader, [1], [3], 2)
        [slot] = read_candidates(Scores(logits[None], hidden[None]), rows)
        assert slot.score == pytest.approx(chance, abs=1e-5) and len(slot.probs) == 2


def test_saved_and_loaded_it_scores_the_same(folder):
    assert load_decision(folder, hidden_size=6) is None
    decision, hidden = model(), noise(3, 6)
    save_decision(decision, folder)
    loaded = load_decision(folder, hidden_size=6)
    assert np.array_equal(loaded.score(hidden, STATS), decision.score(hidden, STATS))
    assert (folder / DECISION_NAME).stat().st_size < 2**20


def test_weights_for_another_draft_are_refused(folder, tmp_path):
    save_decision(model(), folder)
    with pytest.raises(WeightsError, match=r"width 8: hidden.weight"):
        load_decision(folder, hidden_size=8)
    (folder / WEIGHTS_NAME).write_bytes(b"the draft, trained on")
    with pytest.raises(WeightsError, match="trained for other weights"):
        load_decision(folder, hidden_size=6)
    with pytest.raises(WeightsError, match="no draft"):
        save_decision(model(), tmp_path / "nowhere")


@pytest.mark.parametrize("change", ["draft", "out.weight", "hidden.bias", "extra", "all", "bytes"])
def test_a_file_that_is_no_decision_model_is_refused(folder, change):
    save_decision(model(), folder)
    tensors = load_file(folder / DECISION_NAME)
    if tensors.pop(change, None) is None:
        tensors["extra"] = torch.zeros(1)
    save_file({"x": torch.zeros(1)} if change == "all" else tensors, folder / DECISION_NAME)
    if change == "bytes":
        (folder / DECISION_NAME).write_bytes(b"nonsense")
    with pytest.raises(WeightsError, match="safetensors" if change == "bytes" else DECISION_NAME):
        load_decision(folder, hidden_size=6)


@pytest.mark.parametrize(
    ("stop", "shape", "is_scored"),
    [
        (StopPolicy.DECISION, Shape.CHAIN, True),
        (StopPolicy.COST, Shape.CAPE, True),
        (StopPolicy.SVIP, Shape.CHAIN, False),
        # Ten slots a level, of which `cost` asks about one.
        (StopPolicy.COST, Shape.DYNAMIC, False),
        (StopPolicy.DECISION, Shape.DYNAMIC, True),
    ],
)
def test_slots_are_scored_where_the_score_decides(stop, shape, is_scored):
    scorer = CausalScorer(tiny.causal(numerics="fast"))
    draft = LocalDraft(scorer, decision=DecisionNetwork(scorer.hidden_size).model().score)
    prompt = tuple(tiny.tokens(9))
    plan = Plan(3, 12, shape=shape, stop=stop, threshold=1e-9 if stop is StopPolicy.COST else None)
    proposal = finished(draft.propose(TokenSequence(Session("s", 9, 20), prompt), plan))
    for stats in proposal.stats:
        assert stats.score == (pytest.approx(stats.top_prob, abs=1e-5) if is_scored else None)

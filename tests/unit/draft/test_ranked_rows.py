"""Rows that candidates are ranked by: greedy ones are the logits, sampled ones wear the noise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.types import SamplingParams, Session, Verification
from slipstream.core.verify.distribution import SamplingDistribution
from slipstream.core.verify.keyed_noise import Purpose
from slipstream.core.verify.noise import gumbel
from slipstream.drafting.reader import CandidateReader, CandidateRows, RowSoftmax, read_candidates
from slipstream.models.scorer import Scores

SIZE, POSITION, SEED = 60, 9, 3
SHARPNESS = 1.12
VOCAB = np.random.default_rng(1).permutation(1000)[:SIZE]
TRUNCATIONS = st.one_of(
    st.builds(dict, top_k=st.integers(1, SIZE)),
    st.builds(dict, top_p=st.floats(0.01, 0.99)),
    st.builds(dict, min_p=st.floats(0.001, 1.0)),
    st.builds(dict, top_k=st.integers(2, SIZE), top_p=st.floats(0.1, 0.99)),
)


def row(seed, *, scale=3.0):
    """Logits with ties, as bfloat16 has them."""
    drawn = np.random.default_rng(seed).standard_normal(SIZE, np.float32) * scale
    return np.round(drawn * 4) / np.float32(4)


def reader(*, mode=Verification.EXACT, vocab=VOCAB, **sampling):
    sampling = SamplingParams(**{"temperature": 1.0, "seed": SEED, **sampling})
    return CandidateReader(Session("s", 1, 9, sampling, verification=mode), vocab)


def read(own, logits, count):
    rows = CandidateRows(own, [POSITION], [0], count)
    [candidates] = read_candidates(Scores(logits[None], np.zeros((1, 2), np.float32)), rows)
    return candidates


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.12, 1.5])
@pytest.mark.parametrize("vocab", [None, VOCAB])
def test_a_sampled_rows_numbers_are_those_of_the_perturbed_softmax(temperature, vocab):
    logits = row(0)
    ids = np.arange(SIZE) if vocab is None else vocab
    noise = gumbel(SEED, POSITION, ids, purpose=Purpose.DRAW).astype(np.float64)
    ranked = SHARPNESS * logits.astype(np.float64) / temperature + noise
    probs = np.exp(ranked - ranked.max())
    probs /= probs.sum()
    order = np.argsort(-probs)
    found = read(reader(temperature=temperature, vocab=vocab), logits, 8)
    assert found.tokens == tuple(ids[order[:8]])
    assert found.probs == pytest.approx(probs[order[:8]], rel=1e-5)
    assert found.top_prob == pytest.approx(probs.max(), rel=1e-5)
    assert found.entropy == pytest.approx(-(probs * np.log(probs)).sum(), rel=1e-4)


@given(TRUNCATIONS, st.integers(0, 99), st.sampled_from([0.01, 0.5, 1.0, 1.12, 3.0]))
def test_a_candidate_outside_the_support_comes_behind_all_inside(truncation, seed, temperature):
    logits = row(seed)
    sampling = SamplingParams(temperature=temperature, seed=SEED, **truncation)
    support = SamplingDistribution(sampling, 1).support(logits, ())[1]
    inside = set(range(SIZE)) if support is None else set(support.tolist())
    found = read(reader(vocab=None, temperature=temperature, **truncation), logits, SIZE)
    first, rest = found.tokens[: len(inside)], found.tokens[len(inside) :]
    assert set(first) == inside
    assert (np.diff(logits[list(rest)]) <= 0).all()
    assert list(found.probs) == sorted(found.probs, reverse=True)
    assert found.top_prob == pytest.approx(found.probs[0])
    if len(inside) > 1:
        noise = gumbel(SEED, POSITION, np.array(first), purpose=Purpose.DRAW)
        scores = SHARPNESS * (logits[list(first)] - logits.max()) / temperature + noise
        assert (np.diff(scores) <= 1e-3).all()


@pytest.mark.parametrize("truncation", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_where_truncation_leaves_one_token_a_row_is_read_as_a_greedy_one(truncation, temperature):
    logits = row(2)
    logits[17] += 9
    found = read(reader(temperature=temperature, **truncation), logits, 5)
    assert found == read(reader(temperature=0.0), logits, 5)
    assert found.tokens[0] == VOCAB[17]
    assert 0 < found.top_prob < 1 and found.entropy > 0


@pytest.mark.parametrize("mode", Verification)
def test_a_greedy_row_is_the_logits_themselves(mode):
    logits = row(4)
    own = reader(mode=mode, temperature=0.0)
    assert own.ranked(logits, POSITION) is logits
    softmax, order = RowSoftmax(logits[None]), np.lexsort((np.arange(SIZE), -logits))[:7]
    found = read(own, logits, 7)
    assert found.tokens == tuple(VOCAB[order].tolist())
    assert found.probs == tuple(softmax.probs(0, order))
    assert (found.top_prob, found.entropy) == (softmax.top_prob(0), softmax.entropies[0])


@pytest.mark.parametrize("mode", [Verification.MCSD, Verification.MCSD_REPLACEMENT])
def test_draws_of_mcsd_are_judged_by_the_logits_whatever_noise_there_is(mode):
    logits = row(5)
    assert reader(mode=mode).ranked(logits, POSITION) is logits
    assert read(reader(mode=mode), logits, 3).top_prob == RowSoftmax(logits[None]).top_prob(0)


def test_tokens_that_a_draft_rules_out_are_numbers_behind_any_truncation():
    logits = row(6)
    logits[10:] = -np.inf
    for truncation in ({"top_k": 3}, {"top_k": 30}, {"top_p": 0.9}, {"min_p": 0.2}, {}):
        found = read(reader(vocab=None, **truncation), logits, 12)
        assert set(found.tokens[:10]) == set(range(10))
        assert found.probs[10:] == (0.0, 0.0)

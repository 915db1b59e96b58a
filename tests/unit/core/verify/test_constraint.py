"""Under a constraint every distribution is the free one, masked and renormalised, at each node.

Masking by hand, with minus infinity in the logits, is the referee: those without a constraint are
enumerated elsewhere.
"""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.errors import InvalidRequest
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, SamplingParams, SparseDistribution, Verification
from slipstream.core.verify.distribution import SamplingDistribution
from slipstream.core.verify.verify import verify
from support.models.toy import (
    PROMPT,
    VOCAB,
    ToyModel,
    forest,
    path_tokens,
    plain,
    session_of,
    trees,
)

STOP = 0
WORDS = {
    word
    for size in (2, 3, 4, 5)
    for word in itertools.product(range(1, VOCAB), repeat=size)
    if sum(word) % 5 == 0 and 3 not in word[:2]
}
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6, top_k=2),
    SamplingParams(temperature=1.3, top_p=0.8, min_p=0.05),
    SamplingParams(repetition_penalty=1.8, frequency_penalty=0.5),
    SamplingParams(temperature=0.9, presence_penalty=1.0, logit_bias=((3, 50.0),)),
]


class Words:
    """Outputs are words of a finite language, with a stop token behind them."""

    def allowed(self, output):
        output = tuple(output)
        if STOP in output:
            return np.array([STOP])
        size = len(output)
        found = {word[size] for word in WORDS if len(word) > size and word[:size] == output}
        if output in WORDS:
            found.add(STOP)
        if not found:
            raise InvalidRequest(f"{output} is no part of a word")
        return np.array(sorted(found))

    def forced(self, output):
        return ()


def masked(model, tokens):
    dense = np.full(VOCAB, -math.inf, np.float32)
    ids = Words().allowed(tokens[len(PROMPT) :])
    dense[ids] = model.logits(tokens)[ids]
    return dense


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_law_after_every_part_of_a_word_is_the_masked_one_renormalised(sampling):
    model = ToyModel(1)
    distributions = SamplingDistribution(sampling, len(PROMPT), Words())
    free = SamplingDistribution(sampling, len(PROMPT))
    for part in sorted({word[:size] for word in WORDS for size in range(4)}):
        prefix = [*PROMPT, *part]
        expected = free.probs(masked(model, prefix), prefix)
        found = distributions.probs(model.logits(prefix), prefix)
        assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
        scores = distributions.scores(model.logits(prefix), prefix)
        assert scores.tolist() == pytest.approx(free.scores(masked(model, prefix), prefix).tolist())


def test_top_k_counts_allowed_tokens_only_and_nothing_else_is_in_the_support():
    logits = np.float32([9.0, 8.0, 7.0, 1.0, 0.5, 0.25])
    low = SimpleNamespace(allowed=lambda output: np.array([3, 4, 5]), forced=lambda output: ())
    distributions = SamplingDistribution(SamplingParams(temperature=1, top_k=2), 0, low)
    scores, ids = distributions.support(logits, [])
    assert ids.tolist() == [3, 4]
    assert scores.tolist() == [1.0, 0.5]


@settings(max_examples=150, deadline=None)
@given(trees(), st.sampled_from(SAMPLINGS), st.integers(0, 2**64 - 1), st.integers(0, 3))
def test_whatever_is_proposed_exact_gives_the_words_of_plain_decoding(tree, sampling, seed, toy):
    session, model = session_of(dataclasses.replace(sampling, seed=seed)), ToyModel(toy)
    walk = verify(session, PROMPT, Proposal(tree), model.rows(PROMPT, tree), constraint=Words())
    tokens = [*(tree.tokens[node] for node in walk.nodes), walk.token]
    assert tokens == plain(session, model, len(tokens), Words())


def candidates(tree):
    """Laws that could have drawn the tree: flat over the vocabulary, what is forbidden included."""
    return (SparseDistribution(tuple(range(VOCAB)), (1 / VOCAB,) * VOCAB),) * (len(tree) + 1)


@settings(max_examples=150, deadline=None)
@given(
    trees(),
    st.sampled_from(SAMPLINGS),
    st.integers(0, 2**64 - 1),
    st.sampled_from([Verification.MCSD, Verification.MCSD_REPLACEMENT]),
)
def test_rejection_sampling_walks_as_over_masked_logits(tree, sampling, seed, mode):
    session, model = session_of(dataclasses.replace(sampling, seed=seed), mode), ToyModel(2)
    proposal = Proposal(tree, distributions=candidates(tree))

    def masked_row(node):
        return masked(model, [*PROMPT, *path_tokens(tree, node)])

    walk = verify(session, PROMPT, proposal, model.rows(PROMPT, tree), constraint=Words())
    assert walk == verify(session, PROMPT, proposal, masked_row)
    output = [*(tree.tokens[node] for node in walk.nodes), walk.token]
    for count, token in enumerate(output):
        assert token in Words().allowed(output[:count])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SAMPLINGS), st.integers(0, 2**64 - 1), st.data())
def test_target_initialised_roots_and_branches_follow_it_too(sampling, seed, data):
    sampling = dataclasses.replace(sampling, seed=seed)
    session = session_of(sampling, Verification.TARGET_INIT, num_roots=3)
    model = ToyModel(3)
    first = model.rows(PROMPT, TokenTree())
    roots = verify(session, PROMPT, Proposal(), first, constraint=Words()).roots
    assert set(roots) <= set(Words().allowed([]).tolist())
    tails = [data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=3)) for _ in roots]
    tree = forest(*((root, *tail) for root, tail in zip(roots, tails, strict=True)))
    proposal = Proposal(tree, distributions=candidates(tree))
    walk = verify(session, PROMPT, proposal, model.rows(PROMPT, tree), constraint=Words())
    output = [tree.tokens[node] for node in walk.nodes]
    for count, token in enumerate(output):
        assert token in Words().allowed(output[:count])
    assert set(walk.roots) <= set(Words().allowed(output).tolist())

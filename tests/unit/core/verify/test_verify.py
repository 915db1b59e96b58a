"""Verification walks the tree as far as it is right, and never a token further."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.draft import candidates
from slipstream.core.draft.candidates import draw_without_replacement
from slipstream.core.errors import InvalidRequest, ModelError
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import (
    NodeStats,
    Proposal,
    SamplingParams,
    SparseDistribution,
    Verification,
)
from slipstream.core.verify.distribution import softmax
from slipstream.core.verify.keyed_noise import Purpose
from slipstream.core.verify.noise import gumbel
from slipstream.core.verify.port_checks import check_proposal
from slipstream.core.verify.verify import verify
from support.models import oracle
from support.models.toy import (
    PROMPT,
    VOCAB,
    ToyModel,
    choose,
    path_tokens,
    plain,
    session_of,
    trees,
)

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6, top_k=4),
    SamplingParams(temperature=1.3, top_p=0.8, min_p=0.05),
    SamplingParams(repetition_penalty=1.8, frequency_penalty=0.5),
    SamplingParams(temperature=0.9, presence_penalty=1.0, logit_bias=((2, 1.5),)),
]


@settings(max_examples=150, deadline=None)
@given(trees(), st.sampled_from(SAMPLINGS), st.integers(0, 2**64 - 1), st.integers(0, 3))
def test_whatever_is_proposed_the_tokens_are_those_of_plain_decoding(tree, sampling, seed, toy):
    session = session_of(dataclasses.replace(sampling, seed=seed))
    model, visited = ToyModel(toy), []
    walk = verify(session, PROMPT, Proposal(tree), model.rows(PROMPT, tree, visited))
    tokens = [*(tree.tokens[node] for node in walk.nodes), walk.token]
    assert tokens == plain(session, model, len(tokens))
    assert visited == [ROOT, *walk.nodes]
    # The walk is a path, and it ended because no child carries the target's token.
    assert walk.nodes == (tree.path(walk.nodes[-1]) if walk.nodes else ())
    last = walk.nodes[-1] if walk.nodes else ROOT
    assert walk.token not in [tree.tokens[child] for child in tree.children(last)]


@pytest.mark.parametrize("vary", ["seed", "position"])
def test_plain_draws_have_the_law_of_the_logits(vary):
    p, count = oracle.distribution(8, 4, 2, 1, 1), 4000
    seen = Counter()
    for at in range(1, count + 1):
        seed, prefix = (at - 1, PROMPT) if vary == "seed" else (77, range(3, 3 + at))
        session = session_of(SamplingParams(temperature=1, seed=seed))
        seen[choose(session, oracle.logs(*p) + 3, prefix)] += 1
    observed = [seen[token] / count for token in range(5)]
    # The expected distance at 4000 draws is about 0.012.
    assert oracle.total_variation(observed, p) < 0.03


def mcsd_proposal(model, session, widths, *, seed):
    """A product tree honestly drawn, all its candidates from the draft's own distribution."""
    replacement = session.verification is Verification.MCSD_REPLACEMENT
    pick = candidates.draw_with_replacement if replacement else draw_without_replacement
    tokens, parents, distributions, level = [], [], {}, [ROOT]
    for width in widths:
        above, level = level, []
        for node in above:
            tree = TokenTree(tuple(tokens), tuple(parents))
            prefix = [*PROMPT, *path_tokens(tree, node)]
            q = softmax(model.logits(prefix)).tolist()
            distributions[node] = SparseDistribution(tuple(range(VOCAB)), tuple(q))
            for token in pick(distributions[node], width, seed=seed, position=len(prefix)):
                level.append(len(tokens))
                tokens.append(token)
                parents.append(node)
    tree = TokenTree(tuple(tokens), tuple(parents))
    return Proposal(
        tree, distributions=tuple(distributions.get(node) for node in range(ROOT, len(tree)))
    )


@pytest.mark.parametrize("mode", [Verification.MCSD, Verification.MCSD_REPLACEMENT])
def test_candidates_and_tests_of_one_seed_are_independent_enough_to_keep_the_law(mode):
    """The whole path with its keyed noise: the distribution of the first two tokens of a round."""
    target, draft, count = ToyModel(5), ToyModel(6), 2000
    seen = Counter()
    for seed in range(count):
        session = session_of(SamplingParams(temperature=1.0, seed=seed), mode)
        proposal = mcsd_proposal(draft, session, (2, 1), seed=seed)
        walk = verify(session, PROMPT, proposal, target.rows(PROMPT, proposal.tree))
        tokens = [*(proposal.tree.tokens[node] for node in walk.nodes), walk.token]
        if len(tokens) == 1:
            known = [*PROMPT, *tokens]
            tokens.append(verify(session, known, Proposal(), target.rows(known, TokenTree())).token)
        seen[tuple(tokens[:2])] += 1
    expected = {}
    for first, p in enumerate(softmax(target.logits(PROMPT)).tolist()):
        after = softmax(target.logits([*PROMPT, first])).tolist()
        expected |= {(first, second): p * p2 for second, p2 in enumerate(after)}
    observed = [seen[pair] / count for pair in expected]
    assert oracle.total_variation(observed, list(expected.values())) < 0.06


@pytest.mark.parametrize(
    ("p", "q", "width"),
    [
        (oracle.distribution(1, 2, 3, 6, 0, 0), oracle.distribution(9, 4, 2, 1, 1, 1), 3),
        (oracle.distribution(3, 4, 3, 0, 0, 0), oracle.distribution(6, 2, 2, 0, 0, 0), 2),
    ],
    ids=["many rejections", "a test right after another"],
)
def test_tests_and_the_draw_after_them_use_different_numbers(p, q, width):
    count = 2500
    logits = oracle.logs(*p)
    distribution = SparseDistribution(tuple(range(VOCAB)), tuple(float(x) for x in q))
    seen = Counter()
    for seed in range(count):
        session = session_of(SamplingParams(temperature=1.0, seed=seed), Verification.MCSD)
        tokens = draw_without_replacement(distribution, width, seed=seed, position=len(PROMPT))
        tree = TokenTree(tokens, (ROOT,) * width)
        proposal = Proposal(tree, distributions=(distribution, *[None] * width))
        walk = verify(session, PROMPT, proposal, lambda _: logits)
        seen[tree.tokens[walk.nodes[0]] if walk.nodes else walk.token] += 1
    # The expected distance at 2500 draws is about 0.012.
    assert oracle.total_variation([seen[token] / count for token in range(VOCAB)], p) < 0.03


EVEN = SparseDistribution((2, 3), (0.5, 0.5))


def drawn(token, *distributions):
    return "mcsd", Proposal(TokenTree.chain([token]), distributions=distributions)


def odd(tokens, *probs):
    return SparseDistribution(tokens, probs)


FAULTS = {
    "token id 6, not 0 to 5": ("exact", Proposal(TokenTree.chain([6]))),
    "token id -1, not": ("exact", Proposal(TokenTree.chain([-1]))),
    "siblings carry the same token": ("exact", Proposal(TokenTree((2, 2), (-1, -1)))),
    "needs the distributions": drawn(2),
    "1 distributions, but needs 2": drawn(2, EVEN),
    "come without the distribution": drawn(2, None, EVEN),
    "has child 4, which its distribution": drawn(4, EVEN, None),
    "3 tokens, 2 probabilities": drawn(2, odd((1, 2, 3), 0.5, 0.5), None),
    "mass of the distribution at node -1 is 0.7, but must": drawn(2, odd((2, 3), 0.5, 0.2), None),
    "a probability of the distribution at node -1 is": drawn(
        2, odd((2, 3), 0.5, float("nan")), None
    ),
    "node -1 is inf, but must": drawn(2, odd((2,), float("inf")), None),
    "node -1 is 1e\\+308, but must": drawn(2, odd((2, 3), 1e308, 1e308), None),
    "names a token twice": drawn(2, odd((2, 2), 0.5, 0.5), None),
    "distribution at node -1 has token id 9, not": drawn(2, odd((2, 9), 0.5, 0.5), None),
    "2 nodes has 1 statistics": (
        "exact",
        Proposal(TokenTree.chain([1, 2]), stats=(NodeStats(1, 1, 0),)),
    ),
    "one chain under each root": ("target-init", Proposal(TokenTree((2, 3, 4), (-1, 0, 0)))),
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_proposal_that_does_not_fit_its_mode_is_refused_with_a_reason(message):
    mode, proposal = FAULTS[message]
    session = session_of(SamplingParams(), Verification(mode))
    with pytest.raises(InvalidRequest, match=message):
        check_proposal(session, proposal, vocab_size=VOCAB)


@pytest.mark.parametrize("temperature", [0.05, 0.4, 1.0, 3.0])
def test_leaving_out_tokens_that_no_noise_could_lift_changes_no_draw(temperature):
    logits = np.random.default_rng(1).standard_normal(3000, np.float32) * 4
    for seed in range(60):
        session = session_of(SamplingParams(temperature=temperature, seed=seed))
        noise = gumbel(seed, len(PROMPT), 3000, purpose=Purpose.DRAW)
        drawn = int((logits / temperature + noise).argmax())
        assert choose(session, logits, PROMPT) == drawn


@pytest.mark.parametrize("mode", [Verification.EXACT, Verification.MCSD, Verification.TARGET_INIT])
@pytest.mark.parametrize("sampling", SAMPLINGS[:3])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_logits_without_a_distribution_are_an_error_and_not_a_token(bad, sampling, mode):
    broken = np.full(VOCAB, bad, np.float32)
    with pytest.raises(ModelError):
        verify(session_of(sampling, mode), PROMPT, Proposal(), lambda _: broken)

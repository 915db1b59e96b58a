"""Rejection sampling with several candidates keeps the target's distribution: all outcomes."""

import random
from collections import Counter

import numpy as np
import pytest

from slipstream.core.types import SparseDistribution
from slipstream.core.verify.rejection import branch_test, draw, multi_candidate, residual
from support.models import oracle

ALMOST_ONE = 1 - 2.0**-53


def array(distribution):
    return np.array([float(x) for x in distribution])


def sparse(distribution):
    support = [token for token, prob in enumerate(distribution) if prob]
    return SparseDistribution(tuple(support), tuple(float(distribution[at]) for at in support))


def run(p, q, tokens, last_u, *, replacement):
    """The real slot, with every candidate but the last rejected if it can be."""
    uniforms = [ALMOST_ONE] * (len(tokens) - 1) + [last_u]
    return multi_candidate(
        array(p), sparse(q), tokens, uniform=uniforms.__getitem__, replacement=replacement
    )


def chance_of_acceptance(p, q, tokens, *, replacement):
    """Measure of the uniforms that accept the last token, the ones before being rejected."""
    last = len(tokens) - 1
    if run(p, q, tokens, 0.0, replacement=replacement)[0] != last:
        return 0.0
    low, high = 0.0, 1.0  # accepted at low; the acceptance set is an interval from 0
    for _ in range(52):
        middle = (low + high) / 2
        accepted = run(p, q, tokens, min(middle, ALMOST_ONE), replacement=replacement)[0]
        low, high = (middle, high) if accepted == last else (low, middle)
    return high


def distribution_of_the_code(p, q, k, *, replacement, draws_replaced=None):
    """The exact distribution of the token as the real code makes it, randomness integrated."""
    draws_replaced = replacement if draws_replaced is None else draws_replaced
    out, memo = [0.0] * len(p), {}
    for tokens, chance in oracle.draws(q, k, replacement=draws_replaced):
        alive = float(chance)
        for index in range(k):
            head = tokens[: index + 1]
            if head not in memo:
                memo[head] = chance_of_acceptance(p, q, head, replacement=replacement)
            out[tokens[index]] += alive * memo[head]
            alive *= 1 - memo[head]
            if alive < 1e-14:
                break
        else:
            left = run(p, q, tokens, ALMOST_ONE, replacement=replacement)[1]
            for token, weight in enumerate((left / left.sum()).tolist()):
                out[token] += alive * weight
    return out


def random_distribution(rng, size=4, *, zeros=0):
    weights = [rng.randint(1, 9) for _ in range(size - zeros)] + [0] * zeros
    rng.shuffle(weights)
    return oracle.distribution(*weights)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_code_reproduces_the_targets_law(k, replacement):
    rng = random.Random(k)
    pairs = [(random_distribution(rng, zeros=1), random_distribution(rng)) for _ in range(3)]
    if k < 3:  # a draft whose support is smaller
        pairs.append((oracle.distribution(1, 2, 3, 4), oracle.distribution(5, 0, 1, 0)))
    for p, q in pairs:
        found = distribution_of_the_code(p, q, k, replacement=replacement)
        assert found == pytest.approx([float(x) for x in p], abs=1e-12)


@pytest.mark.parametrize("k", [2, 3])
def test_keeping_q_after_a_rejection_without_replacement_would_be_noticed(k):
    p, q = oracle.distribution(0, 6, 3, 1), oracle.distribution(97, 1, 1, 1)
    wrong = oracle.multi_candidate_keeping_q(p, q, k)
    assert oracle.total_variation(wrong, p) > 0.2
    # The same mistake made with the real code: its rule for replacement, draws without.
    code = distribution_of_the_code(p, q, k, replacement=True, draws_replaced=False)
    assert oracle.total_variation(code, wrong) < 1e-12


def test_a_token_the_target_never_emits_is_rejected_even_on_a_uniform_of_zero():
    p, q = oracle.distribution(0, 1), oracle.distribution(1, 1)
    outcome = run(p, q, (0,), 0.0, replacement=False)
    assert outcome[0] is None
    assert draw(outcome[1], 0.0) == 1


def test_equal_laws_reject_nothing_and_leave_the_law_where_rounding_would_leave_none():
    p = oracle.distribution(1, 2, 3, 4)
    for token in range(4):
        assert run(p, p, (token,), ALMOST_ONE, replacement=False)[0] == 0
    assert np.array_equal(residual(array(p), sparse(p)), array(p))


def test_a_greedy_law_accepts_its_token_among_any_candidates_and_else_draws_it():
    p, q = oracle.distribution(0, 0, 1, 0), oracle.distribution(1, 2, 3, 4)
    assert run(p, q, (3, 2), ALMOST_ONE, replacement=False)[0] == 1
    outcome = run(p, q, (3, 1), ALMOST_ONE, replacement=False)
    assert outcome[0] is None
    assert {draw(outcome[1], u) for u in (0.0, 0.5, ALMOST_ONE)} == {2}


def test_the_law_handed_in_is_left_as_it_is():
    p = array(oracle.distribution(1, 2, 3, 4))
    before = p.copy()
    distribution = sparse(oracle.distribution(4, 3, 2, 1))
    multi_candidate(p, distribution, (0, 1), uniform=lambda _: ALMOST_ONE, replacement=False)
    assert np.array_equal(p, before)


def test_the_acceptance_test_of_a_single_branch_is_strict():
    distribution = SparseDistribution((4, 2), (0.5, 0.5))
    p = np.float32([0, 0, 0.25, 0, 0.0])
    assert branch_test(p, distribution, 2, 0.49)
    assert not branch_test(p, distribution, 2, 0.5)
    assert not branch_test(p, distribution, 4, 0.0)


@pytest.mark.parametrize("u", [0.0, 0.3, 0.999, ALMOST_ONE])
def test_a_token_of_weight_zero_is_never_drawn(u):
    assert draw(np.float32([0.0, 0.2, 0.0, 0.1, 0.0]), u) in {1, 3}


def test_draws_have_the_law_of_the_weights():
    steps = 1000
    seen = Counter(draw(np.float32([1.0, 0, 3.0]), (i + 0.5) / steps) for i in range(steps))
    assert seen == {0: 250, 2: 750}

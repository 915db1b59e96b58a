"""Target-initialised roots: what the algorithm says, and how far from lossless that is."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.core.tree import ROOT
from slipstream.core.types import (
    Proposal,
    SamplingParams,
    Session,
    SparseDistribution,
    Verification,
)
from slipstream.core.verify.port_checks import check_proposal
from slipstream.core.verify.verify import verify
from support.models import oracle
from support.models.toy import forest

PROMPT = (0, 1)
GREEDY = SamplingParams()


def session_of(sampling, num_roots=2):
    return Session("s", 2, 50, sampling, verification=Verification.TARGET_INIT, num_roots=num_roots)


def rows_of(table):
    """Rows by node, and which of them were asked for."""
    visited = []

    def row(node):
        visited.append(node)
        return np.float32(table[node])

    return row, visited


def test_an_empty_proposal_draws_the_roots_and_makes_nothing_final():
    row, visited = rows_of({ROOT: [1.0, 3, 2, 3]})
    walk = verify(session_of(GREEDY, 3), PROMPT, Proposal(), row)
    assert (walk.nodes, walk.token, walk.roots, visited) == ((), None, (1, 3, 2), [ROOT])


def naming(token, size=8):
    return [2.0 if index == token else 1.0 - index / 10 for index in range(size)]


def test_the_branch_accepted_furthest_stays_and_the_next_roots_follow_it():
    tree = forest((5, 1, 2), (6, 1, 3), (7, 0, 0))
    rows = {ROOT: naming(5), 0: naming(1), 1: naming(7), 3: naming(1), 4: naming(3), 5: naming(6)}
    row, visited = rows_of(rows | {6: naming(4)})
    walk = verify(session_of(GREEDY, 3), PROMPT, Proposal(tree), row)
    assert walk.nodes == (3, 4, 5)
    assert walk.roots[0] == 6 and len(walk.roots) == 3
    assert len(visited) == len(set(visited))  # no row is asked for twice


def test_the_first_of_equally_long_branches_stays():
    tree = forest((5, 1), (6, 1))
    row, _ = rows_of({ROOT: naming(5), 0: naming(7), 2: naming(7)})
    walk = verify(session_of(GREEDY), PROMPT, Proposal(tree), row)
    assert (walk.nodes, walk.roots) == ((0,), (7, 0))


def test_the_draft_can_decide_which_root_stays():
    tree = forest((5, 1), (6, 2))  # 5 is the argmax, but the draft continues only 6 rightly
    row, _ = rows_of({ROOT: naming(5), 0: naming(7), 2: naming(2), 3: naming(4)})
    walk = verify(session_of(GREEDY), PROMPT, Proposal(tree), row)
    assert [tree.tokens[node] for node in walk.nodes] == [6, 2]


def test_roots_the_target_did_not_draw_are_refused():
    proposal = Proposal(forest((5,), (7,)))
    with pytest.raises(InvalidRequest, match=r"roots \[5, 7\], but the target drew \[5, 6\]"):
        check_proposal(session_of(GREEDY), proposal, vocab_size=10, roots=(5, 6))


def test_sampled_roots_are_drawn_without_replacement_and_capped_by_the_support():
    sampling = SamplingParams(temperature=1, top_k=3)
    row, _ = rows_of({ROOT: [1.0, 2, 3, 4]})
    assert sorted(verify(session_of(sampling, 5), PROMPT, Proposal(), row).roots) == [1, 2, 3]


def test_sampled_roots_have_the_law_of_draws_without_replacement():
    p, count = oracle.distribution(7, 2, 1), 3000
    row, _ = rows_of({ROOT: oracle.logs(*p)})
    seen = Counter(
        verify(session_of(SamplingParams(temperature=1, seed=seed)), PROMPT, Proposal(), row).roots
        for seed in range(count)
    )
    expected = dict(oracle.draws(p, 2, replacement=False))
    observed = [seen[pair] / count for pair in expected]
    assert oracle.total_variation(observed, list(expected.values())) < 0.03


def test_the_next_roots_come_from_the_residual_only_after_something_was_accepted():
    """Faithful to the released code, which continues from plain p when nothing was accepted."""
    q = SparseDistribution((0, 1, 2), (0.0, 0.5, 0.5))
    even = oracle.logs(1, 1, 0)  # p - q leaves token 0 only
    for seed in range(20):
        session = session_of(SamplingParams(temperature=1, seed=seed))
        # Token 1 is sure to be accepted where p names it, token 2 (p = 0) sure to be rejected.
        row, _ = rows_of({ROOT: oracle.logs(1, 1, 1), 0: oracle.logs(0, 1, 0), 1: even})
        proposal = Proposal(forest((0, 1, 2)), distributions=(None, q, q, None))
        walk = verify(session, PROMPT, proposal, row)
        assert (walk.nodes, walk.roots) == ((0, 1), (0,))
        row, _ = rows_of({ROOT: oracle.logs(1, 1, 1), 0: even})
        walk = verify(session, PROMPT, Proposal(forest((0, 2)), distributions=(None, q, None)), row)
        assert (walk.nodes, sorted(walk.roots)) == ((0,), [0, 1])


def test_sampled_branches_need_the_laws_they_were_drawn_from():
    session = session_of(SamplingParams(temperature=1))
    with pytest.raises(InvalidRequest, match="target-init verification needs the distributions"):
        check_proposal(session, Proposal(forest((0, 1))), vocab_size=3)


ACCEPTANCE = (Fraction(1, 10), Fraction(9, 10), Fraction(9, 10))


def test_the_code_has_the_bias_that_the_enumeration_predicts():
    """p = (.7, .2, .1), and the draft's one token passes with chance .1, .9 and .9."""
    p, count = oracle.distribution(7, 2, 1), 1200
    first = oracle.logs(*p)
    sure = SparseDistribution((0,), (1.0,))
    emitted = Counter()
    for seed in range(count):
        session = session_of(SamplingParams(temperature=1, seed=seed))
        row, _ = rows_of({ROOT: first})
        roots = verify(session, PROMPT, Proposal(), row).roots
        tree = forest(*((root, 0) for root in roots))
        table = {ROOT: first}
        for index, root in enumerate(roots):
            chance = float(ACCEPTANCE[root])
            table[2 * index] = oracle.logs(chance, 1 - chance, 0)
            table[2 * index + 1] = oracle.logs(1, 1, 1)
        row, _ = rows_of(table)
        distributions = (None, sure, None, sure, None)
        walk = verify(session, PROMPT, Proposal(tree, distributions=distributions), row)
        emitted[tree.tokens[walk.nodes[0]]] += 1
    observed = [emitted[token] / count for token in range(3)]
    assert oracle.total_variation(observed, oracle.target_initialised(p, ACCEPTANCE, 2)) < 0.05
    assert oracle.total_variation(observed, p) > 0.5

"""Target-initialised roots (Improving Multi-Candidate Speculative Decoding, 2024): NOT lossless.

The target draws several roots for a position, the draft continues each of them, and the root whose
branch gets furthest stays. So the draft has a say in a token that the target should have drawn
alone, and the distribution of the output is not the target's. Opt-in, and labelled so everywhere.
Faithful to the released algorithm, that bias included.
"""

import math
from collections.abc import Sequence

import numpy as np

from slipstream.core.errors import ModelError
from slipstream.core.tree import ROOT
from slipstream.core.types import Proposal, Session, SparseDistribution
from slipstream.core.verify.distribution import (
    Constraint,
    SamplingDistribution,
    argmax_first,
    distribution_of,
    ordered_top,
)
from slipstream.core.verify.keyed_noise import Purpose, uniform
from slipstream.core.verify.noise import Floats, Ids, gumbel
from slipstream.core.verify.rejection import branch_test, residual
from slipstream.core.verify.walk import PositionRule, Row, Walk, WalkStep, descend


def verify_forest(
    session: Session,
    prefix: Sequence[int],
    proposal: Proposal,
    row: Row,
    *,
    constraint: Constraint | None = None,
) -> Walk:
    """Keep the branch with the longest accepted run, the first among equals; draw new roots.

    An empty proposal keeps nothing and draws the roots of the position after `prefix`.
    """
    tree = proposal.tree
    distribution = distribution_of(session, constraint)
    kept: tuple[int, ...] = ()
    rule = _branch_rule(session, distribution, proposal)
    for root in tree.children(ROOT):
        below = descend(tree, root, [*prefix, tree.tokens[root]], rule, row)
        if not kept or 1 + len(below.nodes) > len(kept):
            kept = (root, *below.nodes)
    tokens = [*prefix, *(tree.tokens[node] for node in kept)]
    last = kept[-1] if kept else ROOT
    rejected = _proposed(proposal, last) if len(kept) > 1 else None
    return Walk(kept, None, draw_roots(session, distribution, row(last), tokens, rejected=rejected))


def draw_roots(
    session: Session,
    distribution: SamplingDistribution,
    logits: Floats,
    prefix: Sequence[int],
    *,
    rejected: SparseDistribution | None = None,
) -> tuple[int, ...]:
    """The next position's roots: the best when greedy, else drawn without replacement.

    As many as the session asks for, or as the distribution supports. `rejected` is the distribution
    of a draft token that was just rejected there: the roots come from the positive part of p - q.
    """
    sampling = session.sampling
    if sampling.is_greedy:
        values, ids = ordered_top(distribution.scores(logits, prefix), session.num_roots)
        return _supported(values, ids)
    p = distribution.probs(logits, prefix)
    weights = p if rejected is None else residual(p, rejected)
    noisy = gumbel(sampling.seed, len(prefix), len(p), purpose=Purpose.ROOT)
    with np.errstate(divide="ignore"):
        noisy += np.log(weights)
    return _supported(*ordered_top(noisy, session.num_roots))


def _branch_rule(
    session: Session, distribution: SamplingDistribution, proposal: Proposal
) -> PositionRule:
    """Each node of a branch is tested on its own; nothing is drawn where a test fails."""
    tree, sampling = proposal.tree, session.sampling

    def step(node: int, logits: Floats, tokens: Sequence[int]) -> WalkStep:
        for child in tree.children(node):
            token, proposed = tree.tokens[child], _proposed(proposal, node)
            if proposed is None:
                stays = argmax_first(distribution.scores(logits, tokens)) == token
            else:
                u = uniform(sampling.seed, len(tokens), Purpose.ACCEPT, child)
                stays = branch_test(distribution.probs(logits, tokens), proposed, token, u)
            if stays:
                return WalkStep(child)
        return WalkStep(None)

    return step


def _proposed(proposal: Proposal, node: int) -> SparseDistribution | None:
    """The distribution that the child of `node` was drawn from; None when it was not a draw."""
    return proposal.distributions[node + 1] if proposal.distributions else None


def _supported(values: Floats, ids: Ids) -> tuple[int, ...]:
    """The ids whose values are above -inf. Raises `ModelError` unless the best is finite."""
    if not math.isfinite(best := float(values[0])):
        raise ModelError(f"the best score of a position is {best}, so no root can be drawn")
    return tuple(ids[values > -math.inf].tolist())

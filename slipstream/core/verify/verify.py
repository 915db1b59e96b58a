"""The target's decision: how far a proposal is right, and which token follows.

`exact` draws each position's token as plain decoding would and follows it into the tree; `mcsd`
tests candidates by rejection sampling; `target-init` has a file of its own. Independent of
models, caches or where the proposal came from.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from slipstream.core.logprobs import TokenLogprob
from slipstream.core.tree import ROOT
from slipstream.core.types import Proposal, SamplingParams, Session, Verification
from slipstream.core.verify.distribution import (
    Constraint,
    SamplingDistribution,
    argmax_first,
    distribution_of,
)
from slipstream.core.verify.draws import FindContenders, best_with_noise, draw_among, is_softmax
from slipstream.core.verify.keyed_noise import Purpose, gumbels_of, uniform
from slipstream.core.verify.likelihood import recording
from slipstream.core.verify.noise import MAX_GUMBEL, Floats, Ids
from slipstream.core.verify.rejection import draw, multi_candidate
from slipstream.core.verify.target_init import verify_forest
from slipstream.core.verify.walk import PositionRule, Row, Walk, WalkStep, descend

_MANY = 256
"""Tokens whose noise costs more than telling which of them could be drawn at all."""


def verify(
    session: Session,
    prefix: Sequence[int],
    proposal: Proposal,
    row: Row,
    *,
    constraint: Constraint | None = None,
    find: FindContenders | None = None,
) -> Walk:
    """Decide what becomes final after `prefix`, all final tokens of the session.

    `row` is called once for each node the walk visits, the root included, and for no other. The
    proposal is one that `check_proposal` accepts. The `constraint` is that of the session's
    grammar, and holds for every node's own prefix. `find` is a faster way to the same tokens.
    Raises `ModelError` where logits are no distribution.
    """
    if session.verification is Verification.TARGET_INIT:  # branches share their rows
        return verify_forest(session, prefix, proposal, cache(row), constraint=constraint)
    distribution = distribution_of(session, constraint)
    if constraint is not None or session.sampling.is_greedy or not is_softmax(session.sampling):
        find = None
    if session.verification is Verification.EXACT:
        rule = _exact(session.sampling, distribution, proposal, find)
    else:
        rule = _mcsd(session, distribution, proposal)
    logprobs = list[TokenLogprob]()
    if session.num_logprobs is not None:
        rule = recording(rule, proposal.tree, num_top=session.num_logprobs, logprobs=logprobs)
    walk = descend(proposal.tree, ROOT, prefix, rule, row)
    if logprobs:
        walk = replace(walk, logprobs=tuple(logprobs))
    return walk


def _choose(
    sampling: SamplingParams,
    distribution: SamplingDistribution,
    logits: Floats,
    prefix: Sequence[int],
) -> int:
    """Return the token that plain decoding puts after `prefix`: the first best one when greedy,
    else the draw by Gumbel-max with noise keyed by seed and position."""
    scores, ids = distribution.support(logits, prefix)
    best = argmax_first(scores)
    if sampling.is_greedy:
        return best if ids is None else int(ids[best])
    if ids is None:
        ids = np.arange(len(scores), dtype=np.int32)
    if len(ids) > _MANY:
        scores, ids = _contenders(scores, ids, best, seed=sampling.seed, position=len(prefix))
    return best_with_noise(scores, ids, seed=sampling.seed, position=len(prefix))


def _contenders(
    scores: Floats, ids: Ids, best: int, *, seed: int, position: int
) -> tuple[Floats, Ids]:
    """The scores [n] and ids [n], ascending, of tokens that some noise could make the draw.

    Below temperature 1 they are a small part of the vocabulary, and noise is what costs.
    """
    (noise,) = gumbels_of(seed, position, (int(ids[best]),), purpose=Purpose.DRAW)
    near = scores >= float(scores[best]) + noise - MAX_GUMBEL
    if 2 * np.count_nonzero(near) > len(scores):  # gathering that many costs more than their noise
        return scores, ids
    kept = np.flatnonzero(near)
    return scores[kept], ids[kept]


def _exact(
    sampling: SamplingParams,
    distribution: SamplingDistribution,
    proposal: Proposal,
    find: FindContenders | None,
) -> PositionRule:
    """Draw the position's token as without a proposal; go on if a child carries it."""
    tree = proposal.tree

    def step(node: int, logits: Floats, tokens: Sequence[int]) -> WalkStep:
        token = None if find is None else draw_among(logits, sampling, len(tokens), find)
        if token is None:
            token = _choose(sampling, distribution, logits, tokens)
        for child in tree.children(node):
            if tree.tokens[child] == token:
                return WalkStep(child)
        return WalkStep(None, token)

    return step


def _mcsd(session: Session, distribution: SamplingDistribution, proposal: Proposal) -> PositionRule:
    """Test the children one after the other; draw from what they leave over."""
    tree, seed = proposal.tree, session.sampling.seed
    replacement = session.verification is Verification.MCSD_REPLACEMENT

    def step(node: int, logits: Floats, tokens: Sequence[int]) -> WalkStep:
        left, position = distribution.probs(logits, tokens), len(tokens)
        children = tree.children(node)
        proposed = proposal.distributions[node + 1] if children else None
        if proposed is not None:
            tokens_below = [tree.tokens[child] for child in children]
            own = partial(uniform, seed, position, Purpose.ACCEPT)
            accepted, left = multi_candidate(
                left, proposed, tokens_below, uniform=own, replacement=replacement
            )
            if accepted is not None:
                return WalkStep(children[accepted])
        return WalkStep(None, draw(left, uniform(seed, position, Purpose.RESIDUAL, 0)))

    return step

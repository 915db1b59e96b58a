"""Target-initialised roots (Improving Multi-Candidate Speculative Decoding, 2024): NOT lossless.

The target draws several roots for a slot, the draft continues each of them, and the root whose
branch gets furthest stays. So the draft has a say in a token that the target should have drawn
alone, and the law of the output is not the target's. Opt-in, and labelled so everywhere. Faithful
to the released algorithm, that bias included. Knows nothing of models or caches.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.core.draft.candidates import argmax_first, ordered_top
from slipstream.core.errors import ModelError
from slipstream.core.tree import ROOT
from slipstream.core.types import Proposal, Session, SparseLaw
from slipstream.core.verify.constraint import Constraint
from slipstream.core.verify.keyed_noise import Purpose, uniform
from slipstream.core.verify.laws import LawContext
from slipstream.core.verify.noise import gumbel
from slipstream.core.verify.slots import branch_test, residual
from slipstream.core.verify.walk import Row, Slot, Walk, WalkStep, descend


def verify_forest(
    session: Session,
    prefix: Sequence[int],
    proposal: Proposal,
    row: Row,
    *,
    constraint: Constraint | None = None,
) -> Walk:
    """Keep the branch with the longest accepted run, the first among equals; draw new roots.

    An empty proposal keeps nothing and draws the roots of the slot after `prefix`.
    """
    tree, rows = proposal.tree, _Rows(row)
    laws = LawContext(session.sampling, session.num_prompt_tokens, constraint)
    kept: tuple[int, ...] = ()
    slot = _branch_slot(session, laws, proposal)
    for root in tree.children(ROOT):
        below = descend(tree, root, [*prefix, tree.tokens[root]], slot, rows)
        if not kept or 1 + len(below.nodes) > len(kept):
            kept = (root, *below.nodes)
    tokens = [*prefix, *(tree.tokens[node] for node in kept)]
    last = kept[-1] if kept else ROOT
    rejected = _rejected_law(proposal, last) if len(kept) > 1 else None
    return Walk(kept, None, draw_roots(session, laws, rows(last), tokens, rejected=rejected))


def draw_roots(
    session: Session,
    laws: LawContext,
    logits: Tensor,
    prefix: Sequence[int],
    *,
    rejected: SparseLaw | None = None,
) -> tuple[int, ...]:
    """The next slot's roots: the best when greedy, else drawn without replacement.

    As many as the session asks for, or as the law supports. `rejected` is the law of a draft
    token that was just refused in that slot: the roots come from the positive part of p - q.
    """
    sampling = session.sampling
    if sampling.is_greedy:
        values, ids = ordered_top(laws.scores(logits, prefix), session.num_roots)
        return _supported(values, ids)
    p = laws.probs(logits, prefix)
    weights = p if rejected is None else residual(p, rejected)
    vocabulary = torch.arange(p.shape[0], device=p.device)
    noise = gumbel(sampling.seed, len(prefix), vocabulary, purpose=Purpose.ROOT)
    return _supported(*ordered_top(weights.log().add_(noise), session.num_roots))


def _branch_slot(session: Session, laws: LawContext, proposal: Proposal) -> Slot:
    """Each node of a branch is tested on its own; nothing is drawn where a test fails."""
    tree, sampling = proposal.tree, session.sampling

    def step(node: int, logits: Tensor, tokens: Sequence[int]) -> WalkStep:
        for child in tree.children(node):
            token, law = tree.tokens[child], _rejected_law(proposal, node)
            if law is None:
                stays = argmax_first(laws.scores(logits, tokens)) == token
            else:
                u = uniform(sampling.seed, len(tokens), Purpose.ACCEPT, child)
                stays = branch_test(laws.probs(logits, tokens), law, token, u)
            if stays:
                return WalkStep(child)
        return WalkStep(None)

    return step


def _rejected_law(proposal: Proposal, node: int) -> SparseLaw | None:
    """The law that the child of `node` was drawn from; None when it was not a draw."""
    return proposal.laws[node + 1] if proposal.laws else None


def _supported(values: Tensor, ids: Tensor) -> tuple[int, ...]:
    """The ids whose values are above -inf. Raises `ModelError` unless the best is finite."""
    # A float64 holds every id, so one transfer brings both.
    best, tokens = torch.stack([values.double(), ids.double()]).tolist()
    if not math.isfinite(best[0]):
        raise ModelError(f"the best score of a slot is {best[0]}, so no root can be drawn")
    return tuple(int(token) for value, token in zip(best, tokens, strict=True) if value > -math.inf)


class _Rows:
    """Rows that are asked for once, however often they are needed here."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self._known: dict[int, Tensor] = {}

    def __call__(self, node: int) -> Tensor:
        if node not in self._known:
            self._known[node] = self._row(node)
        return self._known[node]

"""A draft without a model: the text's own repetitions and what n-gram stores know.

Knows token ids only. It has no distribution, so it serves `exact` verification, and no stop policy
that asks for confidence.
"""

from slipstream.core.errors import UnsupportedCombination
from slipstream.core.guesses import Guesses
from slipstream.core.ngram_sources import NgramSources
from slipstream.core.ngram_tree import Grown, TreeLimits, grow
from slipstream.core.profile import Profile
from slipstream.core.request import DraftFacts
from slipstream.core.sequence import TokenSequence
from slipstream.core.stop import TOO_DEAR
from slipstream.core.tree import EMPTY
from slipstream.core.types import Plan, Proposal, Shape, StopPolicy

NGRAM = DraftFacts(
    "ngram",
    Profile(shape=Shape.DYNAMIC, stop=StopPolicy.FIXED, step_cost=0.0, max_depth=8, max_nodes=15),
)
"""Facts of this draft."""


class NgramDraft:
    """A `Draft` that looks the latest tokens up in the session's own text and in `sources`."""

    def __init__(self, sources: NgramSources | None = None) -> None:
        self._sources = sources or NgramSources()
        self._guesses: dict[str, Guesses] = {}

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        """Propose the likeliest continuations: one of every position in a chain, else a tree."""
        if plan.shape not in (Shape.CHAIN, Shape.DYNAMIC):
            raise UnsupportedCombination(
                f"the n-gram draft makes chains and dynamic trees, not {plan.shape.value}"
            )
        session = sequence.session
        guesses = self._guesses.get(session.session_id)
        guesses = guesses or Guesses(self._sources, session.sampling)
        guesses.take(sequence)
        self._guesses[session.session_id] = guesses
        limits = TreeLimits(
            plan.max_depth,
            plan.max_nodes,
            plan.row_prices,
            stop_token_ids=session.stop_token_ids,
            is_chain=plan.shape is Shape.CHAIN,
        )
        grown = grow(EMPTY, (), guesses.after, limits)
        reason = _stopped_by(grown, limits)
        return Proposal(grown.tree, stopped_by=reason, sources=grown.sources)

    async def release(self, session_id: str) -> None:
        """Forget the session; unknown ids are fine."""
        self._guesses.pop(session_id, None)


def _stopped_by(grown: Grown, limits: TreeLimits) -> str:
    tree = grown.tree
    if not len(tree):
        return "none"
    if len(tree) == limits.max_nodes:
        return "nodes"
    if max(tree.depths()) == limits.max_depth:
        return "depth"
    if tree.is_chain() and tree.tokens[-1] in limits.stop_token_ids:
        return "eos"
    return TOO_DEAR if limits.prices else "none"

"""N-grams beside another draft: what the text repeats and what stores know joins its proposals.

Works over any `Draft`, wherever it lives, and only with `exact` verification, which takes any
tree. Knows token ids; neither models nor the wire.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from slipstream.core.copying import Copying
from slipstream.core.guesses import Guesses
from slipstream.core.ngram_sources import CopySource, NgramSources
from slipstream.core.ngram_tree import Grown, TreeLimits, grow
from slipstream.core.ports import Draft
from slipstream.core.sequence import TokenSequence
from slipstream.core.stop import TOO_DEAR
from slipstream.core.tree import EMPTY, ROOT, TokenTree
from slipstream.core.types import Plan, Proposal, Session

LOOKUP = "lookup"
"""`Proposal.stopped_by` where all was copied."""
GRAMMAR = "grammar"
"""The same where all was forced."""
_UNKNOWN = 0.6
"""Probability of a draft's node that comes without statistics."""


class LookupDraft:
    """A `Draft` that adds copies to another draft's proposals, and spares it the sure ones."""

    def __init__(self, draft: Draft, sources: NgramSources | None = None) -> None:
        self._draft = draft
        self._sources = sources or NgramSources()
        self._guesses: dict[str, Guesses] = {}

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`; `plan.lookup` is not passed on."""
        copying = plan.lookup
        if copying is None:
            return await self._draft.propose(sequence, plan)
        session = sequence.session
        guesses = self._guesses.get(session.session_id)
        if guesses is None:
            guesses = Guesses(self._sources, session.sampling)
            self._guesses[session.session_id] = guesses
        guesses.take(sequence)
        copies = _grown(guesses, session, plan, copying)
        if sum(copies.reaches) >= copying.alone:
            return _with_copies(Proposal(), copies)
        proposal = await self._draft.propose(sequence, replace(plan, lookup=None))
        proposal = replace(proposal, instead=copies.tree)
        return _with_copies(proposal, _grown(guesses, session, plan, copying, proposal))

    async def release(self, session_id: str) -> None:
        """See `core.ports.Draft.release`."""
        self._guesses.pop(session_id, None)
        await self._draft.release(session_id)


def _grown(
    guesses: Guesses,
    session: Session,
    plan: Plan,
    copying: Copying,
    proposal: Proposal | None = None,
) -> Grown:
    """Return the tree of copies, beside what a draft proposed where it did."""
    base = EMPTY if proposal is None else proposal.tree
    limits = TreeLimits(
        copying.max_depth,
        plan.max_nodes,
        plan.row_prices,
        copying.branch_price,
        session.stop_token_ids,
    )

    after = partial(guesses.after, shortest=copying.shortest)
    probabilities = guesses.of_draft(base, _probabilities(proposal)) if len(base) else ()
    return grow(base, probabilities, after, limits)


def _probabilities(proposal: Proposal | None) -> Sequence[float]:
    """Return how likely each of the draft's nodes follows its parent, as far as it says."""
    if proposal is None:
        return ()
    num_nodes = len(proposal.tree)
    if len(proposal.stats) != num_nodes:
        return (_UNKNOWN,) * num_nodes
    return tuple(stats.prob for stats in proposal.stats)


def _with_copies(proposal: Proposal, grown: Grown) -> Proposal:
    """Return the proposal with the nodes that were added to its tree.

    Statistics are the draft's, so a tree that has more nodes goes without.
    """
    if not grown.sources:
        return proposal
    stopped_by = proposal.stopped_by if _is_drafted(proposal) else LOOKUP
    return replace(
        proposal,
        tree=grown.tree,
        stats=(),
        stopped_by=stopped_by,
        num_copied=len(grown.sources),
        sources=grown.sources,
    )


def with_forced(proposal: Proposal, forced: tuple[int, ...]) -> Proposal:
    """`proposal` with a path of tokens that a grammar forces; what is in its tree is shared."""
    tree = proposal.tree
    shared = tree.matching(forced)
    added = forced[len(shared) :]
    if not added:
        return proposal
    first = shared[-1] if shared else ROOT
    below = range(len(tree), len(tree) + len(added) - 1)
    return replace(
        proposal,
        tree=TokenTree((*tree.tokens, *added), (*tree.parents, first, *below)),
        stats=(),
        stopped_by=proposal.stopped_by if _is_drafted(proposal) else GRAMMAR,
        num_copied=proposal.num_copied + len(added),
        sources=(*proposal.sources, *(CopySource.GRAMMAR,) * len(added)),
    )


def _is_drafted(proposal: Proposal) -> bool:
    """Whether what ended the drafting is the draft's to say."""
    return bool(len(proposal.tree)) or proposal.stopped_by == TOO_DEAR

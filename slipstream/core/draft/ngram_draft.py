"""Drafts from n-grams: the text's own repetitions and what stores know, alone or beside a model.

They have no distribution, so they serve `exact` verification, and no stop policy that asks for
confidence.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from slipstream.core.draft.ngram import NgramStore
from slipstream.core.draft.ngram_tree import Grown, Guesses, TreeLimits, grow
from slipstream.core.errors import UnsupportedCombination
from slipstream.core.ports import Draft
from slipstream.core.round import LATE, TOO_DEAR
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import EMPTY, ROOT, Copying, CopySource, TokenTree
from slipstream.core.types import Plan, Proposal, Session, Shape


class NgramDraft:
    """A `Draft` that looks the latest tokens up in the session's own text and in `sources`."""

    def __init__(self, store: NgramStore | None = None) -> None:
        self._store = store
        self._guesses: dict[str, Guesses] = {}

    def begin(self, session: Session, store: NgramStore | None) -> None:
        """Draft a session, or a parked one's next request, from a store of its own."""
        self._guesses[session.session_id] = Guesses(store, session.sampling)

    def guesses(self, sequence: TokenSequence) -> Guesses:
        session = sequence.session
        guesses = self._guesses.get(session.session_id) or Guesses(self._store, session.sampling)
        guesses.take(sequence)
        self._guesses[session.session_id] = guesses
        return guesses

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        """Propose the likeliest continuations: one of every position in a chain, else a tree."""
        if plan.shape not in (Shape.CHAIN, Shape.DYNAMIC):
            raise UnsupportedCombination(
                f"the n-gram draft makes chains and dynamic trees, not {plan.shape.value}"
            )
        session, guesses = sequence.session, self.guesses(sequence)
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


LOOKUP = "lookup"
"""`Proposal.stopped_by` where all was copied."""
GRAMMAR = "grammar"
"""`Proposal.stopped_by` where a grammar forced all tokens."""
_UNKNOWN = 0.6
"""Probability of a draft's node that comes without statistics."""


class LookupDraft:
    """A `Draft` that adds copies to another draft's proposals, and spares it the sure ones.

    Tokens of a store are proposed where the draft proposes nothing: else the draft is better.
    """

    def __init__(self, draft: Draft, store: NgramStore | None = None) -> None:
        self._draft, self._ngrams = draft, NgramDraft(store)

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`; `plan.lookup` is not passed on."""
        return await with_copies(self._ngrams, sequence, plan, self._draft.propose)

    async def release(self, session_id: str) -> None:
        await self._ngrams.release(session_id)
        await self._draft.release(session_id)


async def with_copies(
    ngrams: NgramDraft,
    sequence: TokenSequence,
    plan: Plan,
    propose: Callable[[TokenSequence, Plan], Awaitable[Proposal]],
) -> Proposal:
    """Return what `propose` does, with copies where `plan.lookup` has them, or sure copies alone.
    It gets no `plan.lookup`."""
    copying = plan.lookup
    if copying is None:
        return await propose(sequence, plan)
    session, guesses = sequence.session, ngrams.guesses(sequence)
    first = guesses.after((), shortest=copying.shortest, with_store=not plan.may_ask)
    if sum(guess.probability for guess in first) >= copying.alone:  # no tree covers more
        copies = _grown(guesses, session, plan, copying)
        if copies.covered >= copying.alone:
            return _with_copies(Proposal(), copies)
    proposal = await propose(sequence, replace(plan, lookup=None))
    if proposal.fallback == LATE and not plan.row_prices:
        return proposal  # a plain round; copies without a price may take far longer
    return _with_copies(proposal, _grown(guesses, session, plan, copying, proposal))


def _grown(
    guesses: Guesses,
    session: Session,
    plan: Plan,
    copying: Copying,
    proposal: Proposal | None = None,
) -> Grown:
    """Return the tree of copies, beside what a draft proposed where it did; else with a store's,
    unless a draft may still propose."""
    base = EMPTY if proposal is None else proposal.tree
    with_store = not len(base) if proposal is not None else not plan.may_ask
    limits = TreeLimits(copying.max_depth, plan.max_nodes, plan.row_prices, session.stop_token_ids)
    after = partial(guesses.after, shortest=copying.shortest, with_store=with_store)
    return grow(base, _probabilities(proposal), after, limits)


def _probabilities(proposal: Proposal | None) -> Sequence[float]:
    if proposal is None:
        return ()
    num_nodes = len(proposal.tree)
    if len(proposal.stats) != num_nodes:
        return (_UNKNOWN,) * num_nodes
    return tuple(stats.prob for stats in proposal.stats)


def _with_copies(proposal: Proposal, grown: Grown) -> Proposal:
    """Return the proposal with the nodes that were added, without the draft's statistics."""
    if not grown.sources:
        return proposal
    stopped_by = proposal.stopped_by if _is_drafted(proposal) else LOOKUP
    return replace(
        proposal, tree=grown.tree, stats=(), stopped_by=stopped_by, sources=grown.sources
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
        sources=(*proposal.sources, *(CopySource.GRAMMAR,) * len(added)),
    )


def _is_drafted(proposal: Proposal) -> bool:
    """Return whether the draft ended the drafting itself."""
    return bool(len(proposal.tree)) or proposal.stopped_by == TOO_DEAR

"""Prompt lookup beside another draft: what the text repeats is copied, the rest is drafted.

Works over any `Draft`, wherever it lives, and only with `exact` verification, which takes any
tree. Knows token ids; neither models nor the wire.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.core.copying import LONGEST_MATCH, Chances, Copying
from slipstream.core.history import num_same
from slipstream.core.ngram import Lookup
from slipstream.core.ports import Draft
from slipstream.core.row_costs import num_paying
from slipstream.core.stop import TOO_DEAR
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import Delta, Plan, Proposal, Session

LOOKUP = "lookup"
"""`Proposal.stopped_by` where all was copied."""
GRAMMAR = "grammar"
"""The same where all was forced."""
_MAX_N = 3


@dataclass(frozen=True, slots=True)
class _Copy:
    """Tokens copied to follow position `start` - 1, `match` tokens of which occurred before."""

    start: int = 0
    match: int = 0
    tokens: tuple[int, ...] = ()
    reaches: tuple[float, ...] = ()
    """Probabilities of the tokens to become final."""


class _Past:
    """A session's tokens, what its copies were worth, and how much of it the draft was told."""

    def __init__(self) -> None:
        self.lookup = Lookup(_MAX_N, 1)
        self.num_told = 0
        self._chances = Chances()
        self._copy = _Copy()

    def take(self, delta: Delta) -> None:
        """Take in what became final. Raises `SessionOutOfSync` as every draft does."""
        same = num_same(self.lookup.tokens, delta)
        self.lookup.truncate(same)
        self.lookup.append(delta.tokens[same - delta.start :])
        self.num_told = min(self.num_told, same)
        copy = self._copy
        if delta.end != copy.start or same < copy.start:
            if same == copy.start:
                self._chances.learn(copy.match, copy.tokens, self.lookup.tokens[copy.start :])
            self._copy = _Copy()

    def copy(self, session: Session, copying: Copying) -> _Copy:
        """What to copy in this round."""
        position = self.lookup.latest()
        match = 0 if position is None else self.lookup.match(position, LONGEST_MATCH)
        if position is None or match < copying.shortest:
            return _Copy()
        tokens = self.lookup.copy(position, copying.max_depth)
        for index, token in enumerate(tokens):
            if token in session.stop_token_ids:
                tokens = tokens[: index + 1]
                break
        reaches = self._chances.reaches(match, len(tokens))
        self._copy = _Copy(len(self.lookup.tokens), match, tuple(tokens), reaches)
        return self._copy


class LookupDraft:
    """A `Draft` that adds copies to another draft's proposals, and spares it the sure ones."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._pasts: dict[str, _Past] = {}

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`; what the plan says of lookup ends here.

        A request looks its text up in all of its rounds or in none, and begins with all of it.
        """
        past, copying = self._pasts.get(session.session_id), plan.lookup
        if past is None and copying is None:  # no past is kept of a text that nobody copies from
            return await self._draft.propose(session, delta, plan)
        past = past or _Past()
        past.take(delta)
        self._pasts[session.session_id] = past
        if copying is None:
            return await self._asked(past, session, plan)
        copy = past.copy(session, copying)
        alone = num_paying(copy.reaches, plan.row_prices)
        if sum(copy.reaches[:alone]) >= copying.alone:
            return with_copy(Proposal(), copy.tokens[:alone], max_nodes=plan.max_nodes)
        proposal = await self._asked(past, session, replace(plan, lookup=None))
        paying = _paying(copy, proposal.tree, plan.row_prices, copying.branch_price)
        return with_copy(proposal, paying, max_nodes=plan.max_nodes)

    async def release(self, session_id: str) -> None:
        """See `core.ports.Draft.release`."""
        self._pasts.pop(session_id, None)
        await self._draft.release(session_id)

    async def _asked(self, past: _Past, session: Session, plan: Plan) -> Proposal:
        """The draft's own proposal. It is told all that it missed while it was not asked."""
        tokens = past.lookup.tokens
        news, num_tokens = Delta.since(past.num_told, tokens), len(tokens)
        proposal = await self._draft.propose(session, news, plan)
        past.num_told = num_tokens
        return proposal


def _paying(
    copy: _Copy, tree: TokenTree, row_prices: Sequence[float], branch_price: float
) -> tuple[int, ...]:
    """The tokens of a copy that are worth their time beside what is proposed already."""
    shared = tree.matching(copy.tokens)
    prices = list(row_prices[len(tree) :])
    if len(prices) > 1 and tree.children(shared[-1] if shared else ROOT):
        prices[1] += branch_price  # from the second token on, it is a path of its own
    return copy.tokens[: len(shared) + num_paying(copy.reaches[len(shared) :], prices)]


def with_copy(proposal: Proposal, copy: tuple[int, ...], *, max_nodes: int) -> Proposal:
    """`proposal` with a copied path in its tree, as far as `max_nodes` has room.

    Tokens that the draft proposed alike are shared; the others come last. Statistics are the
    draft's, so a tree that has more nodes goes without.
    """
    room = max(max_nodes - len(proposal.tree), 0)
    return _with_path(proposal, copy, room=room, stopped_by=LOOKUP)


def with_forced(proposal: Proposal, forced: tuple[int, ...]) -> Proposal:
    """`proposal` with a path of tokens that a grammar forces, joined as a copied one is."""
    return _with_path(proposal, forced, room=len(forced), stopped_by=GRAMMAR)


def _with_path(
    proposal: Proposal, path: tuple[int, ...], *, room: int, stopped_by: str
) -> Proposal:
    tree = proposal.tree
    shared = tree.matching(path)
    added = path[len(shared) : len(shared) + room]
    if not added:
        return proposal
    first = shared[-1] if shared else ROOT
    below = range(len(tree), len(tree) + len(added) - 1)
    whole = TokenTree((*tree.tokens, *added), (*tree.parents, first, *below))
    is_draft_s = len(tree) or proposal.stopped_by == TOO_DEAR
    stopped_by = proposal.stopped_by if is_draft_s else stopped_by
    num_copied = proposal.num_copied + len(added)
    return replace(proposal, tree=whole, stats=(), stopped_by=stopped_by, num_copied=num_copied)

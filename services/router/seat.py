"""The draft as the loop sees it: one that may go away at any time, and come back.

A request never fails because of its draft. Whatever goes wrong makes the round a plain one that
says why, and the draft, or another one, is asked again soon. Drafts are untrusted: a proposal that
can't be verified counts as a failure. Knows neither wire nor placement.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Protocol

from slipstream.core import errors
from slipstream.core.errors import InvalidRequest, SlipstreamError
from slipstream.core.history import apply_delta
from slipstream.core.proposal_check import check_proposal
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import Delta, Plan, Proposal, Session
from slipstream.router.backoff import Backoffs

NO_DRAFT = "no draft"
NO_KEYS = "no keys"
"""The draft lacks the target's newest keys and values: it can't reach them, or is too slow."""
_LOG = logging.getLogger("slipstream.router")
# Few words, so that fallbacks can be counted by them. The more special class comes first.
_REASONS: tuple[tuple[type[SlipstreamError], str], ...] = (
    (errors.DeadlineExceeded, "timeout"),
    (errors.Unavailable, "unavailable"),
    (errors.HandshakeError, "mismatch"),
    (errors.ModelMismatch, "mismatch"),
    (errors.CapacityError, "full"),
    (errors.InvalidRequest, "invalid"),
    (errors.SessionError, "session"),
)


class HeldDraft(Protocol):
    """A draft that a request has for itself, until it drops it."""

    @property
    def name(self) -> str:
        """Where it is."""
        ...

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`."""
        ...

    async def park(self, ttl_s: float) -> None:
        """Have the session kept for its next turn, and end."""
        ...

    async def drop(self) -> None:
        """End, and free everything. Again is fine."""
        ...


Choose = Callable[[Collection[str]], HeldDraft | None]
"""A draft that is not among the names given; None when there is none."""


@dataclass(frozen=True, slots=True)
class Failures:
    """Who is not to be asked for a while: as this request sees it, and as all requests do."""

    own: Backoffs
    shared: Backoffs

    def resting(self) -> frozenset[str]:
        """Those that failed lately."""
        return self.own.resting() | self.shared.resting()

    def failed(self, name: str, error: SlipstreamError) -> None:
        """Others are told of a draft that does not answer, not of what it made of one request."""
        self.own.failed(name)
        if isinstance(error, (errors.Unavailable, errors.DeadlineExceeded)):
            self.shared.failed(name)

    def succeeded(self, name: str) -> None:
        """It answers again."""
        self.own.succeeded(name)
        self.shared.succeeded(name)


class DraftSeat:
    """`core.ports.Draft` for one request, whoever sits on it."""

    def __init__(
        self,
        choose: Choose,
        failures: Failures,
        *,
        vocab_size: int,
        remaining: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`remaining` is the request's own time in seconds, None being endless."""
        self._choose = choose
        self._remaining = remaining
        self._failures = failures
        self._vocab_size = vocab_size
        self._tokens: list[int] = []
        self._held: HeldDraft | None = None
        self._num_told = 0
        """Leading tokens that the held draft was told."""
        self._reason = NO_DRAFT

    @property
    def holder(self) -> str | None:
        """The name of the draft that is held."""
        return None if self._held is None else self._held.name

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """A draft's proposal, or an empty one that says in `fallback` why there is none."""
        self._tokens, num_same = apply_delta(self._tokens, delta)
        self._num_told = min(self._num_told, num_same)
        held = self._held or self._choose(self._failures.resting())
        if held is None:
            return _without_draft(plan, Proposal(fallback=self._reason))
        self._held = held
        news = Delta.since(self._num_told, self._tokens)
        try:
            proposal = await held.propose(session, news, plan)
            _check(session, plan, proposal, vocab_size=self._vocab_size)
        except SlipstreamError as error:
            await self._lose(held, error)
            return _without_draft(plan, Proposal(fallback=self._reason))
        self._num_told = len(self._tokens)
        self._failures.succeeded(held.name)
        self._reason = NO_DRAFT
        if not len(proposal.tree):
            lost = NO_KEYS if proposal.stopped_by == "lag" else None
            return _without_draft(plan, replace(proposal, fallback=lost))
        return proposal

    async def release(self, session_id: str) -> None:
        """See `core.ports.Draft.release`."""
        await self._drop()

    async def park(self, ttl_s: float) -> str | None:
        """Have the session kept; the name of who keeps it, None when nobody does."""
        held, self._held = self._held, None
        if held is None:
            return None
        try:
            await held.park(ttl_s)
        except SlipstreamError as error:
            _LOG.warning("%s did not park a session: %s", held.name, error)
            return None
        finally:
            await held.drop()
        return held.name

    async def _lose(self, held: HeldDraft, error: SlipstreamError) -> None:
        self._reason = reason_of(error)
        if not self._is_over(held):
            self._failures.failed(held.name, error)
            _LOG.warning("a request goes on without the draft %s: %s", held.name, error)
        await self._drop()

    def _is_over(self, held: HeldDraft) -> bool:
        """Whether the request itself has ended: its time is up, or the draft was let go."""
        remaining = self._remaining()
        return self._held is not held or (remaining is not None and remaining <= 0)

    async def _drop(self) -> None:
        held, self._held = self._held, None
        self._num_told = 0
        if held is not None:
            await held.drop()


def reason_of(error: SlipstreamError) -> str:
    """In a word or two, why no draft answered."""
    return next((word for kind, word in _REASONS if isinstance(error, kind)), "failed")


def _check(session: Session, plan: Plan, proposal: Proposal, *, vocab_size: int) -> None:
    tree = proposal.tree
    check_proposal(session, proposal, vocab_size=vocab_size, roots=plan.roots)
    if len(tree) > plan.max_nodes:
        raise InvalidRequest(
            f"the proposal has {len(tree)} nodes, above the {plan.max_nodes} asked"
        )
    depth = max(tree.depths(), default=0)
    if depth > plan.max_depth:
        raise InvalidRequest(f"the proposal is {depth} deep, above the {plan.max_depth} asked")


def _without_draft(plan: Plan, proposal: Proposal) -> Proposal:
    """The empty proposal; under target-initialised roots the roots alone.

    A slot whose roots are drawn can't be decoded plainly: nothing would become final. The roots
    need no draft, and one of them stays.
    """
    roots = TokenTree(plan.roots, (ROOT,) * len(plan.roots))
    return replace(proposal, tree=roots, stats=(), laws=())

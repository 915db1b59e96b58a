"""The draft as the loop sees it: one that may go away at any time, and come back.

A request never fails because of its draft. Whatever goes wrong makes the round a plain one that
says why, and the draft, or another one, is asked again soon. Drafts are untrusted: a proposal that
can't be verified counts as a failure. Knows neither wire nor placement.
"""

import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Protocol

from slipstream.core import errors
from slipstream.core.errors import InvalidRequest, SlipstreamError
from slipstream.core.history import apply_delta
from slipstream.core.proposal_check import check_proposal
from slipstream.core.stop import CONTEXT
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import Delta, Plan, Proposal, Session
from slipstream.router.breaker import Attempt, Breakers

NO_DRAFT = "no draft"
NO_KEYS = "no keys"
"""The draft lacks the target's newest keys and values: it can't reach them, or is too slow."""
_LACKING = {"lag": NO_KEYS, CONTEXT: CONTEXT}
"""Why a draft could propose nothing at all, by what ended its drafting."""
_LOG = logging.getLogger("slipstream.router")
_OF_THE_REPLICA = (
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.InternalError,
    errors.ModelError,
)
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

    own: Breakers
    shared: Breakers

    def resting(self) -> frozenset[str]:
        """Those that failed lately."""
        return self.own.resting() | self.shared.resting()

    def begin(self, name: str) -> "Try":
        """The request asks it from now on."""
        return Try(self.own.begin(name), self.shared.begin(name))


@dataclass(frozen=True, slots=True)
class Try:
    """A request's use of a replica, as it sees it itself and as all requests do."""

    own: Attempt
    shared: Attempt

    def failed(self, error: Exception) -> None:
        """Count a failure. For all requests only where it says more of the replica than of this
        request: it does not answer, or fails inside."""
        self.own.failed()
        if isinstance(error, _OF_THE_REPLICA):
            self.shared.failed()

    def succeeded(self) -> None:
        """It has answered."""
        self.own.succeeded()
        self.shared.succeeded()

    def end(self) -> None:
        """The request asks it no more."""
        self.own.end()
        self.shared.end()


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
        self._try: Try | None = None
        """The use of the one that is held."""
        self._num_told = 0
        """Leading tokens that the held draft was told."""
        self._reason = NO_DRAFT
        self._logged: set[tuple[str, type[Exception]]] = set()
        """Failures that the log has: a draft that keeps failing is tried again and again."""

    @property
    def holder(self) -> str | None:
        """The name of the draft that is held."""
        return None if self._held is None else self._held.name

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """A draft's proposal, or an empty one that says in `fallback` why there is none."""
        self._tokens, num_same = apply_delta(self._tokens, delta)
        self._num_told = min(self._num_told, num_same)
        held = self._held or (None if self._reason == CONTEXT else self._take())
        if held is None:
            return _without_draft(plan, Proposal(fallback=self._reason))
        news = Delta.since(self._num_told, self._tokens)
        try:
            proposal = await held.propose(session, news, plan)
            _check(session, plan, proposal, vocab_size=self._vocab_size)
        except Exception as error:  # whatever comes of reading what it says
            await self._lose(held, error)
            return _without_draft(plan, Proposal(fallback=self._reason))
        self._num_told = len(self._tokens)
        if self._try is not None:
            self._try.succeeded()
        self._reason = NO_DRAFT
        if not len(proposal.tree):
            lacking = _LACKING.get(proposal.stopped_by)
            if lacking == CONTEXT:  # of no more use to the request, whose tokens only grow
                self._reason = CONTEXT
                await self._drop()
            return _without_draft(plan, replace(proposal, fallback=lacking))
        return proposal

    async def release(self, session_id: str) -> None:
        """See `core.ports.Draft.release`."""
        await self._drop()

    async def park(self, ttl_s: float) -> str | None:
        """Have the session kept; the name of who keeps it, None when nobody does."""
        held = self._let_go()
        if held is None:
            return None
        try:
            await held.park(ttl_s)
        except Exception as error:  # whatever comes of reading what it says
            _LOG.warning("%s did not park a session: %s", held.name, error)
            return None
        finally:
            await held.drop()
        return held.name

    def _take(self) -> HeldDraft | None:
        held = self._held = self._choose(self._failures.resting())
        self._try = None if held is None else self._failures.begin(held.name)
        return held

    def _let_go(self) -> HeldDraft | None:
        held, self._held = self._held, None
        if self._try is not None:
            self._try.end()
        return held

    async def _lose(self, held: HeldDraft, error: Exception) -> None:
        self._reason = reason_of(error)
        if not self._is_over(held) and self._try is not None:
            self._try.failed(error)
            if (failure := (held.name, type(error))) not in self._logged:
                self._logged.add(failure)
                _LOG.warning("a request goes on without the draft %s: %s", held.name, error)
        await self._drop()

    def _is_over(self, held: HeldDraft) -> bool:
        """Whether the request itself has ended: its time is up, or the draft was let go."""
        remaining = self._remaining()
        return self._held is not held or (remaining is not None and remaining <= 0)

    async def _drop(self) -> None:
        held = self._let_go()
        self._num_told = 0
        if held is not None:
            await held.drop()


def reason_of(error: Exception) -> str:
    """In a word or two, why no draft answered."""
    return next((word for kind, word in _REASONS if isinstance(error, kind)), "failed")


def _check(session: Session, plan: Plan, proposal: Proposal, *, vocab_size: int) -> None:
    tree = proposal.tree
    if len(tree) > plan.max_nodes:
        raise InvalidRequest(
            f"the proposal has {len(tree)} nodes, above the {plan.max_nodes} asked"
        )
    depth = max(tree.depths(), default=0)
    if depth > plan.max_depth:
        raise InvalidRequest(f"the proposal is {depth} deep, above the {plan.max_depth} asked")
    check_proposal(session, proposal, vocab_size=vocab_size, roots=plan.roots)
    for stats in proposal.stats:
        numbers = (stats.top_prob, stats.prob, stats.entropy, stats.score or 0.0)
        if not all(map(math.isfinite, numbers)):
            raise InvalidRequest(f"a node's statistics are {numbers}, which are no numbers")


def _without_draft(plan: Plan, proposal: Proposal) -> Proposal:
    """The empty proposal; under target-initialised roots the roots alone.

    A slot whose roots are drawn can't be decoded plainly: nothing would become final. The roots
    need no draft, and one of them stays.
    """
    roots = TokenTree(plan.roots, (ROOT,) * len(plan.roots))
    return replace(proposal, tree=roots, stats=(), laws=())

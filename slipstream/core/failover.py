"""The draft and the target of a request: each may be lost, and another replica goes on.

A request never fails because of its draft. A failure makes the round a plain one that carries the
reason, and the same draft or another one is used again soon. Drafts are untrusted: a proposal that
can't be verified counts as a failure. Between two rounds a request leaves a crowded draft for
another one, which reads the text and the target's keys and values anew.

The target that follows a lost one gets all final tokens and the round that was lost, and returns
the same tokens.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace

from slipstream.core import errors
from slipstream.core.breaker import FailoverProxy, InUse
from slipstream.core.errors import CapacityError, SlipstreamError, check_fits
from slipstream.core.ports import Draft, Target
from slipstream.core.round import CONTEXT
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import Plan, Proposal, Verdict, Verification
from slipstream.core.verify.port_checks import check_proposal

_LOG = logging.getLogger("slipstream.router")
NO_DRAFT = "no draft"
NO_KEYS = "no keys"
"""The draft lacks the target's newest keys and values: it can't reach them, or is too slow."""
_LACKING = {"lag": NO_KEYS, CONTEXT: CONTEXT}
"""Reasons of an empty proposal, by what ended its drafting."""
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
Leave = Callable[[str, Collection[str]], bool]
"""Return whether to leave the draft of this name for one that is not among the names given."""
LEAVE_AFTER, LEAVE_SHARE = 24, 40
"""Tokens that become final between two checks of that: at least so many, and one for every so many
tokens that the next draft would have to read."""


@dataclass(eq=False, kw_only=True)
class FailoverDraft(FailoverProxy[Draft]):
    """`core.ports.Draft` of one request, over one replica after another."""

    vocab_size: int
    leave: Leave = lambda name, excluded: False
    _reason: str = NO_DRAFT
    _num_checked: int = 0
    """Tokens when it was checked whether to leave the draft, or the draft was taken."""
    _logged: set[tuple[str, type[Exception]]] = field(default_factory=set)
    """Failures that were logged: a draft that keeps failing is tried again and again."""

    @property
    def used(self) -> str | None:
        """The name of the draft in use."""
        return None if self._used is None else self._used.name

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        """Return a draft's proposal, or an empty one whose `fallback` is the reason."""
        session, self._session_id = sequence.session, sequence.session_id
        used = await self._current(sequence)
        if used is None:
            return _without_draft(plan, Proposal(fallback=self._reason))
        try:
            proposal = await used.port.propose(sequence, plan)
            check_size(proposal, plan.max_nodes, plan.max_depth)
            check_proposal(session, proposal, vocab_size=self.vocab_size, roots=plan.roots)
        except Exception as error:  # any failure of reading its answer
            await self._lose(used, error)
            return _without_draft(plan, Proposal(fallback=self._reason))
        if proposal.fallback is not None:  # neither a success nor a failure so far
            return _without_draft(plan, proposal)
        self._succeeded()
        self._reason = NO_DRAFT
        if not len(proposal.tree):
            lacks = lacking(proposal)
            if lacks == CONTEXT:  # of no more use to the request, whose tokens only grow
                self._reason = CONTEXT
                await self._end(self._let_go())
            return _without_draft(plan, replace(proposal, fallback=lacks))
        return proposal

    async def _current(self, sequence: TokenSequence) -> InUse[Draft] | None:
        used = self._used
        if used is None:
            self._num_checked = len(sequence)
            return None if self._reason == CONTEXT else self._take()
        num_tokens = len(sequence) - self._num_checked
        if num_tokens < max(LEAVE_AFTER, len(sequence) / LEAVE_SHARE):
            return used
        self._num_checked = len(sequence)
        if not self.leave(used.name, self._resting()):
            return used
        await self._end(self._let_go())
        return self._take(used.name)

    def _take(self, *left: str) -> InUse[Draft] | None:
        self._use(self.choose(self._resting().union(left)))
        return self._used

    async def _lose(self, used: InUse[Draft], error: Exception) -> None:
        self._reason = reason_of(error)
        if not self._is_over(used):
            self._failed(error)
            if (failure := (used.name, type(error))) not in self._logged:
                self._logged.add(failure)
                _LOG.warning("a request goes on without the draft %s: %s", used.name, error)
        await self._end(self._let_go())

    async def _end(self, used: InUse[Draft] | None) -> None:
        try:
            await super()._end(used)
        except Exception:  # the request goes on, or has ended well
            name = "" if used is None else used.name
            _LOG.exception("the draft %s did not free session %s", name, self._session_id)


def lacking(proposal: Proposal) -> str | None:
    """Return what an empty proposal's draft lacks, in a word or two; None for any other one."""
    return None if len(proposal.tree) else _LACKING.get(proposal.stopped_by)


def reason_of(error: Exception) -> str:
    """Return a word or two for why no draft answered."""
    return next((word for kind, word in _REASONS if isinstance(error, kind)), "failed")


def check_size(proposal: Proposal, max_nodes: int, max_depth: int) -> None:
    """Raise `InvalidRequest` for a tree that is larger than its plan."""
    tree = proposal.tree
    check_fits("the proposal has", len(tree), "nodes", max_nodes)
    check_fits("the proposal has", max(tree.depths(), default=0), "levels", max_depth)


def _without_draft(plan: Plan, proposal: Proposal) -> Proposal:
    """Return the empty proposal; under target-initialised roots the roots alone.

    A position whose roots are drawn can't be decoded plainly: nothing would become final. The
    roots need no draft, and one of them stays.
    """
    roots = TokenTree(plan.roots, (ROOT,) * len(plan.roots))
    return replace(proposal, tree=roots, stats=(), distributions=())


_LOST = (
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.HandshakeError,
    errors.InternalError,
    errors.SessionOutOfSync,
)
"""Errors that say more of the replica than of the request: another replica may do better."""
MAX_LOSSES = 32
"""Losses of one request: it may be what the replicas die of."""
MAX_INTERNAL_ERRORS = 4
"""Internal errors of one request, which may cause them. Fewer than a target endures in a row."""


@dataclass(eq=False, kw_only=True)
class FailoverTarget(FailoverProxy[Target]):
    """`core.ports.Target` of one request, over one replica after another."""

    first: InUse[Target]
    pause: Callable[[], Awaitable[None]]
    """Wait a little: there may be other targets then."""
    on_loss: Callable[[], None]
    """Called for every target that is lost."""
    wait_s: float = 30.0
    """Longest time that a request waits for a target when all are lost."""
    _full: set[str] = field(default_factory=set)
    """Targets without room for the round that is verified."""
    _num_losses: int = 0
    _num_internal_errors: int = 0

    def __post_init__(self) -> None:
        self._use(self.first)

    async def verify(self, sequence: TokenSequence, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`. Raises the last replica's error without another one."""
        self._session_id = sequence.session_id
        while True:
            used = self._used
            assert used is not None
            try:
                verdict = await used.port.verify(sequence, proposal)
            except (*_LOST, CapacityError) as error:
                await self._replace(used, error)
                if sequence.session.verification is Verification.TARGET_INIT:
                    proposal = Proposal()  # roots that the lost one drew are none of the next one's
                continue
            self._full.clear()
            self._succeeded()
            return verdict

    async def _replace(self, lost: InUse[Target], error: SlipstreamError) -> None:
        if self._is_over(lost):
            raise error
        self._failed(error)
        await self._end(self._let_go())
        self._num_losses += 1
        self._num_internal_errors += isinstance(error, errors.InternalError)
        if self._num_losses > MAX_LOSSES or self._num_internal_errors >= MAX_INTERNAL_ERRORS:
            raise error
        if isinstance(error, CapacityError):
            # A full replica is alive: waiting for it is the caller's choice, trying each is ours.
            self._full.add(lost.name)
            found = self.choose(self._resting() | self._full)
        else:
            found = await self._found()
        if found is None:
            raise error
        if not isinstance(error, CapacityError):
            self.on_loss()
            _LOG.warning("target %s is lost, %s goes on: %s", lost.name, found.name, error)
        self._use(found)

    async def _found(self) -> InUse[Target] | None:
        """Return another target as soon as there is one; None when there was none for long."""
        remaining_s = self.remaining()
        wait_s = self.wait_s
        try:
            async with asyncio.timeout(wait_s if remaining_s is None else min(wait_s, remaining_s)):
                while (found := self.choose(self._resting())) is None:
                    await self.pause()
        except TimeoutError:
            return None
        return found

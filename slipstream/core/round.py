"""One round of a request: its plan, what was proposed, what became final, and when."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from slipstream.core.tree import CopySource
from slipstream.core.types import Plan, Proposal, Verdict

Clock = Callable[[], float]
"""Returns seconds since some moment."""
Times = tuple[float, float]
"""Start and end, in seconds of a clock."""


def seconds_of(times: Times | None) -> float:
    """Return the time from start to end; 0 of what never began."""
    return 0.0 if times is None else times[1] - times[0]


CONTEXT = "context"
"""End at the limit of the draft's own context."""
NO_ROOM = "memory"
"""End of a session that the draft has no room for now."""
TOO_DEAR = "load"
"""End where no further token is worth its time."""
LATE = "late"
"""`Proposal.fallback` where a proposal takes longer than it is worth, and may still come."""
STOP_REASONS = (
    *("depth", "nodes", "policy", TOO_DEAR, "eos", "lag", CONTEXT, NO_ROOM),
    *("lookup", "grammar", "none"),
)
"""All that may end the drafting of a proposal: the values of `Proposal.stopped_by`."""

PREFILL, SPECULATIVE, PLAIN = "prefill", "speculative", "plain"
NO_PLAN = Plan(max_depth=0, max_nodes=0)
NO_PROPOSAL, NO_VERDICT = Proposal(), Verdict((), 0)
"""A round whose verification has not ended."""


class Port(StrEnum):
    """The two calls of a round."""

    PROPOSE = "draft.propose"
    VERIFY = "target.verify"


@dataclass(slots=True)
class Round:
    """One propose and one verify, with times of a clock in seconds. Round 0 proposes nothing: it
    is the prefill. The loop fills a round in; it is whole once the loop yields it."""

    index: int
    start_s: float
    plan: Plan = NO_PLAN
    proposal: Proposal = NO_PROPOSAL
    verdict: Verdict = NO_VERDICT
    proposing: Times | None = None
    verifying: Times | None = None
    error: BaseException | None = None
    """Exception that ended the round early."""

    @property
    def depth(self) -> int:
        """The longest path of draft tokens that could have been accepted."""
        return max(self.proposal.tree.depths(), default=0) - min(self._num_roots, 1)

    @property
    def num_nodes(self) -> int:
        """Draft tokens to verify."""
        return len(self.proposal.tree) - self._num_roots

    @property
    def num_accepted(self) -> int:
        """Draft tokens that became final."""
        return max(self.verdict.num_accepted - min(self._num_roots, 1), 0)

    @property
    def accepted_sources(self) -> tuple[CopySource, ...]:
        """Sources of the accepted tokens that no model proposed."""
        proposal, verdict = self.proposal, self.verdict
        if not proposal.sources:
            return ()
        num_modelled = len(proposal.tree) - len(proposal.sources)
        path = proposal.tree.matching(verdict.tokens[: verdict.num_accepted])
        return tuple(proposal.sources[node - num_modelled] for node in path if node >= num_modelled)

    @property
    def seconds(self) -> float:
        """Time from its beginning to its verdict."""
        return 0.0 if self.verifying is None else self.verifying[1] - self.start_s

    @property
    def proposing_s(self) -> float:
        """Time of the proposal; 0 without one."""
        return seconds_of(self.proposing)

    @property
    def verifying_s(self) -> float:
        return seconds_of(self.verifying)

    @property
    def kind(self) -> str:
        """Return `PREFILL`, `SPECULATIVE` or `PLAIN`."""
        if self.index == 0:
            return PREFILL
        return SPECULATIVE if self.num_nodes else PLAIN

    def take_proposal(self) -> None:
        """Take in what the target requested itself, and when, if it did."""
        verdict = self.verdict
        if verdict.proposal is None or self.verifying is None:
            return
        start_s, end_s = self.start_s, self.verifying[1]
        middle_s = min(start_s + verdict.proposing_s, end_s)
        self.proposal, self.verifying = verdict.proposal, (middle_s, end_s)
        self.proposing = (start_s, middle_s) if verdict.proposing_s else None

    @property
    def _num_roots(self) -> int:
        """Nodes of the tree that the target drew itself: target-initialised roots."""
        return len(self.plan.roots) if len(self.proposal.tree) else 0


class RoundObserver(Protocol):
    """Instrumentation of a request's rounds."""

    def calling(self, round_: Round, port: Port) -> AbstractContextManager[object]:
        """Return the context in which a port is called, for a span that engines continue."""

    def record(self, round_: Round) -> None:
        """Record a round that has its verdict."""


class PortCall:
    """Context of a call: notes in the round when it began and returned, and what it raised."""

    def __init__(
        self, round_: Round, port: Port, clock: Clock, observer: RoundObserver | None
    ) -> None:
        self._round, self._port, self._clock = round_, port, clock
        self._span = None if observer is None else observer.calling(round_, port)
        self._start_s = clock()

    def __enter__(self) -> None:
        if self._span is not None:
            self._span.__enter__()

    def __exit__(self, *raised: Any) -> None:
        if self._span is not None:
            self._span.__exit__(*raised)
        self._round.error, times = raised[1], (self._start_s, self._clock())
        if self._port is Port.PROPOSE:
            self._round.proposing = times
        else:
            self._round.verifying = times

"""A request to a draft's engine: one proposal of a sequence."""

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Proposal
from slipstream.drafting.reader import CandidateRows, Candidates
from slipstream.engine.thread import Done
from slipstream.models.scorer import Ask, ChainRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DraftStep:
    """The scores that a session needs next, and how candidates are read from their rows.

    `num_tokens` is how many it computes. Without `rows` none are scored, but for a
    `ChainRequest`, which has its candidates already.
    """

    ask: Ask | ChainRequest
    num_tokens: int
    rows: CandidateRows | None


Steps = Generator[DraftStep, list[Candidates], T]
"""Yields steps and is sent the candidates of each row."""
ProposalSteps = Steps[Proposal]


@dataclass(eq=False, slots=True)
class DraftRequest:
    """A proposal, from its arrival until it is there or has failed.

    The engine begins it with a grower, whose steps it computes together with those of others.
    `answer` is set where a caller on an event loop waits for it.
    """

    sequence: TokenSequence
    plan: Plan
    check: Callable[[], None] = lambda: None
    """Called on the engine's thread before it begins; may raise."""
    answer: "asyncio.Future[Done[Proposal]] | None" = None
    arrived: float = 0.0
    began: float = 0.0
    is_ahead: bool = False
    """Whether the tree of the session's last proposal goes on, rather than a new one begins."""
    is_dropped: bool = False
    """No caller waits for it any more. Set on the event loop."""
    grower: ProposalSteps | None = None
    step: DraftStep | None = None
    """The step that it waits for, from its begin to its end."""
    proposal: Proposal | None = None
    error: Exception | None = None

    @property
    def session_id(self) -> str:
        """Id of the session."""
        return self.sequence.session_id

    @property
    def is_done(self) -> bool:
        """True once there is a result."""
        return self.proposal is not None or self.error is not None

    @property
    def num_tokens(self) -> int:
        """Most tokens that its next step computes."""
        return 0 if self.step is None else self.step.num_tokens

    def begin(self, grower: ProposalSteps) -> None:
        """Go up to the first step, if there is any. Raises nothing."""
        self.grower = grower
        self._advance(None)

    def take(self, found: list[Candidates] | Exception) -> None:
        """Go on with what its step has found, or end with the step's error."""
        if isinstance(found, Exception):
            self.fail(found)
        else:
            self._advance(found)

    def fail(self, error: Exception) -> None:
        """End without a proposal. Nothing changes where it is done."""
        if not self.is_done:
            self.step, self.error = None, error
            if self.grower is not None:
                self.grower.close()

    def result(self) -> Proposal:
        """Return the proposal. Raises the error that there is instead."""
        if self.error is not None:
            raise self.error
        assert self.proposal is not None, "the request is not done"
        return self.proposal

    def done(self, ended: float) -> Done[Proposal] | Exception:
        """Return the proposal with its times, or the error that there is instead."""
        if self.error is not None:
            return self.error
        return Done(self.result(), self.began - self.arrived, ended - self.began)

    def _advance(self, found: list[Candidates] | None) -> None:
        assert self.grower is not None
        self.step = None
        try:
            # A generator begins when None is sent.
            self.step = self.grower.send(found)  # type: ignore[arg-type]
        except StopIteration as done:
            self.proposal = done.value
        except Exception as error:
            self.error = error

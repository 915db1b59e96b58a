"""Verifications under way, on the engine's thread: who has begun, waits for memory, is next.

One `run` takes in what has arrived and makes one step of it. Knows neither the event loop nor who
waits for the answers.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.errors import InternalError, NoRoom
from slipstream.core.timing import Clock
from slipstream.core.types import Delta, Proposal, Session, Verdict
from slipstream.engine.thread import internal_errors
from slipstream.target.engine import LocalTarget
from slipstream.target.schedule import Schedule
from slipstream.target.verification import Share, Verification

_LOG = logging.getLogger("slipstream.target")


@dataclass(frozen=True, slots=True)
class Step:
    """A forward: how large it was, who shared it, when it began and what it took."""

    num_rows: int
    num_sessions: int
    began: float
    seconds: float
    has_failed: bool = False
    """Whether all who shared it got its error instead of a verdict."""

    @property
    def ended(self) -> float:
        """When it was over."""
        return self.began + self.seconds


@dataclass(eq=False, slots=True)
class Work:
    """One verification, from its arrival to its answer: a verdict, or an error."""

    session: Session
    delta: Delta
    proposal: Proposal
    is_dropped: bool = False
    """Nobody waits for it any more. Set from elsewhere."""
    verification: Verification | None = None
    began: float | None = None
    """When its first step did."""
    engine_s: float = 0.0
    """Time of its steps."""
    step: Step | None = None
    """The last of them."""
    verdict: Verdict | None = None
    error: Exception | None = None

    @property
    def session_id(self) -> str:
        """There is at most one of a session."""
        return self.session.session_id


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of one `run`: the works that are done, those that wait for memory, and the step,
    if there was anything to compute."""

    done: Sequence[Work]
    blocked: frozenset[Work]
    step: Step | None = None


class Works:
    """The works of one engine."""

    def __init__(
        self, engine: LocalTarget, schedule: Schedule[Work], *, max_waiting: int, clock: Clock
    ) -> None:
        """Up to `max_waiting` works wait for memory; more are refused."""
        self._engine = engine
        self._schedule = schedule
        self._max_waiting = max_waiting
        self._clock = clock
        self._active: set[Work] = set()
        self._blocked: list[Work] = []
        self._holding: set[str] = set()
        """Sessions that may hold memory: they began, and have not left."""

    def run(self, arrivals: deque[Work], *, has_room: bool, has_company: bool) -> Ran:
        """Begin what has arrived, and what waited for memory if there `has_room`; then one step."""
        self._drop()
        done: list[Work] = []
        if has_room:
            self._retry(done)
        while arrivals:
            work = arrivals.popleft()
            if not work.is_dropped:
                self._arrive(work, done)
        while self._blocked and self._is_stuck():
            done.append(self._blocked.pop(0))
            self._retry(done)
        step = self._step(done, has_company=has_company)
        return Ran(done, frozenset(self._blocked), step)

    def leave(self, session_id: str) -> None:
        """A session has given its memory back."""
        self._holding.discard(session_id)

    def _drop(self) -> None:
        for work in [work for work in self._active if work.is_dropped]:
            self._active.discard(work)
            self._schedule.remove(work)
        self._blocked = [work for work in self._blocked if not work.is_dropped]

    def _arrive(self, work: Work, done: list[Work]) -> None:
        is_next = work.session_id in self._holding or not self._blocked
        if is_next and self._begin(work, done):
            return
        if len(self._blocked) < self._max_waiting:
            self._blocked.append(work)
            return
        work.error = NoRoom(
            f"{self._max_waiting} requests wait for memory already, the limit; try again later"
        )
        done.append(work)

    def _retry(self, done: list[Work]) -> None:
        """Begin what waits for memory, in order, until one has to go on waiting."""
        while self._blocked and self._begin(self._blocked[0], done):
            del self._blocked[0]

    def _is_stuck(self) -> bool:
        """Whether nobody is left who could give memory back."""
        return not self._active and self._holding <= {work.session_id for work in self._blocked}

    def _begin(self, work: Work, done: list[Work]) -> bool:
        """Whether it has begun or failed; otherwise it has to wait for memory."""
        try:
            begun = self._engine.begin(work.session, work.delta, work.proposal)
        except NoRoom as error:
            work.error = error
            return False
        except Exception as error:
            work.error = error
            done.append(work)
            return True
        work.verification, work.error = begun, None
        self._holding.add(work.session_id)
        self._active.add(work)
        self._schedule.add(work, num_pending=begun.num_pending, num_nodes=begun.num_nodes)
        return True

    def _step(self, done: list[Work], *, has_company: bool) -> Step | None:
        """One forward, if there is anything to compute; an error is that of all who took part."""
        portions = self._schedule.next(has_company=has_company)
        if not portions:
            return None
        works = [portion.key for portion in portions]
        shares = [Share(_begun(portion.key), portion.num_pending) for portion in portions]
        num_rows = sum(share.num_rows for share in shares)
        error: Exception | None = None
        began = self._clock()
        try:
            with internal_errors("target"):
                self._engine.step(shares)
        except InternalError as failure:
            _LOG.exception("a step of %d sessions failed", len(works))
            error = failure
        seconds = self._clock() - began
        step = Step(num_rows, len(works), began, seconds, has_failed=error is not None)
        for work in works:
            work.began = began if work.began is None else work.began
            work.engine_s += step.seconds
            work.step = step
            self._settle(work, error, done)
        return step

    def _settle(self, work: Work, error: Exception | None, done: list[Work]) -> None:
        begun = _begun(work)
        work.verdict, work.error = begun.verdict, error or begun.error
        if work.verdict is None and work.error is None:
            return
        self._schedule.remove(work)
        self._active.discard(work)
        done.append(work)


def _begun(work: Work) -> Verification:
    assert work.verification is not None
    return work.verification

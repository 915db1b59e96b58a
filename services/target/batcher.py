"""Many sessions on one target: their verifications and prompts share its forwards.

Lives on the event loop. The engine's thread makes one step after the other (`works.py`), of what
has come by then; `engine/batch_window.py` chooses when to start the next one. Knows no wire.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial

from slipstream.core import errors
from slipstream.core.inline import finished
from slipstream.core.timing import Clock
from slipstream.core.types import Delta, Proposal, Session, Verdict
from slipstream.engine.batch_window import BatchWindow
from slipstream.engine.thread import EngineThread, FailedSteps
from slipstream.target.compiled import CompiledGrammar
from slipstream.target.engine import LocalTarget
from slipstream.target.pending import PendingVerification, Verified
from slipstream.target.schedule import RowBudget, Schedule
from slipstream.target.waiting import Spending, TimeSpent
from slipstream.target.works import Ran, Step, Work, Works

_LOG = logging.getLogger("slipstream.target")

_SHORTEST_WAIT_S = 0.0005
"""Of a timer: while the thread is busy, the clock of the gathering stands still."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Rows of a step, and how many requests may wait for memory."""

    rows: RowBudget = field(default_factory=RowBudget)
    max_waiting: int = 64


class BatchedTarget:
    """`core.ports.Target` for any number of sessions at once. Belongs to one event loop."""

    def __init__(
        self,
        engine: LocalTarget,
        thread: EngineThread,
        limits: BatchLimits | None = None,
        *,
        clock: Clock = time.perf_counter,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        """`engine` belongs to `thread`. `on_step` is told of every forward, on the event loop."""
        limits = limits or BatchLimits()
        self._engine = engine
        self._thread = thread
        self._clock = clock
        self._on_step = on_step
        self._rows = limits.rows
        schedule: Schedule[Work] = Schedule(limits.rows)
        self._works = Works(engine, schedule, max_waiting=limits.max_waiting, clock=clock)
        self._gathering: BatchWindow[str] = BatchWindow()
        self._arrivals: deque[Work] = deque()
        self._pending: dict[str, PendingVerification] = {}
        self._blocked: frozenset[Work] = frozenset()
        self._has_room = False
        self._news = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        self._is_closed = False
        self._is_stepping = False
        self._num_steps = self._num_rows = self._last_rows = 0
        self._spent = TimeSpent(clock)
        self.failed_steps = FailedSteps("target")

    @property
    def num_waiting(self) -> int:
        """Verifications that have not begun."""
        return sum(pending.work.began is None for pending in self._pending.values())

    @property
    def num_steps(self) -> int:
        """Forwards since the start."""
        return self._num_steps

    @property
    def num_rows(self) -> int:
        """Their rows."""
        return self._num_rows

    @property
    def rows_in_flight(self) -> int:
        """Rows of the last forward, while there is something to do."""
        return 0 if self._doing() is Spending.IDLE else self._last_rows

    @property
    def rows_free(self) -> int:
        """Rows that it would still take at next to no cost."""
        return self._rows.num_free(self.rows_in_flight)

    @property
    def spent(self) -> TimeSpent:
        """What the time goes to."""
        return self._spent

    async def run(self, session: Session, delta: Delta, proposal: Proposal) -> Verified:
        """Return the verdict, and what it took. Raises what `begin` and its answer do."""
        return await self.begin(session, delta, proposal).verified()

    def begin(
        self,
        session: Session,
        delta: Delta,
        proposal: Proposal,
        *,
        max_queue_s: float | None = None,
    ) -> PendingVerification:
        """Begin a verification, which may wait for memory for `max_queue_s`, None for no limit.

        Its answer raises what `core.ports.Target.verify` does, `SessionTaken` when another call for
        the session comes meanwhile, `SessionClosed` when it is released, `NoRoom` when it waited
        for memory for too long or more wait than may.
        """
        if self._is_closed:
            raise errors.Unavailable("the target is about to stop")
        session_id = session.session_id
        self._end(session_id, errors.SessionTaken(f"session {session_id} was taken over"))
        work = Work(session, delta, proposal)
        pending = PendingVerification(work, self._clock(), max_queue_s, self._left)
        self._pending[session_id] = pending
        self._arrivals.append(work)
        self._gathering.came(session_id, self._thread.idle_s)
        self._spent.turn(self._doing())
        self._wake()
        return pending

    async def prepare(self, session: Session) -> CompiledGrammar | None:
        """Return the session's grammar, compiled apart from all engines, to hold on to; or None.

        Raises `InvalidRequest` for one that can't be followed, `CapacityError` where too many wait.
        """
        grammars, grammar = self._engine.grammars, session.grammar
        if grammars is None or grammar is None:
            return None
        if (found := grammars.find(grammar)) is not None:
            return found
        return await asyncio.wrap_future(grammars.compiling(grammar))

    async def verify(self, session: Session, delta: Delta, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`, `prepare` and `run`."""
        _held = await self.prepare(session)
        return (await self.run(session, delta, proposal)).value

    async def park(self, session_id: str) -> None:
        """See `LocalTarget.park`. What is under way of the session ends first."""
        await self._leave(session_id, lambda: self._engine.park(session_id))

    async def release(self, session_id: str) -> None:
        """See `core.ports.Target.release`. What is under way of the session ends first."""
        await self._leave(session_id, lambda: finished(self._engine.release(session_id)))

    async def close(self) -> None:
        """Refuse what comes, end what is under way, and wait for the step that runs."""
        self._is_closed = True
        self._end_all(errors.Unavailable("the target is about to stop"))
        if self._driver is not None:
            self._news.set()
            await asyncio.wait({self._driver})

    async def _leave(self, session_id: str, job: Callable[[], None]) -> None:
        self._end(session_id, errors.SessionClosed(f"session {session_id} has ended"))
        self._gathering.gone(session_id)
        self._spent.turn(self._doing())

        def leave() -> None:
            job()
            self._works.leave(session_id)

        try:
            await self._thread.run(leave)
        finally:
            self._has_room = True
            self._wake()

    def _left(self, pending: PendingVerification) -> None:
        """End what is under way for a caller that no longer waits."""
        if self._pending.get(pending.work.session_id) is pending:
            self._end(pending.work.session_id, None)

    def _end(self, session_id: str, error: Exception | None) -> None:
        """End what is under way of a session, if anything. Without an error nobody waits for it."""
        pending = self._pending.pop(session_id, None)
        if pending is None:
            return
        pending.work.is_dropped = True
        self._gathering.gone(session_id)
        pending.fail(error)
        self._wake()

    def _end_all(self, error: Exception) -> None:
        for session_id in list(self._pending):
            self._end(session_id, error)

    def _wake(self) -> None:
        """Something has changed for the next step."""
        self._news.set()
        if self._driver is None and self._has_work():
            # Of no session: what it logs is not about the one that came first.
            self._driver = asyncio.get_running_loop().create_task(self._drive(), context=Context())

    def _has_work(self) -> bool:
        if self._has_room and self._blocked:
            return True
        return any(pending.work not in self._blocked for pending in self._pending.values())

    async def _drive(self) -> None:
        """Make steps while there is work."""
        try:
            while self._has_work():
                await self._gather()
                await self._step()
        except Exception:
            _LOG.exception("the steps of the target have ended")
            self.failed_steps.record(has_failed=True)
            self._end_all(
                errors.InternalError("the target's steps ended, through no fault of the request")
            )
        finally:
            self._driver = None
            self._is_stepping = False
            self._spent.turn(self._doing())

    async def _gather(self) -> None:
        """Wait for the sessions that are about to come again."""
        loop = asyncio.get_running_loop()
        while self._has_work():
            wait_s = self._gathering.wait_s(self._thread.idle_s)
            if wait_s <= 0:
                return
            self._news.clear()
            timer = loop.call_later(max(wait_s, _SHORTEST_WAIT_S), self._news.set)
            await self._news.wait()
            timer.cancel()

    async def _step(self) -> None:
        has_room, self._has_room = self._has_room, False
        self._gathering.started(self._thread.idle_s)
        has_company = self._gathering.has_company
        self._is_stepping = True
        self._spent.turn(Spending.BUSY)
        done = await self._thread.run(
            lambda: self._works.run(self._arrivals, has_room=has_room, has_company=has_company)
        )
        self._settle(done.value)

    def _settle(self, ran: Ran) -> None:
        """Hand out what is done. The gathering knows of it before anybody can come again."""
        self._is_stepping = False
        self._queue(ran.blocked)
        done = [pending for pending in self._pending.values() if pending.work in ran.done]
        if ran.step is not None:
            self._count(ran.step)
            back = [pending.work.session_id for pending in done if _comes_again(pending.work)]
            self._gathering.stepped(back, self._thread.idle_s, seconds=ran.step.seconds)
        self._spent.turn(self._doing())
        for pending in done:
            del self._pending[pending.work.session_id]
            pending.answer()

    def _queue(self, blocked: frozenset[Work]) -> None:
        """Let those who wait for memory know, and those who no longer do."""
        for pending in self._pending.values():
            if pending.work in blocked:
                pending.queue(partial(self._is_late, pending.work.session_id))
            elif pending.work in self._blocked:
                pending.leave_queue()
        self._blocked = blocked

    def _is_late(self, session_id: str, limit_s: float) -> None:
        self._end(session_id, errors.NoRoom(f"a round waited {limit_s:g} s for memory, the limit"))

    def _count(self, step: Step) -> None:
        self._num_steps += 1
        self._num_rows += step.num_rows
        self._last_rows = step.num_rows
        self.failed_steps.record(has_failed=step.has_failed)
        if self._on_step is not None:
            self._on_step(step)

    def _doing(self) -> Spending:
        """What the time is spent on at the moment."""
        if self._is_stepping:
            return Spending.BUSY
        return Spending.WAITING if self._gathering.num_away else Spending.IDLE


def _comes_again(work: Work) -> bool:
    return work.verdict is not None and work.verdict.finish_reason is None

"""Many sessions on one target: their verifications and prompts share its forwards.

Lives on the event loop. The engine's thread makes one step after the other (`works.py`), of what
has come by then; `gathering.py` says when to start the next one. Knows no wire.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field

from slipstream.core.errors import SessionClosed, SessionTaken, Unavailable
from slipstream.core.inline import finished
from slipstream.core.timing import Clock
from slipstream.core.types import Delta, Proposal, Session, Verdict
from slipstream.engine.gathering import Gathering
from slipstream.engine.thread import EngineThread
from slipstream.target.engine import LocalTarget
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


@dataclass(frozen=True, slots=True)
class Verified:
    """A verdict, how long it waited for its first step, and how long its steps took.

    The first of them `began` at that time of the clock; `step` is the last one.
    """

    value: Verdict
    queue_s: float
    engine_s: float
    began: float
    step: Step


@dataclass(frozen=True, slots=True)
class _Asked:
    work: Work
    arrived: float
    answer: "asyncio.Future[Verified]"


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
        self._gathering: Gathering[str] = Gathering()
        self._arrivals: deque[Work] = deque()
        self._asked: dict[str, _Asked] = {}
        self._blocked: frozenset[Work] = frozenset()
        self._has_room = False
        self._news = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        self._is_closed = False
        self._is_stepping = False
        self._num_steps = self._num_rows = self._last_rows = 0
        self._spent = TimeSpent(clock)

    @property
    def num_waiting(self) -> int:
        """Verifications that have not begun."""
        return sum(asked.work.began is None for asked in self._asked.values())

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
        """The verdict, and what it took.

        Raises what `core.ports.Target.verify` does, `SessionTaken` when another call for the
        session comes meanwhile, `SessionClosed` when it is released, `CapacityError` when more wait
        for memory than may.
        """
        if self._is_closed:
            raise Unavailable("the target is about to stop")
        session_id = session.session_id
        self._end(session_id, SessionTaken(f"session {session_id} was taken over"))
        work = Work(session, delta, proposal)
        asked = _Asked(work, self._clock(), asyncio.get_running_loop().create_future())
        self._asked[session_id] = asked
        self._arrivals.append(work)
        self._gathering.came(session_id, self._thread.idle_s)
        self._spent.turn(self._doing())
        self._wake()
        try:
            return await asked.answer
        finally:
            if self._asked.get(session_id) is asked:  # whoever waited is gone
                self._end(session_id, None)

    async def prepare(self, session: Session) -> None:
        """Compile the session's grammar, if it has one, where no other session waits for it.

        Raises `InvalidRequest` for one that can't be followed.
        """
        grammars, grammar = self._engine.grammars, session.grammar
        if grammars is not None and grammar is not None and not grammars.knows(grammar):
            await asyncio.to_thread(grammars.compile, grammar)

    async def verify(self, session: Session, delta: Delta, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`, `prepare` and `run`."""
        await self.prepare(session)
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
        self._end_all(Unavailable("the target is about to stop"))
        if self._driver is not None:
            self._news.set()
            await asyncio.wait({self._driver})

    async def _leave(self, session_id: str, job: Callable[[], None]) -> None:
        self._end(session_id, SessionClosed(f"session {session_id} has ended"))
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

    def _end(self, session_id: str, error: Exception | None) -> None:
        """End what is under way of a session, if anything. Without an error nobody waits for it."""
        asked = self._asked.pop(session_id, None)
        if asked is None:
            return
        asked.work.is_dropped = True
        self._gathering.gone(session_id)
        if error is not None and not asked.answer.done():
            asked.answer.set_exception(error)
        self._wake()

    def _end_all(self, error: Exception) -> None:
        for session_id in list(self._asked):
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
        return any(asked.work not in self._blocked for asked in self._asked.values())

    async def _drive(self) -> None:
        """Make steps while there is work."""
        try:
            while self._has_work():
                await self._gather()
                await self._step()
        except Exception as error:
            _LOG.exception("the steps of the target have ended")
            self._end_all(error)
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
        self._blocked = ran.blocked
        done = [asked for asked in self._asked.values() if asked.work in ran.done]
        if ran.step is not None:
            self._count(ran.step)
            back = [asked.work.session_id for asked in done if _comes_again(asked.work)]
            self._gathering.stepped(back, self._thread.idle_s, seconds=ran.step.seconds)
        self._spent.turn(self._doing())
        for asked in done:
            del self._asked[asked.work.session_id]
            self._answer(asked)

    def _count(self, step: Step) -> None:
        self._num_steps += 1
        self._num_rows += step.num_rows
        self._last_rows = step.num_rows
        if self._on_step is not None:
            self._on_step(step)

    def _doing(self) -> Spending:
        """What the time is spent on at the moment."""
        if self._is_stepping:
            return Spending.BUSY
        return Spending.WAITING if self._gathering.num_away else Spending.IDLE

    def _answer(self, asked: _Asked) -> None:
        work, answer = asked.work, asked.answer
        if answer.done():
            return
        if work.verdict is None or work.error is not None:
            answer.set_exception(work.error or RuntimeError("a work ended without a verdict"))
            return
        assert work.began is not None and work.step is not None, "a verdict is of a step"
        queue_s = work.began - asked.arrived
        answer.set_result(Verified(work.verdict, queue_s, work.engine_s, work.began, work.step))


def _comes_again(work: Work) -> bool:
    return work.verdict is not None and work.verdict.finish_reason is None

"""Many sessions on one target: their verifications and prompts share its forwards.

Lives on the event loop. The engine's thread computes one step after the other (`schedule.py`),
of what has come by then; `engine/batch_window.py` chooses when the next one starts.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextvars import Context
from functools import partial

from slipstream.core import errors
from slipstream.core.inline import finished
from slipstream.core.round import Clock
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, Session, Verdict
from slipstream.engine.batch_window import BatchWindow
from slipstream.engine.thread import EngineThread, FailedSteps
from slipstream.verifying.engine import LocalTarget
from slipstream.verifying.grammar_constraint import CompiledGrammar
from slipstream.verifying.meter import Activity, StepBudget, TimeSpent
from slipstream.verifying.request import PendingRequest, TargetRequest, TargetStep
from slipstream.verifying.schedule import RequestQueue

_LOG = logging.getLogger("slipstream.target")

_SHORTEST_WAIT_S = 0.0005
"""Shortest timer: while the thread is busy, the clock of the batch window stands still."""


class BatchedTarget:
    """`core.ports.Target` for any number of sessions at once. Belongs to one event loop."""

    def __init__(
        self,
        engine: LocalTarget,
        thread: EngineThread,
        budget: StepBudget | None = None,
        *,
        max_waiting: int = 64,
        clock: Clock = time.perf_counter,
    ) -> None:
        """`engine` belongs to `thread`; up to `max_waiting` requests wait for memory."""
        self.engine = engine
        self.thread = thread
        self.on_step: Callable[[TargetStep], None] | None = None
        """Called with every forward, on the event loop."""
        self._clock = clock
        self._budget = budget or StepBudget()
        self._queue = RequestQueue(engine, self._budget, max_waiting=max_waiting, clock=clock)
        self._window = BatchWindow()
        self._pending: dict[str, PendingRequest] = {}
        self._has_room = False
        self._news = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        self._is_closed = False
        self._is_stepping = False
        self._last_tokens = 0
        self.num_steps = 0
        self.num_tokens = 0
        self.spent = TimeSpent(clock)
        self.failed_steps = FailedSteps("target")

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun."""
        return sum(pending.request.began is None for pending in self._pending.values())

    @property
    def tokens_in_flight(self) -> int:
        """Batched tokens of the last forward, while there is something to do."""
        return 0 if self._activity() is Activity.IDLE else self._last_tokens

    @property
    def tokens_free(self) -> int:
        """Tokens that it would still take at next to no cost."""
        return self._budget.num_free(self.tokens_in_flight)

    async def run(self, sequence: TokenSequence, proposal: Proposal) -> TargetRequest:
        """Return the request with its verdict. Raises what `begin` and its answer do."""
        return await self.begin(sequence, proposal).done()

    def begin(
        self, sequence: TokenSequence, proposal: Proposal, *, max_queue_s: float | None = None
    ) -> PendingRequest:
        """Begin a verification, which may wait for memory for `max_queue_s`, None for no limit.

        Its answer raises what `core.ports.Target.verify` does, `SessionTaken` when another call for
        the session comes meanwhile, `SessionClosed` when it is released, `NoRoom` when it waited
        for memory for too long or more wait than may.
        """
        if self._is_closed:
            raise errors.Unavailable("the target is about to stop")
        session_id = sequence.session_id
        self._end(session_id, errors.SessionTaken(f"session {session_id} was taken over"))
        request = TargetRequest(sequence, proposal, self._clock())
        pending = PendingRequest(request, max_queue_s, self._left)
        self._pending[session_id] = pending
        self._queue.add(request)
        self._window.came(session_id)
        self.spent.turn(self._activity())
        self._wake()
        return pending

    async def prepare(self, session: Session) -> CompiledGrammar | None:
        """Return the session's grammar, compiled apart from all engines, to hold on to; or None.

        Raises `InvalidRequest` for one that can't be followed, `CapacityError` where too many wait.
        """
        grammars, grammar = self.engine.grammars, session.grammar
        if grammars is None or grammar is None:
            return None
        return await asyncio.wrap_future(grammars.compile(grammar))

    async def verify(self, sequence: TokenSequence, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`, `prepare` and `run`."""
        _held = await self.prepare(sequence.session)
        return (await self.run(sequence, proposal)).result()

    async def park(self, session_id: str) -> None:
        """See `LocalTarget.park`. What is under way of the session ends first."""
        await self._leave(session_id, lambda: self.engine.park(session_id))

    async def release(self, session_id: str) -> None:
        """See `core.ports.Target.release`. What is under way of the session ends first."""
        await self._leave(session_id, lambda: finished(self.engine.release(session_id)))

    async def close(self) -> None:
        """Refuse what comes, end what is under way, and wait for the step that runs."""
        self._is_closed = True
        self._end_all(errors.Unavailable("the target is about to stop"))
        if self._driver is not None:
            self._news.set()
            await asyncio.wait({self._driver})

    async def _leave(self, session_id: str, job: Callable[[], None]) -> None:
        self._end(session_id, errors.SessionClosed(f"session {session_id} has ended"))
        self._window.gone(session_id)
        self.spent.turn(self._activity())

        def leave() -> None:
            job()
            self._queue.leave(session_id)

        try:
            await self.thread.run(leave)
        finally:
            self._has_room = True
            self._wake()

    def _left(self, pending: PendingRequest) -> None:
        if self._pending.get(pending.session_id) is pending:
            self._end(pending.session_id, errors.SessionClosed("its caller has left"))

    def _end(self, session_id: str, error: Exception) -> None:
        pending = self._pending.pop(session_id, None)
        if pending is None:
            return
        pending.request.is_dropped = True
        self._window.gone(session_id)
        pending.end(error)
        self._wake()

    def _end_all(self, error: Exception) -> None:
        for session_id in list(self._pending):
            self._end(session_id, error)

    def _end_late(self, session_id: str, limit_s: float) -> None:
        self._end(session_id, errors.NoRoom(f"a round waited {limit_s:g} s for memory, the limit"))

    def _wake(self) -> None:
        self._news.set()
        if self._driver is None and self._has_work():
            # Without a session's context: its logs are not about the one that came first.
            self._driver = asyncio.get_running_loop().create_task(self._drive(), context=Context())

    def _has_work(self) -> bool:
        blocked = self._queue.blocked
        if self._has_room and blocked:
            return True
        return any(pending.request not in blocked for pending in self._pending.values())

    async def _drive(self) -> None:
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
            self.spent.turn(self._activity())

    async def _gather(self) -> None:
        loop = asyncio.get_running_loop()
        while self._has_work():
            wait_s = self._window.wait_s(self.thread.idle_s)
            if wait_s <= 0:
                return
            self._news.clear()
            timer = loop.call_later(max(wait_s, _SHORTEST_WAIT_S), self._news.set)
            await self._news.wait()
            timer.cancel()

    async def _step(self) -> None:
        has_room, self._has_room = self._has_room, False
        self._window.started()
        has_company = self._window.has_company
        self._is_stepping = True
        self.spent.turn(Activity.BUSY)
        run = partial(self._queue.run, has_room=has_room, has_company=has_company)
        self._settle((await self.thread.run(run)).value)

    def _settle(self, step: TargetStep | None) -> None:
        """Hand out what is done. The batch window gets it before any session can come again."""
        self._is_stepping = False
        for pending in self._pending.values():
            if pending.request in self._queue.blocked:
                pending.queue(self._end_late)
            else:
                pending.leave_queue()
        done = [pending for pending in self._pending.values() if pending.request.is_done]
        if step is not None:
            self._count(step)
            verdicts = ((pending.session_id, pending.request.verdict) for pending in done)
            back = [name for name, own in verdicts if own and own.finish_reason is None]
            self._window.stepped(back, self.thread.idle_s, seconds=step.seconds)
        self.spent.turn(self._activity())
        for pending in done:
            del self._pending[pending.session_id]
            pending.end(pending.request.error)

    def _count(self, step: TargetStep) -> None:
        self.num_steps += 1
        self.num_tokens += step.num_tokens
        self._last_tokens = step.num_tokens
        self.failed_steps.record(has_failed=step.has_failed)
        if self.on_step is not None:
            self.on_step(step)

    def _activity(self) -> Activity:
        if self._is_stepping:
            return Activity.BUSY
        return Activity.WAITING if self._window.num_away else Activity.IDLE

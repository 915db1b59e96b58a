"""Many sessions on one draft: their steps go together, whenever they came.

Lives on the event loop. The engine's thread takes step after step, newcomers in between, and gives
way to what else waits for it. Knows no wire.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass

from slipstream.core.errors import Unavailable
from slipstream.core.inline import finished
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Proposal
from slipstream.draft.drafting import Drafting
from slipstream.draft.engine import LocalDraft
from slipstream.draft.growth import CHUNK
from slipstream.engine.thread import Done, EngineThread, FailedSteps

_LOG = logging.getLogger("slipstream.draft")

STEPS = 16
"""Steps after which the thread looks at what else is to be done."""
FEW = 32
"""Tokens that a session may always add to a step: a level of a tree, the tokens of a round."""


@dataclass(eq=False, slots=True)
class _Job:
    """A proposal that is waited for. `drafting` is None until the engine has begun with it."""

    sequence: TokenSequence
    plan: Plan
    check: Callable[[], None]
    asked: float
    answer: "asyncio.Future[Done[Proposal]]"
    is_dropped: bool = False
    began: float = 0.0
    drafting: Drafting | None = None


class BatchedDraft:
    """`core.ports.Draft` for any number of sessions at once. Belongs to one event loop."""

    def __init__(
        self,
        engine: LocalDraft,
        thread: EngineThread,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`engine` belongs to `thread`."""
        self._engine = engine
        self._thread = thread
        self._clock = clock
        self._inbox: deque[_Job] = deque()
        self._running: list[_Job] = []  # the thread's
        self._driver: asyncio.Task[None] | None = None
        self._num_steps = self._num_rows = 0
        self.failed_steps = FailedSteps("draft")

    @property
    def num_waiting(self) -> int:
        """Proposals that have not begun."""
        return len(self._inbox)

    @property
    def num_steps(self) -> int:
        """Passes since the start."""
        return self._num_steps

    @property
    def num_rows(self) -> int:
        """Their rows."""
        return self._num_rows

    async def run(
        self,
        sequence: TokenSequence,
        plan: Plan,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> Done[Proposal]:
        """The proposal, how long it waited for its first step, and how long its steps took.

        `check` is called on the thread before the first one, and may raise. Raises what
        `core.ports.Draft.propose` does, and `Cancelled` when another call for the session or its
        release comes meanwhile. Of a waiter that is cancelled no further step is taken.
        """
        answer: asyncio.Future[Done[Proposal]] = asyncio.get_running_loop().create_future()
        job = _Job(sequence, plan, check, self._clock(), answer)
        self._inbox.append(job)
        if self._driver is None:
            # Of no session: what it logs is not about the one that came first.
            self._driver = asyncio.create_task(self._drive(), context=Context())
        try:
            return await answer
        finally:
            job.is_dropped = True

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`, and `run`."""
        return (await self.run(sequence, plan)).value

    async def release(self, session_id: str) -> None:
        """See `core.ports.Draft.release`. What is under way of the session ends."""
        await self._thread.run(lambda: finished(self._engine.release(session_id)))

    async def park(self, session_id: str) -> None:
        """See `LocalDraft.park`."""
        await self._thread.run(lambda: self._engine.park(session_id))

    async def _drive(self) -> None:
        """Have the thread work for as long as there is anything to do."""
        try:
            while self._inbox or self._running:
                for has_failed in (await self._thread.run(self._work)).value:
                    self.failed_steps.record(has_failed=has_failed)
        except RuntimeError as error:
            _LOG.info("no more drafts: %s", error)
        finally:
            # Anything is left only where the thread takes no more jobs, or the loop ends.
            for job in (*self._running, *self._inbox):
                _resolve(job, Unavailable("the draft is about to stop"))
            self._running.clear()
            self._inbox.clear()
            self._driver = None

    def _work(self) -> list[bool]:
        """Take some steps, on the engine's thread; return of each whether it failed."""
        have_failed: list[bool] = []
        for _ in range(STEPS):
            self._admit()
            self._drop()
            if not self._running:
                break
            draftings = together([job.drafting for job in self._running if job.drafting])
            self._num_steps += 1
            self._num_rows += sum(drafting.num_tokens for drafting in draftings)
            have_failed.append(not self._engine.step(draftings))
            if have_failed[-1]:
                error = draftings[0].error
                _LOG.error("a step of %d sessions failed", len(draftings), exc_info=error)
            self._settle()
        return have_failed

    def _admit(self) -> None:
        while self._inbox:
            job = self._inbox.popleft()
            if job.is_dropped:
                continue
            job.began = self._clock()
            try:
                job.check()
                job.drafting = self._engine.begin(job.sequence, job.plan)
            except Exception as error:
                _resolve(job, error)
            else:
                self._running.append(job)
        self._settle()

    def _drop(self) -> None:
        """Leave those that no caller waits for."""
        for job in self._running:
            if job.is_dropped and job.drafting is not None:
                self._engine.abandon(job.drafting)
        self._running = [job for job in self._running if not job.is_dropped]

    def _settle(self) -> None:
        """Tell those that are done."""
        running = []
        for job in self._running:
            drafting = job.drafting
            if drafting is None or not drafting.is_done:
                running.append(job)
                continue
            try:
                _resolve(job, self._done(job, drafting.result()))
            except Exception as error:
                _resolve(job, error)
        self._running = running

    def _done(self, job: _Job, proposal: Proposal) -> Done[Proposal]:
        return Done(proposal, job.began - job.asked, self._clock() - job.began)


def together(draftings: Sequence[Drafting]) -> list[Drafting]:
    """Those that step next, in order of arrival: all that have little to compute, and of the long
    prefixes as many as a step has room for, so that no session waits for more than that."""
    room, chosen = CHUNK, []
    for drafting in draftings:
        if drafting.num_tokens > FEW:
            if drafting.num_tokens > room and room < CHUNK:
                continue
            room -= drafting.num_tokens
        chosen.append(drafting)
    return chosen


def _resolve(job: _Job, outcome: Done[Proposal] | Exception) -> None:
    """Answer the caller, from any thread."""

    def answer() -> None:
        if job.answer.done():
            return
        if isinstance(outcome, Exception):
            job.answer.set_exception(outcome)
        else:
            job.answer.set_result(outcome)

    with suppress(RuntimeError):  # the loop is closed, and no caller waits
        job.answer.get_loop().call_soon_threadsafe(answer)

"""Many sessions on one draft: their requests share its steps.

Lives on the event loop. The engine's thread computes step after step of all requests that have come
by then, and gives way to other work in between.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import TypeVar

from slipstream.core.errors import Unavailable
from slipstream.core.inline import finished
from slipstream.core.round import Clock
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Proposal
from slipstream.drafting.engine import LocalDraft
from slipstream.drafting.growth import CHUNK, DraftRequest
from slipstream.engine.thread import Done, EngineThread, FailedSteps, settle

_LOG = logging.getLogger("slipstream.draft")

T = TypeVar("T")
STEPS = 16
"""Steps after which the thread turns to other work."""
FEW = 32
"""Tokens that a session may always add to a step: a level of a tree, the tokens of a round."""


@dataclass(frozen=True, slots=True)
class _Command:
    run: Callable[[], None]
    answer: asyncio.Future[None]


class BatchedDraft:
    """`core.ports.Draft` for any number of sessions at once. Belongs to one event loop.

    Requests and commands reach the engine in the order in which they were given.
    """

    def __init__(
        self, engine: LocalDraft, thread: EngineThread, *, clock: Clock = time.perf_counter
    ) -> None:
        """`engine` belongs to `thread`."""
        self._engine = engine
        self._thread = thread
        self._clock = clock
        self._inbox: deque[DraftRequest | _Command] = deque()
        self._running: list[DraftRequest] = []  # the thread's
        self._driver: asyncio.Task[None] | None = None
        self.failed_steps = FailedSteps("draft")
        self.num_steps = 0
        self.num_rows = 0

    @property
    def num_waiting(self) -> int:
        """Number of requests and commands that have not begun."""
        return len(self._inbox)

    async def run(
        self, sequence: TokenSequence, plan: Plan, *, check: Callable[[], None] = lambda: None
    ) -> Done[Proposal]:
        """Return the proposal, how long it waited for its first step, and how long its steps took.

        `check` is called on the thread before the first one, and may raise. Raises what
        `core.ports.Draft.propose` does, and `Cancelled` when another call for the session or its
        release comes meanwhile. No further step is computed for a cancelled caller.
        """
        answer: asyncio.Future[Done[Proposal]] = asyncio.get_running_loop().create_future()
        request = DraftRequest(sequence, plan, check, answer, self._clock())
        try:
            return await self._submit(request, answer)
        finally:
            request.is_dropped = True

    async def propose(self, sequence: TokenSequence, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`, and `run`."""
        return (await self.run(sequence, plan)).value

    async def release(self, session_id: str) -> None:
        """See `core.ports.Draft.release`. A request under way of the session ends."""
        await self._execute(lambda: finished(self._engine.release(session_id)))

    async def park(self, session_id: str) -> None:
        await self._execute(lambda: self._engine.park(session_id))

    async def _execute(self, job: Callable[[], None]) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._submit(_Command(job, answer), answer)

    async def _submit(self, entry: DraftRequest | _Command, answer: asyncio.Future[T]) -> T:
        self._inbox.append(entry)
        if self._driver is None:
            # Without a session's context: its logs are not about the one that came first.
            self._driver = asyncio.create_task(self._drive(), context=Context())
        return await answer

    async def _drive(self) -> None:
        try:
            while self._inbox or self._running:
                for has_failed in (await self._thread.run(self._work)).value:
                    self.failed_steps.record(has_failed=has_failed)
        except RuntimeError as error:
            _LOG.info("no more drafts: %s", error)
        finally:
            # Anything is left only where the thread takes no more jobs, or the loop ends.
            for entry in (*self._running, *self._inbox):
                settle(entry.answer, Unavailable("the draft is about to stop"))
            self._running.clear()
            self._inbox.clear()
            self._driver = None

    def _work(self) -> list[bool]:
        """Compute some steps, on the engine's thread; return whether each has failed."""
        have_failed: list[bool] = []
        for _ in range(STEPS):
            self._take_inbox()
            self._drop()
            if not self._running:
                break
            requests = together(self._running)
            self.num_steps += 1
            self.num_rows += sum(request.num_tokens for request in requests)
            have_failed.append(not self._engine.step(requests))
            if have_failed[-1]:
                error = requests[0].error
                _LOG.error("a step of %d sessions failed", len(requests), exc_info=error)
            self._settle()
        return have_failed

    def _take_inbox(self) -> None:
        while self._inbox:
            entry = self._inbox.popleft()
            try:
                if isinstance(entry, DraftRequest):
                    self._begin(entry)
                else:
                    entry.run()
                    settle(entry.answer, None)
            except Exception as error:
                settle(entry.answer, error)
        self._settle()

    def _begin(self, request: DraftRequest) -> None:
        if request.is_dropped:
            return
        request.began = self._clock()
        request.check()
        self._engine.begin(request)
        self._running.append(request)

    def _drop(self) -> None:
        for request in self._running:
            if request.is_dropped:
                self._engine.abandon(request)
        self._running = [request for request in self._running if not request.is_dropped]

    def _settle(self) -> None:
        for request in self._running:
            if request.is_done:
                settle(request.answer, request.done(self._clock()))
        self._running = [request for request in self._running if not request.is_done]


def together(requests: Sequence[DraftRequest]) -> list[DraftRequest]:
    """Return the requests of the next step, in order of arrival.

    All that have little to compute, and as many long prefixes as a step has room for, so that no
    session waits for more than that.
    """
    room, chosen = CHUNK, []
    for request in requests:
        if request.num_tokens > FEW:
            if request.num_tokens > room and room < CHUNK:
                continue
            room -= request.num_tokens
        chosen.append(request)
    return chosen

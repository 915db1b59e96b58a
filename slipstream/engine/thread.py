"""The one thread on which everything that touches an engine runs, in the order of arrival.

The event loop stays free while an engine computes. A step that fails is the engine's own error, and
too many in a row end the process.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from slipstream.core.errors import InternalError

T = TypeVar("T")
MAX_FAILED_STEPS = 8
"""Limit of failed steps in a row. A step that one request spoils is followed by others that
succeed; where a device or its memory is lost, every step fails, and only a new process helps."""


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """A job's result, how long it waited for the thread, and how long it ran."""

    value: T
    queue_s: float
    engine_s: float


@dataclass(eq=False, slots=True)
class _Job(Generic[T]):
    run: Callable[[], T]
    asked: float
    answer: asyncio.Future[Done[T]]


def settle(answer: asyncio.Future[Any] | None, outcome: object) -> None:
    """Answer a coroutine from any thread, by an error or a value."""

    def give(answer: asyncio.Future[Any]) -> None:
        if answer.done():
            return
        if isinstance(outcome, BaseException):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    if answer is not None:
        with suppress(RuntimeError):  # the loop is closed, and no caller waits
            answer.get_loop().call_soon_threadsafe(give, answer)


class EngineThread:
    """Runs jobs one after the other. Close it when no more are to come.

    A thread of its own, not an executor, whose futures double the time of a short job.
    """

    def __init__(self, name: str, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._made = clock()
        self._busy_s = 0.0
        self._began: float | None = None
        self._lock = threading.Lock()
        self._waiting: set[_Job[Any]] = set()
        self._is_closed = False
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle_s(self) -> float:
        """Seconds so far in which nothing ran: a clock that stands still while something does."""
        with self._lock:
            now = self._clock() if self._began is None else self._began
            return now - self._made - self._busy_s

    async def run(self, job: Callable[[], T]) -> Done[T]:
        """Run a job and wait for it.

        A job whose waiter is cancelled before it begins never runs. One that has begun runs to its
        end; whatever is submitted afterwards comes after it.
        """
        asked = _Job(job, self._clock(), asyncio.get_running_loop().create_future())
        self._submit(partial(self._serve, asked), asked)
        try:
            return await asked.answer
        finally:
            with self._lock:
                self._waiting.discard(asked)

    def call(self, job: Callable[[], T]) -> T:
        """Run a job and block until it is done: for what comes before anything is served."""
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(job())
            except BaseException as error:
                answer.set_exception(error)

        self._submit(work)
        return answer.result()

    def close(self) -> None:
        """Take no more jobs, and wait for the one that runs; waiters of others are cancelled."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, set()
        for job in waiting:
            settle(job.answer, asyncio.CancelledError())
        self._work.put(None)
        self._thread.join()

    def _submit(self, work: Callable[[], None], *jobs: _Job[Any]) -> None:
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the engine's thread is closed")
            self._waiting.update(jobs)
            self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # and what it holds

    def _serve(self, job: _Job[Any]) -> None:
        with self._lock:
            if job not in self._waiting:
                return
            self._waiting.discard(job)
            self._began = began = self._clock()
        outcome: Done[Any] | BaseException
        try:
            value = job.run()
        except BaseException as error:
            outcome = error
            self._stop(began)
        else:
            outcome = Done(value, began - job.asked, self._stop(began))
        settle(job.answer, outcome)

    def _stop(self, began: float) -> float:
        with self._lock:
            seconds = self._clock() - began
            self._busy_s += seconds
            self._began = None
        return seconds


class InternalErrors:
    """Context that raises `InternalError` from any error inside: a step's failure is the engine's
    own, and never blamed on a caller."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, InternalError):
            raise InternalError(
                f"a step of the {self._engine} failed, through no fault of the request"
            ) from error


class FailedSteps:
    """Counts the failed steps of one engine since the last that succeeded."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._count = 0
        self._are_too_many = asyncio.Event()

    def record(self, *, has_failed: bool) -> None:
        """Count a step. On the event loop."""
        self._count = self._count + 1 if has_failed else 0
        if self._count >= MAX_FAILED_STEPS:
            self._are_too_many.set()

    async def too_many(self) -> str:
        """Wait until too many have failed in a row; return a sentence about it."""
        await self._are_too_many.wait()
        return (
            f"{MAX_FAILED_STEPS} steps of the {self._engine} in a row have failed, the limit:"
            " the process ends, so that it is started anew"
        )

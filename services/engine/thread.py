"""The one thread on which everything that touches an engine runs, in the order of arrival.

The event loop stays free while an engine computes. A step that fails is the engine's own error, and
too many in a row end the process.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

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


class EngineThread:
    """Runs jobs one after the other. Close it when no more are to come."""

    def __init__(self, name: str, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._clock = clock
        self._num_waiting = 0
        self._made = clock()
        self._busy_s = 0.0
        self._began: float | None = None
        self._lock = threading.Lock()

    @property
    def num_waiting(self) -> int:
        """Number of jobs that have not begun."""
        return self._num_waiting

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
        asked = self._clock()
        self._count(1)
        future = self._pool.submit(self._timed, job, asked)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if future.cancelled():
                self._count(-1)

    def call(self, job: Callable[[], T]) -> T:
        """Run a job and block until it is done: for what comes before anything is served."""
        return self._pool.submit(job).result()

    def close(self) -> None:
        """Take no more jobs, and wait for the one that runs."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _timed(self, job: Callable[[], T], asked: float) -> Done[T]:
        with self._lock:
            self._num_waiting -= 1
            self._began = began = self._clock()
        try:
            value = job()
        finally:
            with self._lock:
                engine_s = self._clock() - began
                self._busy_s += engine_s
                self._began = None
        return Done(value, began - asked, engine_s)

    def _count(self, change: int) -> None:
        with self._lock:
            self._num_waiting += change


@contextmanager
def internal_errors(engine: str) -> Iterator[None]:
    """Raise `InternalError` from any error inside: a step's failure is the engine's own, and never
    blamed on a caller."""
    try:
        yield
    except InternalError:
        raise
    except Exception as error:
        raise InternalError(
            f"a step of the {engine} failed, through no fault of the request"
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

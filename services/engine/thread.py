"""The one thread on which everything that touches an engine runs, in the order of arrival.

Knows nothing of what runs on it. The event loop stays free while an engine computes.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


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
        """Jobs that have not begun."""
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
        """The result of a job, once it is there: for what comes before anything is served."""
        return self._pool.submit(job).result()

    def close(self) -> None:
        """Take no more jobs, and wait for the one that runs."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _timed(self, job: Callable[[], T], asked: float) -> Done[T]:
        self._count(-1)
        began = self._begin()
        try:
            value = job()
        finally:
            engine_s = self._end(began)
        return Done(value, began - asked, engine_s)

    def _begin(self) -> float:
        with self._lock:
            self._began = self._clock()
            return self._began

    def _end(self, began: float) -> float:
        with self._lock:
            engine_s = self._clock() - began
            self._busy_s += engine_s
            self._began = None
            return engine_s

    def _count(self, change: int) -> None:
        with self._lock:
            self._num_waiting += change

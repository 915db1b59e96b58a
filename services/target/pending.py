"""A verification that a caller waits for: first in the queue for memory, then for its steps.

Belongs to the event loop; knows neither the engine nor the queue.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.core.types import Verdict
from slipstream.target.works import Step, Work


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


class PendingVerification:
    """A verification from its arrival to its answer. Made on the event loop."""

    def __init__(
        self,
        work: Work,
        arrived: float,
        max_queue_s: float | None,
        on_left: Callable[["PendingVerification"], None],
    ) -> None:
        """`max_queue_s` is the longest time that it may wait for memory, None for no limit;
        `on_left` is called once its caller no longer waits."""
        loop = asyncio.get_running_loop()
        self.work = work
        self._arrived = arrived
        self._max_queue_s = max_queue_s
        self._on_left = on_left
        self._queued: asyncio.Future[bool] = loop.create_future()
        self._answer: asyncio.Future[Verified] = loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    async def is_queued(self) -> bool:
        """Wait until it is known whether there is memory for it; return whether it waits for it."""
        try:
            return await self._queued
        except BaseException:
            self._on_left(self)
            raise

    async def verified(self) -> Verified:
        """Wait for the answer. Raises the error that there is instead."""
        try:
            return await self._answer
        finally:
            self._on_left(self)

    def queue(self, on_late: Callable[[float], None]) -> None:
        """Wait for memory from now on; `on_late` is called with the limit once that was too long.
        Again is fine."""
        self._know(is_queued=True)
        if self._timer is None and self._max_queue_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._max_queue_s, on_late, self._max_queue_s)

    def leave_queue(self) -> None:
        """Wait for memory no longer. Again is fine."""
        if self._timer is not None:
            self._timer.cancel()

    def answer(self) -> None:
        """Hand out what the work has ended with."""
        work = self.work
        if work.verdict is None or work.error is not None:
            self.fail(work.error or RuntimeError("a work ended without a verdict"))
            return
        assert work.began is not None and work.step is not None, "a verdict is of a step"
        queue_s = work.began - self._arrived
        self._end()
        if not self._answer.done():
            self._answer.set_result(
                Verified(work.verdict, queue_s, work.engine_s, work.began, work.step)
            )

    def fail(self, error: Exception | None) -> None:
        """End it with an error, or with none where its caller no longer waits."""
        self._end()
        if error is not None and not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()  # is seen, also where its caller no longer waits

    def _end(self) -> None:
        self.leave_queue()
        self._know(is_queued=False)

    def _know(self, *, is_queued: bool) -> None:
        if not self._queued.done():
            self._queued.set_result(is_queued)

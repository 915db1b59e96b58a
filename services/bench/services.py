"""The three services beside the benchmark, as processes of their own. Prints nothing."""

import asyncio
import os
import selectors
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from slipstream.bench.delay import DelayLine
from slipstream.local.stack import Stack, StackPlan

T = TypeVar("T")


class LocalServices:
    """Target, draft and router on this machine, while the context lasts.

    With `has_delay_line`, drafts read keys and values over a wire whose delay can be set. What
    holds the services together runs in a thread, which must live as long as they do.
    """

    def __init__(self, plan: StackPlan, *, has_delay_line: bool = False) -> None:
        # Timeouts of epoll are whole milliseconds, of select not; a delay is to be exact.
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._thread = threading.Thread(target=self._loop.run_forever, name="services")
        self._line = DelayLine() if has_delay_line else None
        self._stack = Stack(plan, say=_drop, detour=self._line)
        self.address = ""
        """The router's, once it serves."""

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.address = self._run(self._start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def set_delay(self, delay_s: float) -> None:
        """Set how long keys and values are under way from now on."""
        if self._line is not None:
            self._line.set_delay(delay_s)

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the services' processes."""
        return tuple(self._stack.pids.values())

    def cpu_s(self) -> float:
        """Return the processor seconds that the services have used so far."""
        return sum(map(processor_s, self.pids))

    async def _start(self) -> str:
        if self._line is not None:
            await self._line.start()
        return await self._stack.start()

    async def _stop(self) -> None:
        try:
            await self._stack.stop(hurry=True)
        finally:
            if self._line is not None:
                await self._line.close()

    def _end(self) -> None:
        try:
            self._run(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def processor_s(pid: int) -> float:
    """Return user and system time of a process; 0 once it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _drop(name: str, line: str) -> None:
    """Ignore the services' logs; what keeps one from starting is raised."""

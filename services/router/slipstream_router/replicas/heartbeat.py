"""Heartbeats of replicas: each is asked again and again, and must not be silent for long."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from slipstream.core.errors import Unavailable, check

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Interval of heartbeats, and the silence after which a replica is lost."""

    every_s: float = 1.0
    limit_s: float = 5.0

    def __post_init__(self) -> None:
        every_s, limit_s = self.every_s, self.limit_s
        check(every_s > 0, "heartbeat_s", every_s, "above 0")
        limit = f"at least the heartbeat's {every_s} s"
        check(limit_s >= every_s, "replica_timeout_s", limit_s, limit)

    async def follow(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call `ask` for ever. Raises `Unavailable` without an answer in time, or as `ask` does."""
        while True:
            await self._answered(asyncio.get_running_loop().create_task(ask()))
            await asyncio.sleep(self.every_s)

    async def _answered(self, asking: asyncio.Task[None]) -> None:
        """Beats are counted, not time: a router that was itself stopped for long has seen one."""
        try:
            for _ in range(round(self.limit_s / self.every_s)):
                await asyncio.wait({asking}, timeout=self.every_s)
                if asking.done():
                    return await asking
        finally:
            asking.cancel()
        raise Unavailable(f"it has not answered for {self.limit_s:g} s")


async def while_both(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, T]) -> T:
    """Run both until either ends; what that one returned or raised. The other is cancelled."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(one), loop.create_task(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return await next(task for task in tasks if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

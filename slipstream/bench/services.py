"""The three services as processes beside the benchmark."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from slipstream.local.stack import Stack, StackPlan

T = TypeVar("T")


class LocalServices:
    """Target, draft and router on this machine, while the context lasts.

    What holds the services together runs in a thread, which must live as long as they do.
    """

    def __init__(self, plan: StackPlan) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="services")
        self._stack = Stack(plan, on_line=_drop)
        self.address = ""
        """The router's, once it serves."""

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.address = self._run(self._stack.start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        try:
            self._run(self._stack.stop(hurry=True))
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


def _drop(name: str, line: str) -> None:
    """Ignore the services' logs; what keeps one from starting is raised."""

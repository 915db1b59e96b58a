"""Waits out the time that a device would take, in the place of whatever would wait for it."""

import time
from types import TracebackType
from typing import Self


class DeviceTime:
    """A context that ends no sooner than `seconds` after it began; the thread sleeps meanwhile."""

    def __init__(self, seconds: float) -> None:
        self._until = time.perf_counter() + seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while (left_s := self._until - time.perf_counter()) > 0:
            time.sleep(left_s)

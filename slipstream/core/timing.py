"""Clocks and stretches of time. A clock is always an argument."""

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.core.types import ReplyTiming

Clock = Callable[[], float]
"""Returns seconds since some moment."""
Times = tuple[float, float]
"""Start and end, in seconds of a clock."""


def seconds_of(times: Times | None) -> float:
    """Return the time from start to end; 0 of what never began."""
    return 0.0 if times is None else times[1] - times[0]


@dataclass(slots=True)
class ReplySeconds:
    """Seconds of replies, added up: those that the caller waited, and the parts that the engine's
    service reported."""

    elapsed_s: float = 0.0
    service_s: float = 0.0
    engine_s: float = 0.0
    kv_wait_s: float = 0.0
    serialisation_s: float = 0.0

    def add(self, elapsed_s: float, timing: ReplyTiming | None) -> None:
        """Count one reply; an engine in this process reports no parts."""
        self.elapsed_s += elapsed_s
        if timing is not None:
            self.service_s += timing.service_s
            self.engine_s += timing.engine_s
            self.kv_wait_s += timing.kv_wait_s
            self.serialisation_s += timing.serialisation_s

"""Time that passes from event to event. Knows nothing of what happens."""

import heapq
from collections.abc import Callable
from itertools import count


class Events:
    """What is to happen, in order of time; at the same time in the order it was asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_passed = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._places = count()

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        """Have something happen so many seconds from now."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._places), happen))

    def run(self) -> None:
        """Until nothing is left to happen."""
        heap = self._heap
        while heap:
            self.now, _, happen = heapq.heappop(heap)
            self.num_passed += 1
            happen()

"""Which of many things is forgotten first, when their times move all the while."""

import heapq

_SLACK = 64


class Expiries:
    """Names by a time each; putting a name again replaces its time. Costs a logarithm."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []
        self._newest: dict[str, tuple[float, int, str]] = {}
        """What of the heap still counts."""
        self._num_put = 0

    def __len__(self) -> int:
        """How many names there are."""
        return len(self._newest)

    def put(self, name: str, at: float) -> None:
        """Remember the name's time."""
        self._num_put += 1
        entry = (at, self._num_put, name)
        self._newest[name] = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._newest) + _SLACK:
            self._heap = sorted(self._newest.values())

    def discard(self, name: str) -> None:
        """Forget the name."""
        self._newest.pop(name, None)

    def first(self) -> tuple[float, str] | None:
        """The earliest time and its name; None when there are no names."""
        while self._heap:
            entry = self._heap[0]
            if self._newest.get(entry[2]) == entry:
                return entry[0], entry[2]
            heapq.heappop(self._heap)
        return None

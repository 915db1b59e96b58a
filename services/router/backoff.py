"""Who has failed lately, and when to ask them again. The clock is an argument."""

from slipstream.core.timing import Clock


class Backoffs:
    """Names that rest for a while after a failure, longer with each that follows."""

    def __init__(self, clock: Clock, *, first_s: float = 0.25, longest_s: float = 2.0) -> None:
        self._clock = clock
        self._first_s = first_s
        self._longest_s = longest_s
        self._failed: dict[str, tuple[float, float]] = {}
        """Per name: for how long it rests, and until when."""

    def failed(self, name: str) -> None:
        """Have it rest: twice as long as the last time, up to the longest."""
        last_s, _ = self._failed.get(name, (self._first_s / 2, 0.0))
        rest_s = min(2 * last_s, self._longest_s)
        self._failed[name] = (rest_s, self._clock() + rest_s)

    def succeeded(self, name: str) -> None:
        """Forget its failures."""
        self._failed.pop(name, None)

    def resting(self) -> frozenset[str]:
        """Those that are not to be asked now."""
        now = self._clock()
        return frozenset(name for name, (_, until) in self._failed.items() if until > now)

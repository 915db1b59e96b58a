"""A clock that shows what it is told, for distributions about time."""


class HandClock:
    """Set `now`; seconds."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def passes(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now

"""What the time of a target goes to: forwards, waiting for drafts, or nothing to do.

Pure accounting; the clock is an argument. Knows neither sessions nor steps: it is told of turns.
"""

from collections import deque
from enum import StrEnum

from slipstream.core.timing import Clock

WINDOW_S = 30.0


class Spending(StrEnum):
    """What a target does at a time."""

    BUSY = "busy"
    """A step is under way."""
    WAITING = "waiting_for_draft"
    """None is, and at least one running session is between two rounds: being drafted for."""
    IDLE = "idle"
    """None is, and no running session is about to come again."""


class TimeSpent:
    """Seconds by what they were spent on; together they are all the time there was."""

    def __init__(self, clock: Clock, *, window_s: float = WINDOW_S) -> None:
        """Idle at first. `window_s` is what `waiting_share` looks back on."""
        self._clock = clock
        self._window_s = window_s
        self._now = Spending.IDLE
        self._since = clock()
        self._seconds = dict.fromkeys(Spending, 0.0)
        self._marks = deque([(self._since, 0.0)])
        """When the share was asked for, and the seconds of waiting until then."""

    def turn(self, now: Spending) -> None:
        """From now on it is this; the same as before is fine."""
        if now is not self._now:
            self._count()
            self._now = now

    def totals(self) -> dict[Spending, float]:
        """Seconds since the start."""
        self._count()
        return dict(self._seconds)

    def waiting_share(self) -> float:
        """Share of the last window that was spent waiting, or of all the time if that is less.

        The window ends now, and begins at the last time that this was asked before it: ask often.
        """
        waited_s = self.totals()[Spending.WAITING]
        marks, now = self._marks, self._since
        marks.append((now, waited_s))
        while len(marks) > 2 and marks[1][0] <= now - self._window_s:
            marks.popleft()
        began, before_s = marks[0]
        return (waited_s - before_s) / (now - began) if now > began else 0.0

    def _count(self) -> None:
        now = self._clock()
        self._seconds[self._now] += now - self._since
        self._since = now

"""Time of a target by activity: forwards, waiting for drafts, or nothing to do. Pure accounting."""

from collections import deque
from enum import StrEnum

from slipstream.core.round import Clock

WINDOW_S = 30.0


class Activity(StrEnum):
    """Activity of a target."""

    BUSY = "busy"
    """A step is under way."""
    WAITING = "waiting_for_draft"
    """No step is, and at least one running session is between two rounds: being drafted for."""
    IDLE = "idle"
    """No step is, and no running session is about to come again."""


class TimeSpent:
    """Seconds by activity; together they are all the time there was."""

    def __init__(self, clock: Clock, *, window_s: float = WINDOW_S) -> None:
        """Idle at first. `window_s` is the time that `waiting_share` looks back on."""
        self._clock = clock
        self._window_s = window_s
        self._now = Activity.IDLE
        self._since = clock()
        self._seconds = dict.fromkeys(Activity, 0.0)
        self._marks = deque([(self._since, 0.0)])
        """Times of calls for the share, and the seconds of waiting until then."""

    def turn(self, now: Activity) -> None:
        """Count the time from now on for this activity; the same as before is fine."""
        if now is not self._now:
            self._count()
            self._now = now

    def totals(self) -> dict[Activity, float]:
        """Return the seconds since the start."""
        self._count()
        return dict(self._seconds)

    def waiting_share(self) -> float:
        """Return the share of waiting in the last window, or in all the time if that is less.

        The window ends now, and begins at the last call before it: call often.
        """
        waited_s = self.totals()[Activity.WAITING]
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

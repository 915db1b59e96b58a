"""Start times of steps of an engine that many sessions share. Pure; time is an argument.

A session that got an answer is away for a moment, and then comes again. A step that starts with the
first comer splits the batch into parts that stay apart; one that waits too long wastes the engine.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_GAIN = 0.125
"""Weight of a new time away, and half that of its deviation: as TCP has it for round trips (RFC
6298, section 2)."""
_NUM_DEVIATIONS = 4
_MARGIN = 1.5
"""Least window over the usual time: what never varied may vary for once."""
_MAX_REST = 31
_COMPANY_STEPS = 4
_COMPANY_S = 1.0
"""Steps, and their time, after which a session that was away is not about to come."""


@dataclass(slots=True)
class _Habit:
    """Usual time between a session's steps, and whether it can be relied on."""

    mean_s: float | None = None
    deviation_s: float = 0.0
    num_late: int = 0
    """Times in a row that it was waited for in vain."""
    rest: int = 0
    """Steps after which it is not waited for; doubles with every time in vain."""

    def window_s(self, most_s: float) -> float:
        """Return how long to wait for it, up to `most_s`."""
        if self.mean_s is None:
            return most_s
        usual_s = self.mean_s + _NUM_DEVIATIONS * self.deviation_s
        return min(max(usual_s, _MARGIN * self.mean_s), most_s)

    def record(self, away_s: float) -> None:
        """Record a time that it was away."""
        if self.mean_s is None:
            self.mean_s, self.deviation_s = away_s, away_s / 2
            return
        surprise = away_s - self.mean_s
        self.deviation_s += 2 * _GAIN * (abs(surprise) - self.deviation_s)
        self.mean_s += _GAIN * surprise

    def record_late(self, window_s: float) -> None:
        """Record that it was waited for in vain; the time that it takes is not known."""
        self.record(2 * window_s)
        self.num_late += 1
        self.rest = min(2**self.num_late - 1, _MAX_REST)


@dataclass(slots=True)
class _Absence:
    since: float
    step: int
    busy_s: float
    is_expected: bool


class BatchWindow(Generic[K]):
    """The sessions of an engine between its steps: those that are there, and those to wait for.

    `now` is any clock of seconds. One that stands still while the engine works for others makes
    waiting free during that time.
    """

    def __init__(self, *, max_wait: float = 0.5) -> None:
        """`max_wait` is the longest wait, as a part of the last step's time."""
        self._max_wait = max_wait
        self._habits: dict[K, _Habit] = {}
        self._away: dict[K, _Absence] = {}
        self._num_steps = 0
        self._busy_s = self._step_s = 0.0

    def came(self, key: K, now: float) -> None:
        """Record that a session's work waits for the next step."""
        away = self._away.pop(key, None)
        if away is not None and away.is_expected:
            self._habits[key].record(now - away.since)
            self._habits[key].num_late = 0

    def gone(self, key: K) -> None:
        """Forget a session that has ended. Unknown ones are fine."""
        self._away.pop(key, None)
        self._habits.pop(key, None)

    def started(self, now: float) -> None:
        """Record that a step starts: sessions that are not there are late."""
        for key, away in self._away.items():
            if away.is_expected:
                self._habits[key].record_late(self._window_s(key))
                away.is_expected = False

    def stepped(self, answered: Iterable[K], now: float, *, seconds: float) -> None:
        """Record a step that took `seconds`; the answered sessions are to come again."""
        self._step_s = seconds
        self._busy_s += seconds
        self._num_steps += 1
        for key in answered:
            habit = self._habits.setdefault(key, _Habit())
            is_expected = habit.rest == 0
            self._away[key] = _Absence(now, self._num_steps, self._busy_s, is_expected)
            habit.rest = max(habit.rest - 1, 0)

    def wait_s(self, now: float) -> float:
        """Return how long to wait for others, if none of them comes; 0 to start the step now."""
        ends = (
            away.since + self._window_s(key) for key, away in self._away.items() if away.is_expected
        )
        return max(max(ends, default=now) - now, 0.0)

    @property
    def num_away(self) -> int:
        """Number of sessions between two steps of theirs, however long."""
        return len(self._away)

    @property
    def has_company(self) -> bool:
        """Return whether sessions are away that may come soon."""
        oldest, oldest_s = self._num_steps - _COMPANY_STEPS, self._busy_s - _COMPANY_S
        return any(away.step > oldest or away.busy_s > oldest_s for away in self._away.values())

    def _window_s(self, key: K) -> float:
        return self._habits[key].window_s(self._max_wait * self._step_s)

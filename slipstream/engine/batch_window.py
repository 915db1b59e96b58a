"""Start times of steps of an engine that many sessions share. Pure; time is an argument.

A session that got an answer is away for a moment, and then comes again. A step that starts with the
first comer splits the batch into parts that stay apart; one that waits too long wastes the engine.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_MAX_REST = 31
_COMPANY_STEPS = 4
_COMPANY_S = 1.0
"""Steps, and their time, after which a session that was away is not about to come."""


@dataclass(slots=True)
class _Punctuality:
    """Times in a row that a session was waited for in vain, and the steps for which it is not
    waited for: twice as many with every time."""

    num_late: int = 0
    rest: int = 0


@dataclass(slots=True)
class _Absence:
    since: float
    step: int
    busy_s: float
    is_expected: bool


class BatchWindow:
    """The sessions of an engine between its steps: those that are there, and those to wait for.

    `now` is any clock of seconds. One that stands still while the engine works for others makes
    waiting free during that time.
    """

    def __init__(self, *, max_wait: float = 0.5) -> None:
        """`max_wait` is the longest wait, as a part of the last step's time."""
        self._max_wait = max_wait
        self._sessions: dict[str, _Punctuality] = {}
        self._away: dict[str, _Absence] = {}
        self._num_steps = 0
        self._busy_s = self._step_s = 0.0

    def came(self, key: str) -> None:
        """Record that a session's work waits for the next step."""
        away = self._away.pop(key, None)
        if away is not None and away.is_expected:
            self._sessions[key].num_late = 0

    def gone(self, key: str) -> None:
        """Forget a session that has ended. Unknown ones are fine."""
        self._away.pop(key, None)
        self._sessions.pop(key, None)

    def started(self) -> None:
        """Record that a step starts: sessions that are not there are late."""
        for key, away in self._away.items():
            if away.is_expected:
                session = self._sessions[key]
                session.num_late += 1
                session.rest = min(2**session.num_late - 1, _MAX_REST)
                away.is_expected = False

    def stepped(self, answered: Iterable[str], now: float, *, seconds: float) -> None:
        """Record a step that took `seconds`; the answered sessions are to come again."""
        self._step_s = seconds
        self._busy_s += seconds
        self._num_steps += 1
        for key in answered:
            session = self._sessions.setdefault(key, _Punctuality())
            is_expected = session.rest == 0
            self._away[key] = _Absence(now, self._num_steps, self._busy_s, is_expected)
            session.rest = max(session.rest - 1, 0)

    def wait_s(self, now: float) -> float:
        """Return how long to wait for others, if none of them comes; 0 to start the step now."""
        since = (away.since for away in self._away.values() if away.is_expected)
        return max(max(since, default=-math.inf) + self._max_wait * self._step_s - now, 0.0)

    @property
    def num_away(self) -> int:
        """Number of sessions between two steps of theirs, however long."""
        return len(self._away)

    @property
    def has_company(self) -> bool:
        """Return whether sessions are away that may come soon."""
        oldest, oldest_s = self._num_steps - _COMPANY_STEPS, self._busy_s - _COMPANY_S
        return any(away.step > oldest or away.busy_s > oldest_s for away in self._away.values())

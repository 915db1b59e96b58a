"""Cost of a forward in seconds, by rows, sessions and keys read. Pure arithmetic.

Learnt from a few timed forwards, then kept up to date by what real steps took. Whatever is
recorded, the answer stays above 0 and finite: it is a hint that a busy machine must not spoil.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from statistics import median_low

from slipstream.core.errors import InvalidRequest
from slipstream.core.round import Clock
from slipstream.core.row_costs import monotone

_LADDER = (*range(1, 9), 12, 16, 24, 32, 48, 64, 96, 128)
_FIRST = (1, 8, 16, 64, 4)
"""Rows that are timed first, as trees are mostly small; then the ladder from its lower end."""
CROWD = 8
"""Sessions of the one forward at the start that tells what a session adds."""
_TREE, _PASSES = 16, 8
"""Rows of most trees, whose forwards are timed as often as that, and again if there is time."""
_LEAST = 5
"""Forwards that are timed however long they take: with fewer there is no curve."""
_GAIN = 0.1
"""Part of a surprise that is believed; the rest may be chance."""
_LARGEST_SURPRISE = 0.5
"""Largest surprise that counts, as a part of the expected time of the step: a step whose
processor was taken away says no more."""
_OWN_GAIN, _OWN_SURPRISE, _OWN_DECAY, _LARGEST_OWN = 0.1, 0.2, 0.02, 4.0
"""Part of a surprise that counts for its number of rows alone, its largest, what is forgotten of it
with every step of as many, as the whole machine explains what lasts, and the largest factor."""
_LARGEST_DRIFT = 100.0
"""Largest factor by which a forward may seem faster or slower than at the start."""
_DOUBT_ALL = 0.3
"""Uncertainty of the whole curve, as a part of it: the machine is shared, and grows hot."""
_DOUBT_KEYS = 1e-4
"""Uncertainty of the cost of a key read by a row, as a part of a forward of one row."""

Forward = Callable[[int, int], object]
"""Runs a forward of so many rows of so many sessions, to its very end."""


class CostCurve:
    """Seconds of a forward. It never falls with rows, and goes on beyond the points it was given.

    Between points it is linear. `tile` is the number of rows by which a product is cut: behind the
    last point, and where the points leave its steps out, cost grows tile by tile.
    """

    def __init__(
        self, points: Sequence[tuple[int, float]], *, tile: int | None = None, session_s: float = 0
    ) -> None:
        """`points` are (rows, seconds) of one session, ascending; `session_s` adds every other."""
        self.points, self.session_s = points, session_s
        rows = [rows for rows, _ in points]
        if len(points) < 2 or rows[0] != 1 or rows != sorted(set(rows)):
            raise InvalidRequest(f"forwards of {rows} rows were timed, but must ascend from 1")
        own = [seconds for _, seconds in points]
        if not all(0 < seconds < math.inf for seconds in own) or not 0 <= session_s < math.inf:
            raise InvalidRequest("the time of a forward is not above 0, or no number")
        self._rows, self._points = rows, {count: point for point, count in enumerate(rows)}
        self.tile = tile
        self._scale = 1.0
        # A forward of several sessions never takes longer than one for each of them.
        self._session_s = min(float(session_s), own[0])
        self._key_s = 0.0
        # A forward takes no longer than a larger one, whatever another program made of it.
        self._start_s = [*accumulate(reversed(own), min)][::-1]
        self._own_factors = [1.0] * len(own)
        self._seconds = self._rising()

    def seconds(self, rows: int, sessions: int = 1, keys: int = 0) -> float:
        """Return the time of a forward of `rows` rows; `keys` are those read, summed over rows."""
        if rows < 1 or sessions < 1 or keys < 0:
            raise InvalidRequest(f"no forward has {rows} rows of {sessions} sessions, {keys} keys")
        return self._scale * self._own(rows, sessions) + self._key_s * keys

    def record(self, rows: int, sessions: int = 1, keys: int = 0, *, seconds: float) -> None:
        """Take in what a step took; what is no time is left out.

        The speed of the whole and the cost of a key take the parts of the surprise that they are as
        uncertain of. (One step of a Kalman filter whose doubts stay as they are.)
        """
        if not seconds >= 0:
            return
        own, first = self._own(rows, sessions), self._seconds[0] * self._scale
        expected = self._scale * own + self._key_s * keys
        limit = _LARGEST_SURPRISE * expected
        surprise = _GAIN * min(max(seconds - expected, -limit), limit)
        doubt_all = (self._scale * own * _DOUBT_ALL) ** 2
        doubt_keys = (keys * first * _DOUBT_KEYS) ** 2
        if abs(seconds - expected) <= limit:
            part = (seconds - expected) / expected * doubt_all / (doubt_all + doubt_keys)
            self._record_own(rows, part)
        surprise /= doubt_all + doubt_keys
        if keys:
            self._key_s = _within(self._key_s + surprise * doubt_keys / keys, 0.0, first)
        scale = self._scale + surprise * doubt_all / own
        self._scale = _within(scale, 1 / _LARGEST_DRIFT, _LARGEST_DRIFT)

    def _record_own(self, rows: int, surprise: float) -> None:
        """Take in for steps of as many rows by which part one took longer: where memory is waited
        for, a few rows cost nothing; where it got faster, they do."""
        index, weight = self._place(self._inside(rows)[0])
        surprise = _OWN_GAIN * _within(surprise, -_OWN_SURPRISE, _OWN_SURPRISE)
        for point, part in ((index, 1 - weight), (index + 1, weight)):
            factor = self._own_factors[point]
            factor += part * (factor * surprise - _OWN_DECAY * (factor - 1))
            self._own_factors[point] = _within(factor, 1 / _LARGEST_OWN, _LARGEST_OWN)
        self._seconds = self._rising()

    def _rising(self) -> list[float]:
        """Return the points' times; more rows never cost less."""
        own = [time * factor for time, factor in zip(self._start_s, self._own_factors, strict=True)]
        return monotone(own, [1.0] * len(own))

    def _own(self, rows: int, sessions: int) -> float:
        """Return the time without keys, at the speed of the start."""
        return self._alone(rows) + self._session_s * (sessions - 1)

    def _alone(self, rows: int) -> float:
        """Return the time of one session's rows, at the speed of the start."""
        if (point := self._points.get(rows)) is not None:
            return self._seconds[point]
        inside, num_periods = self._inside(rows)
        if not num_periods:
            return self._between(inside)
        low_s, high_s = self._between(self._rows[-1] - self._period), self._seconds[-1]
        rise_s, begun_s = high_s - low_s, self._between(inside) - low_s
        return high_s + min((num_periods - 1) * rise_s + begun_s, num_periods * rise_s)

    def _between(self, rows: int) -> float:
        """Return the time of rows within the points: never less for more, not by a rounding."""
        index, weight = self._place(rows)
        low_s, high_s = self._seconds[index : index + 2]
        return min(low_s + weight * (high_s - low_s), high_s)

    def _place(self, rows: float) -> tuple[int, float]:
        """The point below and the weight of the next one."""
        index = min(bisect_right(self._rows, rows) - 1, len(self._rows) - 2)
        low, high = self._rows[index : index + 2]
        return index, (rows - low) / (high - low)

    def _inside(self, rows: int) -> tuple[int, int]:
        """Return the rows within the points that cost as much, but for so many periods."""
        num_periods = max(-(-(rows - self._rows[-1]) // self._period), 0)
        return rows - num_periods * self._period, num_periods

    @property
    def _period(self) -> int:
        """Rows behind the last point after which cost rises alike again."""
        last = self._rows[-1]
        return self.tile if self.tile and last >= 2 * self.tile else last // 2


def _within(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)


def learn(
    forward: Forward, clock: Clock, *, seconds: float, max_rows: int = 128, tile: int | None = None
) -> CostCurve:
    """Time forwards of rising size, over and over for so many seconds; the fastest of each count.

    A first forward warms up, and a few are timed in any case. `tile` is as in `CostCurve`.
    """
    best = _fastest(forward, clock, _agenda(tile, max_rows), seconds)
    crowd_s = best.pop((CROWD, CROWD), 0.0)
    points = [(rows, best[rows, sessions]) for rows, sessions in sorted(best)]
    more_s = max(crowd_s - CostCurve(points, tile=tile).seconds(CROWD), 0.0)
    return CostCurve(points, tile=tile, session_s=more_s / (CROWD - 1))


def _fastest(
    forward: Forward, clock: Clock, agenda: Iterable[tuple[int, int]], limit_s: float
) -> dict[tuple[int, int], float]:
    """Seconds by rows and sessions. Whatever else runs on the machine only ever adds to them, and
    slows forwards of one row just before alike: the usual ratio to these counts if it is less.

    What there was no time to run twice is left out: one time alone may be anything.
    """

    def timed(size: tuple[int, int]) -> float:
        began = clock()
        forward(*size)
        return max(clock() - began, 1e-9)

    seconds: dict[tuple[int, int], list[tuple[float, float]]] = {}
    start, first_s = clock(), math.inf
    forward(1, 1)
    for size in agenda:
        if len(seconds) >= _LEAST and clock() - start > limit_s:
            break
        first_s = min(first_s, before_s := timed((1, 1)))
        seconds.setdefault(size, []).append((taken_s := timed(size), taken_s / before_s))
    enough = min(2, *(len(seconds[size]) for size in list(seconds)[:_LEAST]))
    return {
        size: min(min(each)[0], first_s * max(median_low(ratio for _, ratio in each), 1.0))
        for size, each in seconds.items()
        if len(each) >= enough
    }


def _agenda(tile: int | None, max_rows: int) -> list[tuple[int, int]]:
    """Forwards in the order to run them: small trees, and both sides of the first step, come twice
    before anything else, which only refines them."""
    steps, rows = (tile, tile + 1, 2 * tile) if tile else (), ladder(tile, max_rows)
    firsts = [count for count in (1, *steps, *_FIRST) if count in rows]
    wanted = [(count, 1) for count in dict.fromkeys((*firsts, *rows))]
    first, trees = [*wanted[:_LEAST], (CROWD, CROWD)], [one for one in wanted if one[0] <= _TREE]
    return [*first * 2, *trees * _PASSES, *wanted[_LEAST:] * 2, *trees * _PASSES]


def ladder(tile: int | None, max_rows: int) -> tuple[int, ...]:
    """Rows worth timing: both sides of every step of the staircase among them."""
    limit = max(max_rows, 2 * tile if tile else 2)
    steps = range(tile, limit, tile) if tile else ()
    rows = {*_LADDER, limit, *steps, *(rows + 1 for rows in steps)}
    return tuple(sorted(count for count in rows if count <= limit))

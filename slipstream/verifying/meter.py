"""Costs of steps, and what goes by them: offers of rounds, budgets of steps, time by activity."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from slipstream.core.errors import check
from slipstream.core.policy.cost_curve import CostCurve, ladder
from slipstream.core.round import Clock
from slipstream.core.row_costs import Offer, RowCosts

WINDOW_S = 30.0

MAX_ROWS = 128
"""Tokens of one session's round at most: the largest tree and its root."""
ALONE = 4.0
"""Plain rounds that a round may cost which has the target to itself: its request knows how likely
its own nodes are, and prices them."""
KEPT = 0.8
"""Tokens that each doubling of a round's tokens is assumed to bring, where sessions share steps. A
request whose draft brings less backs off by itself."""
_SHORT_STEP = 8
"""A staircase with shorter steps counts as a slope."""
_NUM_STEPS = 8
"""Steps whose largest number of sessions is the batch size."""
_REFRESH = 4
"""Steps after which an offer is decided anew; another batch size has a new one at once."""
_KEYS_WEIGHT = 0.1

_FREE = 1.05
"""Times the cost of a step that count as no more: curves that are measured are never quite flat."""
_FEW_TOKENS = 8
"""Prompts that got less than this are owed a chunk in the next step."""
MAX_SLOWDOWN = 1.8
"""Times the cost of a step of running sessions that one with prompts beside them may cost."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step of `num_tokens` batched tokens of so many sessions, which read `num_keys` keys: summed
    over tokens. It took `seconds`."""

    num_tokens: int
    num_sessions: int
    num_keys: int
    seconds: float


class LoadMeter:
    """Offers the number of tokens that breaks even at the batch size, by the cost curve.

    Cost is that of a step in which every session does alike: what one of them takes for itself is
    taken from the others, so that none may count on their frugality.
    """

    def __init__(self, curve: CostCurve, *, max_tokens: int = 512) -> None:
        """`max_tokens` is what a step has room for."""
        self.curve = curve
        self._max_tokens = max_tokens
        self._recent = deque([1], maxlen=_NUM_STEPS)
        self._keys_per_token = 0.0
        self._offer: Offer | None = None
        self._size = 0
        self._age = 0

    def offer(self, num_verdicts: int) -> Offer:
        """Return what each session gets with its verdict, of which this step has so many.

        A step that only reads prompts says nothing of the batch size."""
        if num_verdicts:
            self._recent.append(num_verdicts)
        size = max(self._recent)
        self._age += 1
        if self._offer is None or size != self._size or self._age >= _REFRESH:
            self._size, self._age = size, 0
            self._offer = self._decided(size)
        return self._offer

    def record(self, step: StepCost) -> None:
        """Learn from a step; one whose time is none teaches nothing."""
        if not 0 <= step.seconds < math.inf:
            return
        num_tokens, num_keys = step.num_tokens, step.num_keys
        self.curve.record(num_tokens, step.num_sessions, num_keys, seconds=step.seconds)
        self._keys_per_token += _KEYS_WEIGHT * (num_keys / num_tokens - self._keys_per_token)

    def _decided(self, sessions: int) -> Offer:
        """Return the offer to each of so many sessions, with the costs of its tokens, at each step
        of the staircase if there is one."""
        tile = self.curve.tile
        limit = max(min(self._max_tokens // sessions, MAX_ROWS), 1)
        if sessions == 1:
            limit = min(limit, tile or limit)
        plain_s = self._seconds(1, sessions)
        every = ((rows, self._seconds(rows, sessions) / plain_s) for rows in range(1, limit + 1))
        costs = dict(takewhile(lambda one: one[1] <= ALONE, every) if sessions == 1 else every)
        if sessions == 1:
            rows = len(costs)
        else:
            rows = max(costs, key=lambda rows: (1 + KEPT * math.log2(rows)) / costs[rows])
        step = (tile or 0) // sessions
        steps = sorted({1, *ladder(step if step >= _SHORT_STEP else None, rows), rows})
        points = [(step, costs[step]) for step in steps if step <= rows]
        return Offer(rows, plain_s, RowCosts.rising(points))

    def _seconds(self, rows: int, sessions: int) -> float:
        num_keys = round(self._keys_per_token * rows * sessions)
        return self.curve.seconds(rows * sessions, sessions, num_keys)


@dataclass(frozen=True, slots=True)
class StepBudget:
    """The batched tokens of a step: `max_tokens` in all; products are computed `tile` at a time.

    Prompts may make a step of running sessions `MAX_SLOWDOWN` times as long as it would be without,
    and no more than `max_delay_s` longer. Where that leaves them too little, they get up to a tile
    more within `max_delay_s` every other step, and a few tokens at any price.
    """

    max_tokens: int = 256
    tile: int = 32
    max_delay_s: float = math.inf
    seconds: Callable[[int, int], float] | None = None
    """Time of a step of so many tokens that read so many keys, summed over tokens; None: every tile
    costs the same."""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "tile"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")

    @property
    def few_tokens(self) -> int:
        """The least that waiting prompts get every other step."""
        return min(_FEW_TOKENS, max(self.max_tokens // 2, 1))

    def cost_s(self, num_tokens: int, num_keys: int = 0) -> float:
        """Return the time of a step of so many tokens and keys; never less for more."""
        if self.seconds is None:
            return float(self.tile_end(num_tokens))
        return self.seconds(num_tokens, num_keys)

    def num_free(self, num_tokens: int) -> int:
        """Return how many more tokens such a step would take at next to no cost."""
        base = max(num_tokens, 1)
        if self.seconds is None:
            return self.tile_end(base) - num_tokens
        return max(self._most_within(base, _FREE * self.cost_s(base), self.cost_s) - num_tokens, 0)

    def most_beside(self, num_tokens: int, num_keys: Callable[[int], int], *, is_owed: bool) -> int:
        """Return the size of the largest step that prompts may make of one of so many tokens.

        `num_keys` are the keys of a step by its size; `is_owed` if it has to hold a chunk.
        """

        def cost_s(size: int) -> float:
            return self.cost_s(size, num_keys(size))

        base = max(num_tokens, 1)
        base_s = cost_s(base)
        latest_s = base_s + self.max_delay_s
        end = self._most_within(base, min(MAX_SLOWDOWN * base_s, latest_s), cost_s)
        if is_owed:
            least = num_tokens + self.few_tokens
            most = min(self._most_within(base, latest_s, cost_s), self.tile_end(least))
            end = max(end, most, least)
        return end

    def tile_end(self, num_tokens: int) -> int:
        """Return the end of the tile that `num_tokens` end in, or of the budget."""
        return min(-(-num_tokens // self.tile) * self.tile, max(self.max_tokens, num_tokens))

    def _most_within(self, base: int, limit_s: float, cost_s: Callable[[int], float]) -> int:
        """Return the most tokens, from `base` on, whose step takes no longer; else `base - 1`."""
        choices = range(base, self.max_tokens + 1)
        return base - 1 + bisect_right(choices, limit_s, key=cost_s)


class Activity(StrEnum):
    BUSY = "busy"
    """A step is under way."""
    WAITING = "waiting_for_draft"
    """No step is, and at least one running session is between two rounds: being drafted for."""
    IDLE = "idle"
    """No step is, and no running session is about to come again."""


class TimeSpent:
    """Seconds by activity; together they are all the time there was."""

    def __init__(self, clock: Clock) -> None:
        """Idle at first."""
        self._clock = clock
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
        while len(marks) > 2 and marks[1][0] <= now - WINDOW_S:
            marks.popleft()
        began, before_s = marks[0]
        return (waited_s - before_s) / (now - began) if now > began else 0.0

    def _count(self) -> None:
        now = self._clock()
        self._seconds[self._now] += now - self._since
        self._since = now

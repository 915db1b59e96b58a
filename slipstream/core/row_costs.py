"""Cost of a round by the tokens that it verifies, how many pay, and a request's prices."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import le
from typing import ClassVar

from slipstream.core.errors import InvalidRequest, check

MAX_POINTS = 64
"""Most points of one curve: more would only make a long message."""
DEFAULT_STEP_COST = 0.05
"""Cost of a draft step in plain rounds, for drafts that have not been timed."""
DEFAULT_ROW_COST = 0.01
"""Cost of a row in plain rounds, for targets that do not report their costs."""


@dataclass(frozen=True, slots=True)
class RowCosts:
    """The time of a round by its batched tokens, in plain rounds: 1 for one token, then rising.

    `points` are (batched tokens, plain rounds), ascending; linear between them, and behind the last
    one as steep as on average. Raises `InvalidRequest` for points that are no such curve.
    """

    points: tuple[tuple[int, float], ...] = ((1, 1.0),)

    def __post_init__(self) -> None:
        points = self.points
        if not 1 <= len(points) <= MAX_POINTS or points[0] != (1, 1.0):
            raise InvalidRequest(
                f"{len(points)} costs of rounds start with {points[:1]}, but must be 1 to"
                f" {MAX_POINTS} and start with a plain round's"
            )
        for (low, below), (high, above) in pairwise(points):
            if not (low < high and below <= above < math.inf):
                raise InvalidRequest(
                    f"rounds of {low} and {high} tokens cost {below} and {above}: both must rise"
                )

    @classmethod
    def straight(cls, row_cost: float) -> "RowCosts":
        """Return the costs where every token but the first adds `row_cost` plain rounds."""
        return cls(((1, 1.0), (2, 1.0 + row_cost)))

    @classmethod
    def rising(cls, points: Sequence[tuple[int, float]]) -> "RowCosts":
        """Return the costs of (batched tokens, time), over the first's time.

        More tokens never take less, but by chance: then they cost what those before do.
        """
        slowest = accumulate((time for _, time in points), max)
        each = zip(points, slowest, strict=True)
        return cls(tuple((rows, time / points[0][1]) for (rows, _), time in each))

    def of(self, num_tokens: int) -> float:
        """Return the plain rounds that a round of so many tokens takes."""
        last, most = self.points[-1]
        if num_tokens >= last:
            slope = (most - 1.0) / (last - 1) if last > 1 else 0.0
            return most + slope * (num_tokens - last)
        index = bisect_right(self.points, (num_tokens, math.inf))
        low, high = self.points[index - 1 : index + 1]
        share = (num_tokens - low[0]) / (high[0] - low[0])
        return low[1] + share * (high[1] - low[1])

    @lru_cache(maxsize=64)  # noqa: B019 - of values: they hold nothing
    def nodes(self, count: int) -> tuple[float, ...]:
        """Return what each of the first `count` tree nodes adds to a round, in plain rounds."""
        costs = [self.of(1 + nodes) for nodes in range(count + 1)]
        return tuple(after - before for before, after in pairwise(costs))


def monotone(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the ascending sequence nearest in weighted squares (pool adjacent violators)."""
    if all(map(le, values, values[1:])):
        return [*values]
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, low_weight, low_size), (high, high_weight, high_size) = pools[-2:]
            total = low_weight + high_weight
            mean = (low * low_weight + high * high_weight) / total
            pools[-2:] = [(mean, total, low_size + high_size)]
    return [value for value, _, size in pools for _ in range(size)]


def num_paying(values: Sequence[float], prices: Sequence[float]) -> int:
    """Return how many of the first `values` to take so that they exceed their prices by the most.

    Prices that are not given are 0. As prices may fall behind a step, cheap ones are worth going
    through dear ones for.
    """
    padded = (*prices[: len(values)], *(0.0,) * (len(values) - len(prices)))
    gains = accumulate((value - price for value, price in zip(values, padded, strict=True)))
    best, count = 0.0, 0
    for number, gain in enumerate(gains, 1):
        if gain > best or (gain == best and not prices):
            best, count = gain, number
    return count


def step_worth(step: float, prices: Sequence[float]) -> float:
    """Return the least probability of a path that makes another draft step pay: at `prices` of
    nodes, it and an average one take the time in which so many tokens come about otherwise."""
    return min(step + sum(prices) / max(len(prices), 1), 1.0)


@dataclass(frozen=True, slots=True)
class Offer:
    """Budget of a session's next round: up to `rows` tokens, the pending one included.

    A plain round takes `round_s` seconds, and one of more tokens what `costs` says; None: unknown.
    """

    rows: int
    round_s: float | None = None
    costs: RowCosts | None = None

    def __post_init__(self) -> None:
        check(self.rows >= 1, "an offer's number of rows", self.rows, "at least 1")
        is_right = self.round_s is None or 0 <= self.round_s < math.inf
        check(is_right, "an offer's round_s", self.round_s, "0 or more")


@dataclass(eq=False, kw_only=True)
class Prices:
    """The costs of one request's rounds, from verdict to verdict, in plain rounds.

    A plain round includes the way to the target and back. Costs are what was measured where the
    request runs, unless a profile that the user named pins them: `step_cost` and `row_cost`, in
    plain rounds, hold whatever is measured.
    """

    WEIGHT: ClassVar = 0.2
    LARGEST_RISE: ClassVar = 4.0
    """A wait that is so many times the usual one, or more, counts as so many."""
    MEMORY: ClassVar = 0.9
    """Part of the weight of proposals' times that is left after another."""
    START_WEIGHT: ClassVar = 0.05
    """Weight of a start that takes no time; the step that was timed at first has 1."""

    step_cost: float | None = None
    row_cost: float | None = None
    step_s: float | None = None
    """Seconds that one more draft step takes: at first what it took when the draft was loaded."""
    start_s: float = 0.0
    """Seconds that a proposal takes beside its steps: the target has filled the caches."""
    target_way_s: float | None = None
    """Seconds of a round outside the target's engine, if known."""
    draft_way_s: float | None = None
    """Seconds of a proposal outside the draft's engine, if known."""
    are_granted: bool = False
    """True once plain rounds are known to be granted: their way is that of a granted one."""
    _engine_s: float | None = None
    """Seconds of a plain round in the target's engine, if known."""
    _timed_s: float | None = None
    _sums: tuple[float, ...] = (0.0,) * 5
    """Sums over proposals: number, steps, squared steps, times, times by steps."""

    def __post_init__(self) -> None:
        self._pinned = None if self.row_cost is None else RowCosts.straight(self.row_cost)
        self._costs = self._pinned or RowCosts.straight(DEFAULT_ROW_COST)

    @property
    def round_s(self) -> float | None:
        """Seconds of a plain round, if known."""
        return None if self._engine_s is None else self._engine_s + (self.target_way_s or 0.0)

    @property
    def step(self) -> float:
        """Plain rounds that one more draft step takes."""
        if self.step_cost is not None:
            return self.step_cost
        if self.step_s is None or not self.round_s:
            return DEFAULT_STEP_COST
        return self.step_s / self.round_s

    def round(self, num_nodes: int) -> float:
        """Return the plain rounds that verifying so many nodes takes."""
        return 1.0 + self._engine_share * (self._costs.of(1 + num_nodes) - 1.0)

    def nodes(self, count: int, speed: float = 1.0) -> tuple[float, ...]:
        """Return what the first, second … of `count` nodes adds to that, in tokens at a `speed`."""
        share = speed * self._engine_share
        return tuple([share * cost for cost in self._costs.nodes(count)])

    def take(self, offer: Offer | None) -> None:
        """Go by another offer from now on."""
        if offer is not None:
            self._engine_s = offer.round_s or self._engine_s
            self._costs = self._pinned or offer.costs or self._costs

    def waited(self, seconds: float) -> float:
        """Return the plain rounds that a wait takes."""
        return seconds / self.round_s if self.round_s and 0 <= seconds < math.inf else 0.0

    def verified(
        self, waited_s: float, engine_s: float | None, *, is_granted: bool = False
    ) -> float:
        """Learn that a verification took so long, and the target's engine so long of that, None
        where nothing lies between. What is no time teaches nothing.

        Return the plain rounds that it took longer on its way than those that are granted.
        """
        way_s = -1.0 if engine_s is None else waited_s - engine_s
        if not 0 <= way_s < math.inf:
            return 0.0
        if self.are_granted and not is_granted:
            return self.waited(max(way_s - (self.target_way_s or 0.0), 0.0))
        usual_s = self.target_way_s if self.are_granted or not is_granted else None
        self.target_way_s, self.are_granted = self._usual(usual_s, way_s), is_granted
        return 0.0

    def drafted(self, num_steps: int, waited_s: float | None, engine_s: float | None) -> float:
        """Learn that a proposal of so many steps took so long, and its engine so long of that, None
        where nothing lies between; return its cost in plain rounds.

        One whose time is not given is counted as the others are. What is no time teaches nothing.
        """
        if waited_s is not None and not 0 <= waited_s < math.inf:
            waited_s = None
        if waited_s is None or not self.round_s or self.step_cost is not None:
            return num_steps * self.step + self.waited(self.start_s)
        engine_s = waited_s if engine_s is None else min(max(engine_s, 0.0), waited_s)
        way_s = waited_s - engine_s
        self.draft_way_s = self._usual(self.draft_way_s, way_s)
        way_s = min(way_s, self.LARGEST_RISE * self.draft_way_s)
        return (way_s + self._learn(max(num_steps, 1), engine_s)) / self.round_s

    def _learn(self, num_steps: int, engine_s: float) -> float:
        """Fit start and steps to proposals' times by least squares; return this one's, no stall."""
        step_s = engine_s / num_steps if self.step_s is None else self.step_s
        self._timed_s = timed_s = step_s if self._timed_s is None else self._timed_s
        usual_s = self.start_s + num_steps * step_s
        engine_s = min(engine_s, self.LARGEST_RISE * max(usual_s, 0.01 * (self.round_s or 0.0)))
        added = 1, num_steps, num_steps**2, engine_s, num_steps * engine_s
        sums = [self.MEMORY * of + more for of, more in zip(self._sums, added, strict=True)]
        self._sums, [count, steps, squares, total_s, by_steps_s] = tuple(sums), sums
        count, squares, by_steps_s = count + self.START_WEIGHT, squares + 1, by_steps_s + timed_s
        start_s = (total_s * squares - by_steps_s * steps) / (count * squares - steps**2)
        self.start_s = start_s if 0 < start_s < math.inf else 0.0
        self.step_s = max((by_steps_s - steps * self.start_s) / squares, 0.0)
        return engine_s

    @property
    def _engine_share(self) -> float:
        """Share of a plain round in the target's engine, which alone nodes make longer."""
        if self._pinned is not None or not self.round_s:
            return 1.0
        return (self._engine_s or 0.0) / self.round_s

    def _usual(self, usual_s: float | None, seconds: float) -> float:
        """Return the average after another time; a stall counts as `LARGEST_RISE` times."""
        if usual_s is None:
            return seconds
        return usual_s + self.WEIGHT * (min(seconds, self.LARGEST_RISE * usual_s) - usual_s)


class Average:
    """The mean of what was recorded, the last values counting more in the long run."""

    def __init__(self, first: float, *, num_values: float, weight: float) -> None:
        """`first` is what is assumed before any value, and counts for `num_values` of them;
        `weight` is that of a value in the long run."""
        self.value = first
        self.num_values = num_values
        self._weight = weight

    def record(self, value: float, count: float = 1.0) -> None:
        """Take in a value, which counts for so much of one."""
        self.num_values += count
        self.value += count * max(self._weight, 1 / self.num_values) * (value - self.value)

"""Who joins the next forward of a target, and with how many rows. Pure queue logic.

Work that needs only its last final token goes first: those are running sessions, and somebody
reads along. Prompts go in chunks beside them, in turn. Knows neither tensors nor time: what rows
cost is a function that it is given.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from slipstream.core.errors import InvalidRequest

K = TypeVar("K", bound=Hashable)

Seconds = Callable[[int], float]
"""What a forward of so many rows takes."""

_FREE = 1.05
"""Times the cost of a step that count as no more: curves that are measured are never quite flat."""
_FEW_ROWS = 8
"""Prompts that got less than this are owed a chunk in the next step."""


@dataclass(frozen=True, slots=True)
class RowBudget:
    """The rows of a step: `max_rows` in all; products are computed `tile` rows at a time.

    Prompts may make a step of running sessions `max_slowdown` times as long as it would be
    without; only where that leaves them too little, one tile more, every other step.
    """

    max_rows: int = 256
    tile: int = 32
    max_slowdown: float = 1.8
    seconds: Seconds | None = None
    """None: every tile costs the same."""

    def __post_init__(self) -> None:
        if self.max_rows < 1:
            raise InvalidRequest(f"max_rows is {self.max_rows}, but must be at least 1")
        if self.tile < 1:
            raise InvalidRequest(f"tile is {self.tile}, but must be at least 1")
        if not self.max_slowdown >= 1:
            raise InvalidRequest(f"max_slowdown is {self.max_slowdown}, but must be at least 1")

    @property
    def few_rows(self) -> int:
        """The least that waiting prompts get every other step."""
        return min(_FEW_ROWS, max(self.max_rows // 2, 1))

    def cost_s(self, rows: int) -> float:
        """What a step of so many rows takes; never less for more."""
        return float(self.border(rows)) if self.seconds is None else self.seconds(rows)

    def num_free(self, rows: int) -> int:
        """Rows that a step of so many would still take at next to no cost."""
        base = max(rows, 1)
        if self.seconds is None:
            return self.border(base) - rows
        choices = range(base, self.max_rows + 1)
        num_same = bisect_right(choices, _FREE * self.seconds(base), key=self.seconds)
        return max(base + num_same - 1 - rows, 0)

    def border(self, rows: int) -> int:
        """The end of the tile that `rows` end in, or of the budget."""
        return min(-(-rows // self.tile) * self.tile, max(self.max_rows, rows))


@dataclass(frozen=True, slots=True)
class Portion(Generic[K]):
    """What of a work joins the next step: final tokens, and with the last one its tree."""

    key: K
    num_pending: int
    is_last: bool


@dataclass(eq=False, slots=True)
class _Work(Generic[K]):
    key: K
    num_pending: int
    num_nodes: int
    place: int
    """In the queue: those that waited longer come first."""

    @property
    def num_rows(self) -> int:
        return self.num_pending + self.num_nodes


class Schedule(Generic[K]):
    """The work that waits for a target. `next` takes what joins a step out of it."""

    def __init__(self, budget: RowBudget) -> None:
        self._budget = budget
        self._works: dict[K, _Work[K]] = {}
        self._num_places = 0
        self._is_owed = False
        """Whether prompts had to stand back in the last step."""

    def __len__(self) -> int:
        return len(self._works)

    def __contains__(self, key: K) -> bool:
        return key in self._works

    def add(self, key: K, *, num_pending: int, num_nodes: int) -> None:
        """Work that waits from now on: tokens to be cached, and a tree below the last of them."""
        assert num_pending >= 1 and key not in self._works
        self._works[key] = _Work(key, num_pending, num_nodes, self._place())

    def remove(self, key: K) -> None:
        """Forget it; one that is not there is fine."""
        self._works.pop(key, None)

    def next(self, *, has_company: bool = False) -> list[Portion[K]]:
        """What the next step computes; taken as done.

        `has_company` says that sessions run which do not wait now: prompts leave room for them to
        come back soon. No more rows than the budget, but for one work that is larger by itself.
        """
        works = sorted(self._works.values(), key=lambda work: work.place)
        ready = [work for work in works if work.num_pending == 1]
        prompts = [work for work in works if work.num_pending > 1]
        reserved = self._budget.few_rows if prompts and self._is_owed else 0
        chosen, num_rows = self._fitting(ready, reserved)
        is_shared = has_company or bool(ready)
        limit = self._chunk(num_rows, is_shared) if prompts else 0
        portions = self._chunks(prompts, limit)
        given = sum(portion.num_pending for portion in portions)
        is_left = any(work.num_pending > 1 for work in self._works.values())
        self._is_owed = is_left and given < self._budget.few_rows
        return [*(self._whole(work) for work in chosen), *portions]

    def _fitting(self, ready: Sequence[_Work[K]], reserved: int) -> tuple[list[_Work[K]], int]:
        """Those that fit, the longest waiting first, and their rows.

        One that is too large for any step goes alone, when it is the first.
        """
        max_rows = self._budget.max_rows
        if ready and ready[0].num_rows > max_rows and not reserved:
            return [ready[0]], ready[0].num_rows
        chosen, num_rows = [], 0
        for work in ready:
            if num_rows + work.num_rows <= max_rows - reserved:
                chosen.append(work)
                num_rows += work.num_rows
        return chosen, num_rows

    def _chunk(self, num_rows: int, is_shared: bool) -> int:
        """How many rows of prompts join `num_rows` others.

        As many as may slow the step down, in whole tiles where that is not too few: the rest of a
        tile costs next to nothing. What is owed is given at any price.
        """
        budget = self._budget
        if not is_shared or num_rows >= budget.max_rows:
            return max(budget.max_rows - num_rows, 0)
        base = max(num_rows, 1)
        allowed_s = budget.max_slowdown * budget.cost_s(base)
        choices = range(base, budget.max_rows + 1)
        end = choices[bisect_right(choices, allowed_s, key=budget.cost_s) - 1]
        if self._is_owed:
            end = max(end, budget.border(num_rows + budget.few_rows))
        whole = end // budget.tile * budget.tile
        return (whole if whole - num_rows >= budget.few_rows else end) - num_rows

    def _chunks(self, prompts: Sequence[_Work[K]], limit: int) -> list[Portion[K]]:
        """`limit` rows for the prompts, in turn: who got some goes to the end of the queue."""
        portions = []
        for work in prompts:
            if work.num_rows <= limit:
                portion = self._whole(work)
                limit -= work.num_rows
            else:
                part = min(limit, work.num_pending - 1)
                if part == 0:
                    break
                work.num_pending -= part
                work.place = self._place()
                portion = Portion(work.key, part, is_last=False)
                limit -= part
            portions.append(portion)
        return portions

    def _whole(self, work: _Work[K]) -> Portion[K]:
        del self._works[work.key]
        return Portion(work.key, work.num_pending, is_last=True)

    def _place(self) -> int:
        self._num_places += 1
        return self._num_places

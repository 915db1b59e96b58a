"""Choice of the requests that join the next forward of a target, and their tokens. Pure.

Requests with one pending token go first: they are running sessions, whose readers wait. Prompts go
in chunks beside them, in turn. The cost of a step is a function that is given, of its tokens and of
the keys that they read: a token of a long prompt costs several times as much at its end.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slipstream.core.errors import InvalidRequest
from slipstream.verifying.request import TargetRequest

_FREE = 1.05
"""Times the cost of a step that count as no more: curves that are measured are never quite flat."""
_FEW_TOKENS = 8
"""Prompts that got less than this are owed a chunk in the next step."""


@dataclass(frozen=True, slots=True)
class StepBudget:
    """The batched tokens of a step: `max_tokens` in all; products are computed `tile` at a time.

    Prompts may make a step of running sessions `max_slowdown` times as long as it would be without,
    and no more than `max_delay_s` longer. Where that leaves them too little, they get up to a tile
    more within `max_delay_s` every other step, and a few tokens at any price.
    """

    max_tokens: int = 256
    tile: int = 32
    max_slowdown: float = 1.8
    max_delay_s: float = math.inf
    seconds: Callable[[int, int], float] | None = None
    """Time of a step of so many tokens that read so many keys, summed over tokens; None: every tile
    costs the same."""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "tile", "max_slowdown"):
            if not getattr(self, name) >= 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be at least 1")

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
        end = self._most_within(base, min(self.max_slowdown * base_s, latest_s), cost_s)
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


@dataclass(slots=True)
class ScheduledRequest:
    """Part of a request that joins a forward: pending tokens, with the last of them the tree."""

    request: TargetRequest
    num_pending: int
    is_last: bool = field(init=False)
    """True if the forward decides the request."""
    num_tokens: int = field(init=False)
    """Tokens that it adds to the forward, nodes included."""

    def __post_init__(self) -> None:
        self.is_last = self.num_pending == self.request.num_pending
        self.num_tokens = self.num_pending + (self.request.num_nodes if self.is_last else 0)


class Schedule:
    """The requests that wait for a target's forwards, those that waited longest first."""

    def __init__(self, budget: StepBudget) -> None:
        self._budget = budget
        self._waiting: dict[TargetRequest, None] = {}
        self._is_owed = False
        """True if prompts were left out of the last step."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: TargetRequest) -> bool:
        return request in self._waiting

    def add(self, request: TargetRequest) -> None:
        """Append a request to those that wait."""
        assert request.num_pending >= 1 and request not in self._waiting
        self._waiting[request] = None

    def remove(self, request: TargetRequest) -> None:
        """Forget a request; one that does not wait is fine."""
        self._waiting.pop(request, None)

    def next(self, *, has_company: bool = False) -> list[ScheduledRequest]:
        """Return what the next step computes. Requests that it decides wait no longer.

        `has_company` if sessions run which do not wait now: prompts leave room for them to
        come back soon. No more tokens than the budget, but for one request that is larger by
        itself. The step has to be computed before the next call.
        """
        few = self._budget.few_tokens
        ready = [request for request in self._waiting if request.num_pending == 1]
        prompts = [request for request in self._waiting if request.num_pending > 1]
        chosen = self._fitting(ready, few if prompts and self._is_owed else 0)
        limit = self._chunk(chosen, prompts, has_company or bool(ready)) if prompts else 0
        chunks = self._chunks(prompts, limit)
        left = {chunk.request: chunk.request.num_pending - chunk.num_pending for chunk in chunks}
        is_left = any(left.get(request, request.num_pending) > 1 for request in prompts)
        self._is_owed = is_left and sum(chunk.num_pending for chunk in chunks) < few
        scheduled = chosen + chunks
        for entry in scheduled:
            del self._waiting[entry.request]
            if not entry.is_last:  # to the end of the queue
                self._waiting[entry.request] = None
        return scheduled

    def _fitting(self, ready: Sequence[TargetRequest], reserved: int) -> list[ScheduledRequest]:
        """Return those that fit, the longest waiting first.

        One that is too large for any step goes alone, when it is the first.
        """
        room = self._budget.max_tokens - reserved
        chosen: list[ScheduledRequest] = []
        for entry in (ScheduledRequest(request, 1) for request in ready):
            if entry.num_tokens <= room:
                chosen.append(entry)
                room -= entry.num_tokens
            elif (
                entry.request is ready[0]
                and entry.num_tokens > self._budget.max_tokens
                and not reserved
            ):
                return [entry]
        return chosen

    def _chunk(
        self, chosen: Sequence[ScheduledRequest], prompts: Sequence[TargetRequest], is_shared: bool
    ) -> int:
        """Return how many tokens of prompts join the `chosen` sessions.

        As many as may slow the step down, in whole tiles where that is not too few: the rest of a
        tile costs next to nothing.
        """
        budget = self._budget
        num_tokens = sum(entry.num_tokens for entry in chosen)
        if not is_shared or num_tokens >= budget.max_tokens:
            return max(budget.max_tokens - num_tokens, 0)
        own_keys = sum(entry.num_tokens * entry.request.num_keys for entry in chosen)

        def num_keys(size: int) -> int:
            keys, left = own_keys, size - num_tokens
            for request in prompts:
                keys += min(left, request.num_pending) * request.num_keys
                left = max(left - request.num_pending, 0)
            return keys

        end = budget.most_beside(num_tokens, num_keys, is_owed=self._is_owed)
        whole = end // budget.tile * budget.tile
        return (whole if whole - num_tokens >= budget.few_tokens else end) - num_tokens

    def _chunks(self, prompts: Sequence[TargetRequest], limit: int) -> list[ScheduledRequest]:
        chunks = []
        for request in prompts:
            chunk = ScheduledRequest(request, request.num_pending)
            if chunk.num_tokens > limit:
                if limit == 0:
                    break
                chunk = ScheduledRequest(request, min(limit, request.num_pending - 1))
            chunks.append(chunk)
            limit -= chunk.num_tokens
        return chunks

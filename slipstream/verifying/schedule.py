"""Requests on the engine's thread: which join the next forward, and which wait for memory.

Requests with one pending token go first: they are running sessions, whose readers wait. Prompts go
in chunks beside them, in turn. The cost of a step is a function that is given, of its tokens and of
the keys that they read: a token of a long prompt costs several times as much at its end.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence

from slipstream.core.errors import InternalError, NoRoom
from slipstream.core.round import Clock
from slipstream.engine.thread import InternalErrors
from slipstream.verifying.engine import LocalTarget
from slipstream.verifying.meter import StepBudget
from slipstream.verifying.request import ScheduledRequest, TargetRequest, TargetStep

_LOG = logging.getLogger("slipstream.target")


class Schedule:
    """The requests that wait for a target's forwards, those that waited longest first."""

    def __init__(self, budget: StepBudget) -> None:
        self._budget = budget
        self._waiting: dict[TargetRequest, None] = {}
        self._is_owed = False
        """True if prompts were left out of the last step."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[TargetRequest]:
        return iter(self._waiting)

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


class RequestQueue:
    """The requests of one engine, at most one of each session."""

    def __init__(
        self, engine: LocalTarget, budget: StepBudget, *, max_waiting: int, clock: Clock
    ) -> None:
        """Up to `max_waiting` requests wait for memory; more are refused."""
        self._engine = engine
        self._schedule = Schedule(budget)
        self._max_waiting = max_waiting
        self._clock = clock
        self._arrivals: deque[TargetRequest] = deque()
        self.blocked: dict[TargetRequest, None] = {}
        """Requests that wait for memory, in order. Other threads read it between runs."""
        self._holding: set[str] = set()
        """Sessions that may hold memory: they began, and have not left."""

    def add(self, request: TargetRequest) -> None:
        """Queue a request for the next run. From any thread."""
        self._arrivals.append(request)

    def run(self, *, has_room: bool, has_company: bool) -> TargetStep | None:
        """Begin what has arrived, and what waited for memory if there `has_room`; then compute one
        step, if there is anything to compute."""
        # Before the drop: what takes a session over comes after the end of its predecessor.
        arrived = [self._arrivals.popleft() for _ in range(len(self._arrivals))]
        self._drop()
        if has_room:
            self._retry()
        for request in arrived:
            if not request.is_dropped:
                self._arrive(request)
        while self.blocked and self._is_stuck():
            request = next(iter(self.blocked))
            del self.blocked[request]
            request.error = self._begin(request) or request.error
            self._retry()
        return self._step(has_company=has_company)

    def leave(self, session_id: str) -> None:
        """Forget a session that has given its memory back."""
        self._holding.discard(session_id)

    def _drop(self) -> None:
        for request in [request for request in self._schedule if request.is_dropped]:
            self._schedule.remove(request)
        self.blocked = {request: None for request in self.blocked if not request.is_dropped}

    def _arrive(self, request: TargetRequest) -> None:
        """Begin a request, unless others without memory came before it."""
        is_next = request.sequence.session_id in self._holding or not self.blocked
        if is_next and self._begin(request) is None:
            return
        if len(self.blocked) < self._max_waiting:
            self.blocked[request] = None
            return
        request.error = NoRoom(
            f"{self._max_waiting} requests wait for memory already, the limit; try again later"
        )

    def _retry(self) -> None:
        for request in list(self.blocked):
            if self._begin(request) is not None:
                return
            del self.blocked[request]

    def _is_stuck(self) -> bool:
        """Return whether no session is left that could give memory back."""
        waiting = {request.sequence.session_id for request in self.blocked}
        return not len(self._schedule) and self._holding <= waiting

    def _begin(self, request: TargetRequest) -> NoRoom | None:
        """Begin a request, or fail it; return the error if it has to wait for memory."""
        try:
            self._engine.begin(request)
        except NoRoom as error:
            return error
        except Exception as error:
            request.error = error
            return None
        self._holding.add(request.sequence.session_id)
        self._schedule.add(request)
        return None

    def _step(self, *, has_company: bool) -> TargetStep | None:
        batch = self._schedule.next(has_company=has_company)
        if not batch:
            return None
        num_tokens = sum(entry.num_tokens for entry in batch)
        failure: InternalError | None = None
        began = self._clock()
        try:
            with InternalErrors("target"):
                self._engine.step(batch)
        except InternalError as error:
            _LOG.exception("a step of %d sessions failed", len(batch))
            failure = error
        seconds = self._clock() - began
        step = TargetStep(num_tokens, len(batch), began, seconds, has_failed=failure is not None)
        for request in (entry.request for entry in batch):
            request.began = began if request.began is None else request.began
            request.engine_s += seconds
            request.step = step
            request.error = failure or request.error
            if request.is_done:
                self._schedule.remove(request)
        return step

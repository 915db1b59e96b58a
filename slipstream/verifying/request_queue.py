"""Requests on the engine's thread: those that began, and those that wait for memory.

One `run` takes in what has arrived and computes one step of it.
"""

import logging
from collections import deque

from slipstream.core.errors import InternalError, NoRoom
from slipstream.core.round import Clock
from slipstream.engine.thread import internal_errors
from slipstream.verifying.engine import LocalTarget
from slipstream.verifying.request import TargetRequest, TargetStep
from slipstream.verifying.schedule import Schedule

_LOG = logging.getLogger("slipstream.target")


class RequestQueue:
    """The requests of one engine, at most one of each session."""

    def __init__(
        self,
        engine: LocalTarget,
        schedule: Schedule,
        *,
        max_waiting: int,
        clock: Clock,
    ) -> None:
        """Up to `max_waiting` requests wait for memory; more are refused."""
        self._engine = engine
        self._schedule = schedule
        self._max_waiting = max_waiting
        self._clock = clock
        self._arrivals: deque[TargetRequest] = deque()
        self._active: set[TargetRequest] = set()
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
        for request in [request for request in self._active if request.is_dropped]:
            self._end(request)
        self.blocked = {request: None for request in self.blocked if not request.is_dropped}

    def _end(self, request: TargetRequest) -> None:
        self._schedule.remove(request)
        self._active.discard(request)

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
        return not self._active and self._holding <= waiting

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
        self._active.add(request)
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
            with internal_errors("target"):
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
                self._end(request)
        return step

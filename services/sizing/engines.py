"""Simulated engines: they batch as the real ones do, and take the time of a recording.

A target's steps begin by the real rules, and hold what its real queue schedules. A draft
takes all sessions that are there along in every pass.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import count

from slipstream.engine.batch_window import BatchWindow
from slipstream.sizing.recording import DeviceTimes
from slipstream.target.schedule import Schedule, StepBudget
from slipstream.target.time_spent import Activity, TimeSpent

Callback = Callable[[], None]
_SHORTEST_WAIT_S = 0.0005
_CHUNK = 256
"""Tokens of a prefix that a draft computes in one pass."""


class Clock:
    """Simulated time: callbacks in order of time; at the same time in the order of their calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callback]] = []
        self._order = count()

    def after(self, seconds: float, callback: Callback) -> None:
        """Run the callback so many seconds from now."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), callback))

    def run(self) -> None:
        """Run until no callback is left."""
        while self._heap:
            self.now, _, callback = heapq.heappop(self._heap)
            callback()


@dataclass(frozen=True, slots=True)
class SimVerification:
    """Tokens to be cached, and nodes below the last of them, of one session."""

    session: int
    pending: int
    nodes: int
    is_last: bool
    """Whether the session's request ends with it."""


@dataclass(eq=False, slots=True)
class SimJob:
    """A verification on its way, as `target/schedule.py` reads it."""

    work: SimVerification
    done: Callback
    num_pending: int
    num_nodes: int


class SimTarget:
    """A target, as `target/batcher.py`, with memory for all sessions."""

    def __init__(self, clock: Clock, times: DeviceTimes, max_tokens: int) -> None:
        self._clock = clock
        self._seconds = cache(times.curve().seconds)
        budget = StepBudget(max_tokens, seconds=self._seconds)
        self._schedule: Schedule[SimJob] = Schedule(budget)
        self._window: BatchWindow[int] = BatchWindow()
        self._arrivals: list[SimJob] = []
        self._is_stepping = False
        self._timer = 0
        """Number of the current wait; a timer of an earlier one is ignored."""
        self.busy_s = 0.0
        self.num_steps = self.num_tokens = self.num_running = self.last_request = 0
        self.spent = TimeSpent(lambda: clock.now)

    def verify(self, work: SimVerification, done: Callback) -> None:
        """Queue the work; its callback runs when its step ends."""
        self._arrivals.append(SimJob(work, done, work.pending, work.nodes))
        self._window.came(work.session, self._idle_s())
        self._consider()

    def leave(self, session: int) -> None:
        """Forget a session whose request has ended."""
        self.num_running -= 1
        self._window.gone(session)
        self._account()

    def _idle_s(self) -> float:
        """Return a time that stands still during steps."""
        return self._clock.now - self.busy_s

    def _consider(self) -> None:
        """Begin a step, or wait for sessions that are about to return."""
        self._account()
        if self._is_stepping or not (self._arrivals or len(self._schedule)):
            return
        wait_s = self._window.wait_s(self._idle_s())
        self._timer += 1
        if wait_s <= 0:
            self._step()
            return
        timer = self._timer
        self._clock.after(
            max(wait_s, _SHORTEST_WAIT_S),
            lambda: self._consider() if timer == self._timer else None,
        )

    def _step(self) -> None:
        self._window.started(self._idle_s())
        for job in self._arrivals:
            self._schedule.add(job)
        self._arrivals.clear()
        batch = self._schedule.next(has_company=self._window.has_company)
        for at in batch:
            at.request.num_pending -= at.num_pending
        num_tokens = sum(at.num_tokens for at in batch)
        seconds = self._seconds(num_tokens, len(batch))
        jobs = [at.request for at in batch if at.is_last]
        self._is_stepping = True
        self._account()
        self.num_steps += 1
        self.num_tokens += num_tokens
        self._clock.after(seconds, lambda: self._end(jobs, seconds))

    def _end(self, jobs: list[SimJob], seconds: float) -> None:
        self._is_stepping = False
        self.busy_s += seconds
        away = [job.work.session for job in jobs if not job.work.is_last]
        self._window.stepped(away, self._idle_s(), seconds=seconds)
        for job in jobs:
            job.done()
        self._consider()

    def _account(self) -> None:
        away = Activity.WAITING if self._window.num_away else Activity.IDLE
        self.spent.turn(Activity.BUSY if self._is_stepping else away)


@dataclass(eq=False, slots=True)
class SimDrafting:
    """A proposal of `depth` levels behind `pending` tokens that the draft has not read yet."""

    pending: int
    depth: int

    def advance(self) -> int:
        """Take part in one pass, and return its tokens there."""
        if self.pending > _CHUNK:
            self.pending -= _CHUNK
            return _CHUNK
        num_tokens, self.pending = max(self.pending, 1), 0
        self.depth -= 1
        return num_tokens


@dataclass(slots=True)
class SimDraft:
    """A draft, as `draft/batcher.py`: a pass takes a level of the tree of every session."""

    clock: Clock
    times: DeviceTimes
    busy_s: float = 0.0
    num_running: int = 0
    last_request: int = 0
    _running: list[tuple[SimDrafting, Callback]] = field(default_factory=list)
    _waiting: list[tuple[SimDrafting, Callback]] = field(default_factory=list)
    _is_passing: bool = False

    def propose(self, drafting: SimDrafting, done: Callback) -> None:
        """Queue the proposal; its callback runs when its last level is drafted."""
        self._waiting.append((drafting, done))
        if not self._is_passing:
            self._pass()

    def _pass(self) -> None:
        self._running += self._waiting
        self._waiting.clear()
        self._is_passing = bool(self._running)
        if self._is_passing:
            seconds = self.times.level(sum(at.advance() for at, _ in self._running))
            self.busy_s += seconds
            self.clock.after(seconds, self._end)

    def _end(self) -> None:
        finished = [done for drafting, done in self._running if not drafting.depth]
        self._running = [job for job in self._running if job[0].depth]
        for done in finished:
            done()
        self._pass()

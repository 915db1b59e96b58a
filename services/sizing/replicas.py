"""Simulated engines: they share steps as the real ones do, and take the time of a recording.

A target's steps begin when its real rules say so, and hold what its real queue gives them. A
draft takes everybody who is there along in every pass. Of those who come at the same time the first
finds an engine at rest, as over real wires, which bring one after the other. Knows no requests:
whoever asks is called back.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.engine.gathering import Gathering
from slipstream.sizing.events import Events
from slipstream.sizing.recording import Devices
from slipstream.target.schedule import RowBudget, Schedule
from slipstream.target.waiting import Spending, TimeSpent

Told = Callable[[], None]

_SHORTEST_WAIT_S = 0.0005
_CHUNK = 256
"""Tokens of a prefix that a draft computes in one pass."""


@dataclass(eq=False, slots=True)
class Verification:
    """What a session asks of a target: tokens to be cached, and nodes below the last of them."""

    session: int
    pending: int
    nodes: int
    is_last: bool
    """Whether the session's request ends with it."""
    answer: Told


class SimTarget:
    """One target. Mirrors `target/batcher.py` and `target/works.py` with memory for everybody."""

    def __init__(self, events: Events, devices: Devices, *, max_rows: int) -> None:
        self._events = events
        curve = devices.curve()
        self._curve = curve
        rows = RowBudget(max_rows, devices.tile or RowBudget().tile, seconds=curve.seconds)
        self._schedule: Schedule[Verification] = Schedule(rows)
        self._gathering: Gathering[int] = Gathering()
        self._arrivals: list[Verification] = []
        self._known: dict[tuple[int, int], float] = {}
        self._is_stepping = False
        self._timer = 0
        """Of the wait under way; what rings for an earlier one is too late."""
        self._busy_s = 0.0
        self.num_steps = self.num_rows = 0
        self.spent = TimeSpent(lambda: events.now)

    @property
    def busy_s(self) -> float:
        """Seconds of steps so far."""
        return self._busy_s

    def verify(self, work: Verification) -> None:
        """Have it answered in time."""
        self._arrivals.append(work)
        self._gathering.came(work.session, self._idle_s())
        self._turn()
        self._consider()

    def leave(self, session: int) -> None:
        """Its request has ended."""
        self._gathering.gone(session)
        self._turn()

    def _idle_s(self) -> float:
        """A clock that stands still while a step is under way."""
        return self._events.now - self._busy_s

    def _consider(self) -> None:
        """Begin a step, or wait for those who are about to come."""
        if self._is_stepping or not (self._arrivals or len(self._schedule)):
            return
        wait_s = self._gathering.wait_s(self._idle_s())
        self._timer += 1
        if wait_s > 0:
            timer = self._timer
            self._events.after(max(wait_s, _SHORTEST_WAIT_S), lambda: self._ring(timer))
        else:
            self._step()

    def _ring(self, timer: int) -> None:
        if timer == self._timer:
            self._consider()

    def _step(self) -> None:
        self._gathering.started(self._idle_s())
        has_company = self._gathering.has_company
        for work in self._arrivals:
            self._schedule.add(work, num_pending=work.pending, num_nodes=work.nodes)
        self._arrivals.clear()
        portions = self._schedule.next(has_company=has_company)
        rows = sum(at.num_pending + (at.key.nodes if at.is_last else 0) for at in portions)
        seconds = self._seconds(rows, len(portions))
        done = [at.key for at in portions if at.is_last]
        self._is_stepping = True
        self._turn()
        self.num_steps += 1
        self.num_rows += rows
        self._events.after(seconds, lambda: self._end(done, seconds))

    def _end(self, done: list[Verification], seconds: float) -> None:
        self._is_stepping = False
        self._busy_s += seconds
        back = [work.session for work in done if not work.is_last]
        self._gathering.stepped(back, self._idle_s(), seconds=seconds)
        self._turn()
        for work in done:
            work.answer()
        self._consider()

    def _seconds(self, rows: int, sessions: int) -> float:
        key = rows, sessions
        if key not in self._known:
            self._known[key] = self._curve.seconds(rows, sessions)
        return self._known[key]

    def _turn(self) -> None:
        if self._is_stepping:
            self.spent.turn(Spending.BUSY)
        else:
            self.spent.turn(Spending.WAITING if self._gathering.num_away else Spending.IDLE)


@dataclass(eq=False, slots=True)
class Drafting:
    """A proposal of so many levels behind `pending` tokens that the draft does not hold yet."""

    pending: int
    depth: int
    answer: Told

    def take(self) -> int:
        """One pass of it: its rows. The last part of the prefix goes with the first level."""
        if self.pending > _CHUNK:
            self.pending -= _CHUNK
            return _CHUNK
        rows, self.pending = max(self.pending, 1), 0
        self.depth -= 1
        return rows


@dataclass(slots=True)
class SimDraft:
    """One draft. Mirrors `draft/batcher.py`: a pass takes a level of everybody's tree."""

    events: Events
    devices: Devices
    busy_s: float = 0.0
    num_passes: int = 0
    _running: list[Drafting] = field(default_factory=list)
    _waiting: deque[Drafting] = field(default_factory=deque)
    _is_passing: bool = False

    def propose(self, drafting: Drafting) -> None:
        """Have it answered in time."""
        self._waiting.append(drafting)
        if not self._is_passing:
            self._pass()

    def _pass(self) -> None:
        self._running += self._waiting
        self._waiting.clear()
        self._is_passing = bool(self._running)
        if not self._is_passing:
            return
        rows = sum(drafting.take() for drafting in self._running)
        seconds = self.devices.level(rows)
        self.busy_s += seconds
        self.num_passes += 1
        self.events.after(seconds, self._end)

    def _end(self) -> None:
        done = [drafting for drafting in self._running if drafting.depth == 0]
        self._running = [drafting for drafting in self._running if drafting.depth]
        for drafting in done:
            drafting.answer()
        self._pass()

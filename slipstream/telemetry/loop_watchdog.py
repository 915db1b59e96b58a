"""A watchdog of the event loop: logs what holds it for longer than a limit, with its place.

Time is CPU time of a thread: on a shared machine, wall time depends on other processes. Two things
hold a loop: its own callbacks, and another thread that keeps the interpreter's lock. Linux only;
off by default, because it costs two system calls for each callback.
"""

import asyncio
import gc
import logging
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from slipstream.core.errors import InvalidRequest

_LOG = logging.getLogger("slipstream.loop")
_ROOT = str(Path(__file__).parents[2]) + "/"
_PACKAGES = (_ROOT + "slipstream", _ROOT + "services/")
_FOLDER = re.compile(r"(services/\w+|slipstream)/")
_SCHEDULED = Path("/proc/thread-self/schedstat")
_SAMPLES = 4
"""Samples of the loop's thread within the limit."""
_WAKES = 5
"""A thread that waits for the interpreter's lock wakes every 5 ms to request it. One that was late
for want of a processor alone woke once, and one that got the lock, thrice."""
_NS = 1_000_000_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stall:
    """CPU time for which the loop could run nothing else, and what took it."""

    cpu_s: float
    place: str
    """Innermost frame of this package, and the frame that it called where that is another's."""
    thread: str = ""
    """Thread that kept the interpreter's lock; empty for a callback of the loop."""
    collecting_s: float = 0.0
    """Part of it that went into collecting garbage."""

    def __str__(self) -> str:
        where = f"{self.place}, on the thread {self.thread}" if self.thread else self.place
        what = "interpreter's lock" if self.thread else "event loop"
        text = f"the {what} was held for {self.cpu_s * 1000:.1f} ms of CPU by {where}"
        if self.collecting_s:
            text += f", of which {self.collecting_s * 1000:.1f} ms collecting garbage"
        return text


async def watched(
    running: Coroutine[Any, Any, T],
    limit_ms: float,
    *,
    report: Callable[[Stall], None] | None = None,
) -> T:
    """Run a coroutine, and report what holds this loop for longer than `limit_ms`; 0 for nothing.

    Its start, up to its first wait, is not watched. By default reports are logged.
    """
    if not limit_ms:
        return await running
    if not _SCHEDULED.exists():
        running.close()
        raise InvalidRequest(f"loop_watchdog_ms is {limit_ms:g}, but {_SCHEDULED} is not there")
    watchdog = LoopWatchdog(limit_ms / 1000, report or partial(_LOG.warning, "%s"))
    watchdog.start()
    try:
        return await running
    finally:
        watchdog.stop()
        _LOG.info("the longest of all callbacks: %s", watchdog.longest)


class LoopWatchdog:
    """Measures each callback of the running loop, and samples its thread to name the place."""

    def __init__(self, limit_s: float, report: Callable[[Stall], None]) -> None:
        """`report` is called on the loop's thread, or on the watchdog's own."""
        self.longest = Stall(0.0, "nothing")
        self._limit_s = limit_s
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._unwatched: Any = asyncio.Handle._run
        self._handle: asyncio.Handle | None = None
        """The callback that runs."""
        self._is_armed = False
        """Whether the start is over."""
        self._places: Counter[str] = Counter()
        """Where samples found the callback that runs."""
        self._collecting_ns = self._collecting_since = 0
        self._began_at, self._longest_step_s = time.monotonic(), 0.0
        """Start of the newest callback; the longest time between two starts since a sample."""
        self._stopping = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="watchdog", daemon=True)

    def start(self) -> None:
        """Watch from the next callback on."""
        setattr(asyncio.Handle, "_run", self._hook())  # noqa: B010 - mypy forbids the assignment
        gc.callbacks.append(self._on_collection)
        self._sampler.start()

    def stop(self) -> None:
        """Watch no longer."""
        setattr(asyncio.Handle, "_run", self._unwatched)  # noqa: B010
        gc.callbacks.remove(self._on_collection)
        self._stopping.set()
        self._sampler.join()

    def _hook(self) -> Callable[[asyncio.Handle], None]:
        loop, unwatched, cpu_ns = self._loop, self._unwatched, time.thread_time_ns
        limit_ns = round(self._limit_s * _NS)

        def run(handle: Any) -> None:
            if handle._loop is not loop:
                return unwatched(handle)  # type: ignore[no-any-return]
            self._collecting_ns, self._handle, self._is_armed = 0, handle, True
            now = time.monotonic()
            self._longest_step_s = max(self._longest_step_s, now - self._began_at)
            self._began_at, began = now, cpu_ns()
            try:
                unwatched(handle)
            finally:
                took, self._handle = cpu_ns() - began, None
                if took >= limit_ns or took > self.longest.cpu_s * _NS:
                    self._ended(handle, took / _NS)

        return run

    def _ended(self, handle: Any, cpu_s: float) -> None:
        places, self._places = self._places, Counter()
        seen = places.most_common(1)
        place = seen[0][0] if seen else handle_name(handle)
        stall = Stall(cpu_s, place, collecting_s=self._collecting_ns / _NS)
        if cpu_s > self.longest.cpu_s:
            self.longest = stall
        if cpu_s >= self._limit_s:
            self._report(stall)

    def _on_collection(self, phase: str, _: dict[str, int]) -> None:
        if threading.get_ident() != self._ident:
            return
        if phase == "start":
            self._collecting_since = time.thread_time_ns()
        else:
            self._collecting_ns += time.thread_time_ns() - self._collecting_since

    def _sample(self) -> None:
        pause_s, before = self._limit_s / _SAMPLES, None
        at, wakes, used = time.monotonic(), _num_wakes(), _used_s()
        while not self._stopping.wait(pause_s):
            frames = sys._current_frames()
            handle, frame = self._handle, frames.get(self._ident)
            if handle is not before:
                self._places.clear()
            if handle is not None and frame is not None:
                self._places[place_of(frame) or handle_name(handle)] += 1
            before = handle
            now, wakes_now, used_now = time.monotonic(), _num_wakes(), _used_s()
            late_s = now - at - pause_s
            # This thread alone may wait for the lock while the loop's gets it again and again.
            held_s = min(late_s, max(self._longest_step_s, now - self._began_at))
            if held_s >= self._limit_s and wakes_now - wakes > _WAKES and self._is_armed:
                grown = {ident: cpu_s - used.get(ident, 0.0) for ident, cpu_s in used_now.items()}
                ident = max(grown, key=grown.__getitem__)
                self._name_holder(min(held_s, grown[ident]), ident, frames.get(ident))
            at, wakes, used, self._longest_step_s = now, wakes_now, used_now, 0.0

    def _name_holder(self, held_s: float, ident: int, frame: FrameType | None) -> None:
        """Report the thread that kept the interpreter's lock, unless it is the loop's own."""
        if ident == self._ident or held_s < self._limit_s:
            return
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        place = place_of(frame) or "code of another package"
        stall = Stall(held_s, place, names.get(ident) or "unknown")
        self._report(stall)


def _num_wakes() -> int:
    """Return how often the calling thread got a processor."""
    return int(_SCHEDULED.read_text().split()[2])


def _used_s() -> dict[int, float]:
    """Return the CPU time of each Python thread but the calling one."""
    own, used = threading.get_ident(), {}
    for thread in threading.enumerate():
        ident, number = thread.ident, thread.native_id
        if ident is not None and number is not None and ident != own:
            with suppress(OSError):  # it has ended
                # The kernel's name of a thread's clock; pthread's crashes for one that has ended.
                used[ident] = time.clock_gettime((~number << 3) | 6)
    return used


def place_of(frame: FrameType | None) -> str | None:
    """Return the innermost frame of this package and of all; None without one of this package."""
    innermost = frame
    while frame is not None:
        path = frame.f_code.co_filename
        if path == __file__:
            return None
        if path.startswith(_PACKAGES):
            ours = _line(_FOLDER.sub("", path.removeprefix(_ROOT), count=1), frame)
            if innermost is None or innermost is frame:
                return ours
            file = "/".join(Path(innermost.f_code.co_filename).parts[-2:])
            return f"{ours} ({_line(file, innermost)})"
        frame = frame.f_back
    return None


def _line(file: str, frame: FrameType) -> str:
    return f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"


def handle_name(handle: Any) -> str:
    """Return the coroutine of a task's step, or the function of another callback."""
    callback = handle._callback
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {getattr(owner.get_coro(), '__qualname__', owner.get_name())}"
    return f"callback {getattr(callback, '__qualname__', type(callback).__qualname__)}"

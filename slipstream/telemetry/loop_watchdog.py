"""A watchdog of the event loop: logs what holds it for longer than a limit, with its place.

Time is CPU time of the loop's thread: on a shared machine, wall time depends on other processes.
Off by default, because it costs two system calls for each callback.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

_LOG = logging.getLogger("slipstream.loop")
_ROOT = str(Path(__file__).parents[2]) + "/"
_PACKAGES = (_ROOT + "slipstream", _ROOT + "services/")
_FOLDER = re.compile(r"(services/\w+|slipstream)/")
_SAMPLES = 4
"""Samples of the loop's thread within the limit."""
_NS = 1_000_000_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stall:
    """CPU time for which the loop could run nothing else, and what took it."""

    cpu_s: float
    place: str
    """Innermost frame of this package, and the frame that it called where that is another's."""
    collecting_s: float = 0.0
    """Part of it that went into collecting garbage."""

    def __str__(self) -> str:
        text = f"the event loop was held for {self.cpu_s * 1000:.1f} ms of CPU by {self.place}"
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
        """`report` is called on the loop's thread."""
        self.longest = Stall(0.0, "nothing")
        self._limit_s = limit_s
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._unwatched: Any = asyncio.Handle._run
        self._handle: asyncio.Handle | None = None
        """The callback that runs."""
        self._places: Counter[str] = Counter()
        """Places at which samples found the running callback."""
        self._collecting_ns = self._collecting_since = 0
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
            self._collecting_ns, self._handle, began = 0, handle, cpu_ns()
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
        before = None
        while not self._stopping.wait(self._limit_s / _SAMPLES):
            handle, frame = self._handle, sys._current_frames().get(self._ident)
            if handle is not before:
                self._places.clear()
            if handle is not None and frame is not None:
                self._places[place_of(frame) or handle_name(handle)] += 1
            before = handle


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

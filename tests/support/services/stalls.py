"""Stalls of event loops: of services, which write them to their logs, and of this process's loops.

Time is CPU time of the loop's thread: on a shared machine, wall time depends on other processes.
"""

import asyncio
import gc
import os
import re
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from support.commands import IMPORT_PATH

LIMIT_MS = 50.0
"""CPU time from which on a callback of a loop is written down and counts in a report."""
FAIL_MS = 3 * LIMIT_MS
"""CPU time from which on it fails a test: a virtual machine counts as CPU time what its host
takes away, so that one loop of 23 ms is measured as 55 ms beside busy neighbours."""
_TESTS = str(Path(__file__).parents[2]) + "/"
_ROOT = str(Path(__file__).parents[3]) + "/"
_PACKAGES = (_ROOT + "slipstream/", _ROOT + "services/")
_FOLDER = re.compile(r"(services/\w+|slipstream)/")
_HOOK = str(Path(__file__).parent / "watched")
WATCHED = {"PYTHONPATH": os.pathsep.join((IMPORT_PATH, _HOOK, _TESTS))}
"""Environment of services whose logs `check_stalls` reads: Python runs `sitecustomize` first."""
_NS_IN_MS = 1e6
_LINE = re.compile(r"the event loop was held for ([\d.]+) ms of CPU by (.*)")
_NUMBER = re.compile(r":\d+")


@dataclass(frozen=True, slots=True)
class LoggedStall:
    """The time during which a loop could run nothing else, and its cause."""

    cpu_ms: float
    place: str
    """Innermost frame of our packages, and the frame that it called where that is another's."""

    def __str__(self) -> str:
        return f"the event loop was held for {self.cpu_ms:.1f} ms of CPU by {self.place}"

    @property
    def name(self) -> str:
        """The place without what changes with a line of code."""
        return _NUMBER.sub("", self.place)


def stalls_in(log: str) -> list[LoggedStall]:
    """Return those that a service has written, in their order."""
    return [LoggedStall(float(match[1]), match[2]) for match in _LINE.finditer(log)]


def check_stalls(stalls: Iterable[LoggedStall]) -> None:
    """Fail for a loop that was held for longer than the limit of tests."""
    long = [str(stall) for stall in stalls if stall.cpu_ms >= FAIL_MS]
    assert not long, "\n".join(long)


def write_stall(stall: LoggedStall) -> None:
    """Write a stall to standard error, as services report theirs."""
    sys.stderr.write(f"{stall}\n")
    sys.stderr.flush()


class LoopWatch:
    """Measures each callback of every loop of this process, but for the tests' own steps.

    The start of a loop, its first callback, loads models and does not count. Nor does a collection
    of garbage: it walks what the tests hold.
    """

    def __init__(
        self, report: Callable[[LoggedStall], None], *, limit_ms: float = LIMIT_MS
    ) -> None:
        self._report = report
        self._limit_ms = limit_ms
        self._unwatched: Any = asyncio.Handle._run
        self._begun: set[int] = set()
        self._running: dict[int, Any] = {}
        self._places: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._garbage_ns: Counter[int] = Counter()
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="watchdog", daemon=True)

    def start(self) -> None:
        """Watch from the next callback on."""
        setattr(asyncio.Handle, "_run", lambda handle: self._run(handle))  # noqa: B010, PLW0108
        gc.callbacks.append(self._collect)
        self._sampler.start()

    def stop(self) -> None:
        """Watch no longer."""
        setattr(asyncio.Handle, "_run", self._unwatched)  # noqa: B010
        gc.callbacks.remove(self._collect)
        self._over.set()
        self._sampler.join()

    def _run(self, handle: Any) -> None:
        if id(handle._loop) not in self._begun:
            self._begun.add(id(handle._loop))
            return self._unwatched(handle)  # type: ignore[no-any-return]
        ident = threading.get_ident()
        self._running[ident], self._garbage_ns[ident] = handle, 0
        began_ns = time.thread_time_ns()
        try:
            self._unwatched(handle)
        finally:
            took_ms = (time.thread_time_ns() - began_ns - self._garbage_ns[ident]) / _NS_IN_MS
            self._running[ident], places = None, self._places.pop(ident, Counter())
            if took_ms >= self._limit_ms and not _is_of_tests(handle):
                (place, _), *_ = places.most_common(1) or [(_name_of(handle), 1)]
                self._report(LoggedStall(took_ms, place))

    def _collect(self, phase: str, _: dict[str, int]) -> None:
        sign = -1 if phase == "start" else 1
        self._garbage_ns[threading.get_ident()] += sign * time.thread_time_ns()

    def _sample(self) -> None:
        while not self._over.wait(self._limit_ms / 5000):
            frames = sys._current_frames()
            for ident, handle in [*self._running.items()]:
                if handle is not None and (place := _place_of(frames.get(ident))):
                    self._places[ident][place] += 1


@contextmanager
def watching() -> Iterator[list[LoggedStall]]:
    """Watch the loops of this process; the list gets what held them."""
    stalls: list[LoggedStall] = []
    watch = LoopWatch(stalls.append)
    watch.start()
    try:
        yield stalls
    finally:
        watch.stop()


def _place_of(frame: FrameType | None) -> str | None:
    """Return the innermost frame of our packages and of all; None without one of ours."""
    innermost = frame
    while frame is not None:
        path = frame.f_code.co_filename
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


def _name_of(handle: Any) -> str:
    """Return the coroutine of a task's step, or the function of another callback."""
    owner = getattr(handle._callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {getattr(owner.get_coro(), '__qualname__', owner.get_name())}"
    kind = type(handle._callback)
    return f"callback {getattr(handle._callback, '__qualname__', kind.__qualname__)}"


def _is_of_tests(handle: Any) -> bool:
    """Return whether a callback is a step of a test or of its fixtures: models load there."""
    task = getattr(handle._callback, "__self__", None)
    code = getattr(task.get_coro(), "cr_code", None) if isinstance(task, asyncio.Task) else None
    file = "" if code is None else code.co_filename
    return file.startswith(_TESTS) or "pytest" in file

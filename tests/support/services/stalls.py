"""Stalls of event loops: as services have logged them, and of the loops of this process.

See `slipstream.telemetry.loop_watchdog`, of which this is the strict reader.
"""

import asyncio
import gc
import re
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slipstream.telemetry.loop_watchdog import handle_name, place_of

LIMIT_MS = 50.0
"""CPU time from which on a callback of a loop is written down and counts in a report."""
FAIL_MS = 3 * LIMIT_MS
"""CPU time from which on it fails a test: a virtual machine counts as CPU time what its host
takes away, so that one loop of 23 ms is measured as 55 ms beside busy neighbours."""
WATCHED = {"SLIPSTREAM_TELEMETRY_LOOP_WATCHDOG_MS": str(LIMIT_MS)}
"""Environment of services whose logs `check_stalls` reads."""
_SAMPLE_S = LIMIT_MS / 5000
_NS_IN_MS = 1e6
_TESTS = str(Path(__file__).parents[2]) + "/"
_LINE = re.compile(r"the event loop was held for ([\d.]+) ms of CPU by (.*)")
_COLLECTING = re.compile(r"of which ([\d.]+) ms collecting")
_NUMBER = re.compile(r":\d+|, of which .*")


@dataclass(frozen=True, slots=True)
class LoggedStall:
    """How long a loop could run nothing else, and what held it."""

    cpu_ms: float
    place: str

    @property
    def name(self) -> str:
        """The place without what changes with a line of code or from run to run."""
        return _NUMBER.sub("", self.place)


def stalls_in(log: str) -> list[LoggedStall]:
    """Those that a service has written, in their order. Collections of garbage do not count."""
    lines = [line for line in log.splitlines() if "longest of all callbacks" not in line]
    found = [match for line in lines if (match := _LINE.search(line))]
    collecting = [sum(map(float, _COLLECTING.findall(match[2]))) for match in found]
    return [
        LoggedStall(float(match[1]) - ms, match[2])
        for match, ms in zip(found, collecting, strict=True)
    ]


def long_stalls(stalls: Iterable[LoggedStall]) -> list[LoggedStall]:
    """Those above the limit."""
    return [at for at in stalls if at.cpu_ms >= LIMIT_MS]


def check_stalls(stalls: Iterable[LoggedStall]) -> None:
    """Fail for a loop that was held for longer than the limit of tests."""
    long = [f"{at.cpu_ms:.0f} ms of CPU by {at.place}" for at in stalls if at.cpu_ms >= FAIL_MS]
    assert not long, "\n".join(long)


class LoopWatch:
    """Measures each callback of every loop of this process, but for the tests' own steps.

    A collection of garbage does not count: it walks what the tests hold.
    """

    def __init__(self) -> None:
        self.stalls: list[LoggedStall] = []
        self._running: dict[int, Any] = {}
        self._places: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._garbage_ns: Counter[int] = Counter()
        self._over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch for as long as needed."""
        unwatched, sampler = asyncio.Handle._run, threading.Thread(target=self._sample)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.Handle, "_run", lambda handle: self._run(handle, unwatched))
            gc.callbacks.append(self._collect)
            sampler.start()
            try:
                yield
            finally:
                gc.callbacks.remove(self._collect)
                self._over.set()
                sampler.join()

    def _run(self, handle: Any, unwatched: Any) -> None:
        ident = threading.get_ident()
        self._running[ident], self._garbage_ns[ident] = handle, 0
        began_ns = time.thread_time_ns()
        try:
            unwatched(handle)
        finally:
            took_ms = (time.thread_time_ns() - began_ns - self._garbage_ns[ident]) / _NS_IN_MS
            self._running[ident], places = None, self._places.pop(ident, Counter())
            if took_ms >= LIMIT_MS and not _is_of_tests(handle):
                (place, _), *_ = places.most_common(1) or [(handle_name(handle), 1)]
                self.stalls.append(LoggedStall(took_ms, place))

    def _collect(self, phase: str, _: dict[str, int]) -> None:
        sign = -1 if phase == "start" else 1
        self._garbage_ns[threading.get_ident()] += sign * time.thread_time_ns()

    def _sample(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            frames = sys._current_frames()
            for ident, handle in [*self._running.items()]:
                if handle is not None and (place := place_of(frames.get(ident))):
                    self._places[ident][place] += 1


def _is_of_tests(handle: Any) -> bool:
    """Whether a callback is a step of a test or of its fixtures: models load there."""
    task = getattr(handle._callback, "__self__", None)
    code = getattr(task.get_coro(), "cr_code", None) if isinstance(task, asyncio.Task) else None
    file = "" if code is None else code.co_filename
    return file.startswith(_TESTS) or "pytest" in file

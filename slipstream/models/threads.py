"""The threads that compute in this process, of native code and of torch alike, and their cores."""

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import TypeVar

from slipstream.config import omp_threads
from slipstream.models.native.library import has_kernels, team

T = TypeVar("T")
_CPUS = Path("/sys/devices/system/cpu")
_chosen: list[int] = []
"""The number that was set last, if any was."""
_own: list[int] = []
"""Cores of the threads that stay, in order; none where they may go anywhere."""


def num_threads() -> int:
    """Return the threads that compute: as set, else by OMP_NUM_THREADS, else one for each physical
    core that the process may use."""
    return _chosen[0] if _chosen else omp_threads() or _num_cores()


def set_num_threads(count: int) -> None:
    """Set the number of compute threads, of torch and of models that are loaded later."""
    _chosen[:] = [count]
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


@cache
def _num_cores() -> int:
    allowed = getattr(os, "sched_getaffinity", None)
    if allowed is None:
        return os.cpu_count() or 1
    return len({_siblings(cpu) for cpu in allowed(0)})


def _siblings(cpu: int) -> str:
    """Return a name of the physical core that a processor belongs to."""
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(cpu)


@dataclass(frozen=True, slots=True)
class Cores:
    """Number of threads that compute (None: one for each physical core), and whether each stays
    on a core of its own, from the `first` one on.

    Staying pays where other processes use the same cores: two threads that wait for each other must
    never share one.
    """

    threads: int | None = None
    stay: bool = False
    first: int = 0


def load_on(call: Callable[[Callable[[], T]], T], load: Callable[[], T], cores: Cores) -> T:
    """Return what `load` makes, on the thread where `call` runs it, which is the one to compute.

    Every thread that computes in parallel gets a pool of its own. With more pool threads than
    cores OpenMP stops spinning, and a round of a small model takes 1.5 times as long. So one
    thread loads and computes, and the caller's does neither.
    """

    def loaded() -> T:
        if cores.threads is not None:
            set_num_threads(cores.threads)
        if cores.stay:
            _stay(cores.first)
        return load()

    return call(loaded)


def _stay(first: int) -> None:
    """Give this thread and those of each pool that it starts, native code's here and torch's in
    `start_torch`, one of the cores each that the process may use."""
    free = sorted(os.sched_getaffinity(0))
    _own[:] = [free[index % len(free)] for index in range(first, first + len(free))]
    count = num_threads()  # which asks for the cores of this thread, too
    place(lambda: team(count) if has_kernels() else None)


def place(start: Callable[[], object]) -> None:
    """Give this thread and those that `start` starts a core each, where threads stay on theirs."""
    if not _own:
        return
    before = _threads()
    start()
    pool = [threading.get_native_id(), *sorted(_threads() - before)]
    for thread, core in zip(pool, cycle(_own), strict=False):
        os.sched_setaffinity(thread, {core})


def _threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}

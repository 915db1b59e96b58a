"""The thread of a process that computes, and the cores of its pools."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import TypeVar

from slipstream.models.native.library import has_kernels, team
from slipstream.models.threads import num_threads, set_num_threads

T = TypeVar("T")
_PARALLEL = 1 << 20
"""Numbers that torch adds up with all of its threads."""
_own: list[int] = []
"""Cores of the threads that stay, in order; none where they may go anywhere."""


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


def start_torch() -> None:
    """Let torch compute with as many threads as native code, on the same cores where they stay.

    Before it computes on this thread: what it starts later would share the core of this one.
    """
    import torch

    torch.set_num_threads(num_threads())
    if _own:
        _place(lambda: torch.ones(_PARALLEL).sum())


def _stay(first: int) -> None:
    """Give this thread and those of each pool that it starts, native code's here and torch's in
    `start_torch`, one of the cores each that the process may use."""
    free = sorted(os.sched_getaffinity(0))
    _own[:] = [free[index % len(free)] for index in range(first, first + len(free))]
    count = num_threads()  # which asks for the cores of this thread, too
    _place(lambda: team(count) if has_kernels() else None)


def _place(start: Callable[[], object]) -> None:
    """Give this thread and those that `start` starts a core each."""
    before = _threads()
    start()
    pool = [threading.get_native_id(), *sorted(_threads() - before)]
    for thread, core in zip(pool, cycle(_own), strict=False):
        os.sched_setaffinity(thread, {core})


def _threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}

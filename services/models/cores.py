"""The thread of a process that computes, and the cores of its pools."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from slipstream.models.native.library import has_kernels, team
from slipstream.models.threads import num_threads, set_num_threads

T = TypeVar("T")
_PARALLEL = 1 << 20
"""Numbers that torch adds up with all of its threads."""
_stays: list[int] = []
"""The first core of the threads that stay, if they do."""


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
    """Have torch compute with as many threads as native code, on the same cores where they stay.

    Before it computes on this thread: its threads begin where the one that starts them stays.
    """
    import torch

    torch.set_num_threads(num_threads())
    for first in _stays:
        _place(lambda: torch.ones(_PARALLEL).sum(), first)


def _stay(first: int) -> None:
    """Give this thread and those of the pools that it starts, native code's and, as soon as it is
    loaded, torch's, one of the cores each that the process may use."""
    _stays[:] = [first]
    _place(lambda: team(num_threads()) if has_kernels() else None, first)


def _place(start: Callable[[], object], first: int) -> None:
    """Give this thread and those that `start` starts a core each."""
    before = _threads()
    start()
    pool = [threading.get_native_id(), *sorted(_threads() - before)]
    for place, thread in enumerate(pool, start=first):
        os.sched_setaffinity(thread, {_FREE[place % len(_FREE)]})


def _threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}

"""The thread of a process that computes, and the cores of its pools."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

from slipstream.models.native.library import has_kernels, team

T = TypeVar("T")
NATIVE = "native"
"""What the names of engines of native code begin with."""
_PARALLEL = 1 << 20
"""Numbers that torch adds up with all of its threads."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Number of threads that compute (None: torch's choice), and whether each stays on a core of
    its own, from the `first` one on.

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
    count = cores.threads or torch.get_num_threads()
    torch.set_num_threads(1)

    def loaded() -> T:
        torch.set_num_threads(count)
        if cores.stay:
            _stay(cores.first)
        return load()

    return call(loaded)


@contextmanager
def beside(engine: str) -> Iterator[None]:
    """Have torch compute on this thread alone where an `engine` of native code has the cores.

    torch's other threads go on spinning behind every operation on more than 32,768 numbers, such as
    the noise of a vocabulary: sampled tokens of a small model took 1.6 times as long.
    """
    count = torch.get_num_threads()
    if count == 1 or not engine.startswith(NATIVE):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _stay(first: int) -> None:
    """Give this thread and each of its pools, torch's and that of native code, one of the cores
    that the process may use."""
    free = sorted(os.sched_getaffinity(0))
    for start in (_start_torch, _start_native):
        before = _threads()
        start()
        pool = [threading.get_native_id(), *sorted(_threads() - before)]
        for place, thread in enumerate(pool, start=first):
            os.sched_setaffinity(thread, {free[place % len(free)]})


def _start_torch() -> None:
    torch.ones(_PARALLEL).sum()


def _start_native() -> None:
    if has_kernels():
        team(torch.get_num_threads())


def _threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}

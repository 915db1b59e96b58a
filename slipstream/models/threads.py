"""Number of threads that compute in this process, of native code and of torch alike."""

import os
import sys
from functools import cache
from pathlib import Path

from slipstream.config import omp_threads

_CPUS = Path("/sys/devices/system/cpu")
_chosen: list[int] = []
"""The number that was set last, if any was."""


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

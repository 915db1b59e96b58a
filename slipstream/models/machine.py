"""The threads that compute in this process, of native code and of torch alike, and their cores; and
measurements of this machine, kept in the cache directory from one start to the next.

There is one JSON file for each combination of processor, instruction set limits, threads and
versions: what one of them changes has to be measured again. Every entry can be measured anew, so
that a file which is missing, broken or not writable costs time and nothing else.
"""

import hashlib
import json
import logging
import os
import platform
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from slipstream import __version__
from slipstream.config import instruction_limits, measurements_dir, omp_threads
from slipstream.core.errors import ModelError
from slipstream.models.format.folder import brief
from slipstream.models.native.library import has_kernels, team

_LOG = logging.getLogger("slipstream.models")
TORCH, TRANSFORMERS = "torch", "transformers"
_CPUINFO = Path("/proc/cpuinfo")
_CPU_FIELDS = ("model name", "flags", "cpu family", "stepping", "Features", "CPU part")
"""Lines of /proc/cpuinfo that differ between kinds of processors, on x86-64 and ARM."""
_MOST_KEPT = 1 << 28
"""Bytes of a file that is kept; the largest have a tokenizer."""


class Measurements:
    """Values by name, JSON all of them, in one file; in memory alone where `path` is None."""

    def __init__(self, path: Path | None, machine: Mapping[str, Any] | None = None) -> None:
        """`machine` describes the file's contents to its readers."""
        self._path = path
        self._machine = dict(machine or {})
        self._values = self._read()

    def recall(
        self, name: str, measure: Callable[[], Any], *, is_valid: Callable[[Any], bool]
    ) -> Any:
        """Return the value of this name, measured now unless a valid one is kept."""
        if name not in self._values or not is_valid(self._values[name]):
            self.keep(name, measure())
        return self._values[name]

    def get(self, name: str) -> Any:
        """Return the value that is kept under a name, None without one."""
        return self._values.get(name)

    def keep(self, name: str, value: Any) -> None:
        """Keep a value, beside those that other processes have written meanwhile."""
        self._values = {**self._read(), **self._values, name: value}
        if self._path is not None:
            content = {"machine": self._machine, "measured": self._values}
            write_kept(self._path, "measurements", json.dumps(content, indent=1))

    def _read(self) -> dict[str, Any]:
        if self._path is None:
            return {}
        return read_kept(self._path, "measured", lambda content: {**content["measured"]}) or {}


def read_kept(path: Path, what: str, read: Callable[[Any], Any]) -> Any:
    """Return what `read` makes of the JSON in a file that was kept, None where there is none.

    One that can't be read is removed with a warning: what it had is made anew.
    """
    try:
        if path.stat().st_size > _MOST_KEPT:
            raise ValueError(f"it is larger than {_MOST_KEPT} bytes")
        return read(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # the file may have been broken in any way
        _LOG.warning("%s in %s can't be read and is made anew (%s)", what, path, brief(error))
        with suppress(OSError):
            path.unlink()
        return None


def write_kept(path: Path, what: str, text: str) -> None:
    """Write a file for `read_kept`, whole or, where the directory can't be written, not at all."""
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        _LOG.debug("%s can't be kept in %s: %s", what, path, error)


def this_machine() -> Measurements:
    """Return the measurements of this machine with the threads that compute now."""
    return _measurements(num_threads())


def describe_machine(threads: int) -> dict[str, Any]:
    """Return what makes measurements comparable: processor, limits, threads and versions."""
    return {
        "processor": _processor(),
        "limits": instruction_limits(),
        "threads": threads,
        "torch": release(TORCH),
        "slipstream": __version__,
    }


@cache
def _measurements(threads: int) -> Measurements:
    machine = describe_machine(threads)
    digest = hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()
    machine["processor"] = machine["processor"].split("\n")[0]
    return Measurements(measurements_dir() / f"{digest[:16]}.json", machine)


@cache
def release(package: str) -> str | None:
    """Return the version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def has_torch() -> bool:
    """Return whether torch and transformers are installed, which native code does without."""
    return all(map(release, (TORCH, TRANSFORMERS)))


def require_torch(subject: str) -> None:
    """Raise `ModelError` unless torch and transformers, which the subject needs, are installed."""
    if not has_torch():
        missing = "torch and transformers, which are not installed"
        raise ModelError(f"{subject} needs {missing}: pip install 'slipstream[torch]'")


@cache
def _processor() -> str:
    """The processor's name, and on the following lines what else distinguishes it."""
    try:
        first = _CPUINFO.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.processor() or platform.machine()}"
    found = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first)
    }
    name = found.get("model name", platform.machine())
    return "\n".join([name, *(found[key] for key in _CPU_FIELDS if key in found)])


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

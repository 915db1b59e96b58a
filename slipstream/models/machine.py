"""Measurements of this machine, kept in the cache directory from one start to the next.

There is one JSON file for each combination of processor, instruction set limits, threads and
versions: what one of them changes has to be measured again. Every entry can be measured anew, so
that a file which is missing, broken or not writable costs time and nothing else.
"""

import hashlib
import json
import logging
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from slipstream import __version__
from slipstream.config import instruction_limits, measurements_dir
from slipstream.core.errors import ModelError
from slipstream.models.format.folder import brief
from slipstream.models.threads import num_threads

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

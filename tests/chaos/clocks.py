"""Clocks of processes that can be set while they run, by a small library that is preloaded.

Only the time of day changes; monotonic clocks go on. It is compiled where there is a C compiler.
"""

import ctypes
import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")
_VARIABLE = "CHAOS_CLOCK"


def compiler() -> str | None:
    """The C compiler, without which no clock can be set."""
    return shutil.which("cc")


def preloading(folder: Path) -> dict[str, str]:
    """Environment for processes whose clocks can be set; empty without a compiler."""
    found = compiler()
    if found is None:
        return {}
    library = folder / "clock.so"
    words = [found, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(words, check=True)
    return {"LD_PRELOAD": str(library)}


def following(clock: Path) -> dict[str, str]:
    """Environment of a program whose time of day is set by a file."""
    return {_VARIABLE: str(clock)}


def follow(clock: Path) -> None:
    """Let a file set the time of day of this process from now on, if it was preloaded for it."""
    preloaded = ctypes.CDLL(None)
    if hasattr(preloaded, "follow_clock"):
        preloaded.follow_clock(str(clock).encode())


def set_clock(clock: Path, seconds: int) -> None:
    """Let the processes that follow a file be so many seconds ahead of the machine."""
    with clock.open("r+b" if clock.exists() else "wb") as file:
        file.write(struct.pack("q", seconds))

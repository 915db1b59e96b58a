"""Processes beside a cluster that use all the CPU time they are given."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Run so many of them, at the highest priority this user may give."""
    spins = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for spin in spins:
            spin.kill()
        for spin in spins:
            spin.wait()

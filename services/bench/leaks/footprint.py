"""What this process holds at one moment: of the system, of Python, and of its engines.

Reads Linux's /proc. Knows no load and judges nothing.
"""

import gc
import os
from dataclasses import dataclass
from pathlib import Path

from slipstream.client.embedded_aio import AsyncEmbedded
from slipstream.core.errors import NotBuilt
from slipstream.draft.engine import LocalDraft

_PROCESS = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Resident memory, what Python counts, and bytes of keys and values.

    `num_objects` are those that the garbage collector tracks, made since the warm-up; `num_tasks`
    are asyncio's besides those that measure. `session_kv_bytes` are in use by sessions,
    `prefix_kv_bytes` only kept for prompts that begin alike; `draft_kv_bytes` are the draft model's
    own.
    """

    resident_bytes: int
    num_objects: int
    num_tasks: int
    num_threads: int
    num_files: int
    session_kv_bytes: int
    prefix_kv_bytes: int
    draft_kv_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What Linux says of a process."""

    resident_bytes: int
    num_threads: int


class Gauge:
    """Reads the process and the engines of one client. Nothing may run on them meanwhile."""

    def __init__(self, engines: AsyncEmbedded) -> None:
        """Raises `NotBuilt` where there is no /proc."""
        read_status()
        self._engines = engines

    def read(self, num_tasks: int) -> Footprint:
        """What is held now. Resident memory comes first: the list of objects takes some."""
        status = read_status()
        target, draft = self._engines.engine.target, self._engines.drafter.draft
        prefixes = target.memory.num_idle_bytes
        return Footprint(
            resident_bytes=status.resident_bytes,
            num_objects=len(gc.get_objects()),
            num_tasks=num_tasks,
            num_threads=status.num_threads,
            num_files=len(os.listdir(_PROCESS / "fd")) - 1,  # without the one that lists them
            session_kv_bytes=target.num_kv_bytes - prefixes,
            prefix_kv_bytes=prefixes,
            draft_kv_bytes=draft.pool.num_used_bytes if isinstance(draft, LocalDraft) else 0,
        )


def read_status() -> ProcessStatus:
    """Of this process. Raises `NotBuilt` where there is no /proc."""
    try:
        return parse_status((_PROCESS / "status").read_text(encoding="ascii"))
    except OSError:
        raise NotBuilt("memory is read from /proc/self/status, which is not here") from None


def parse_status(text: str) -> ProcessStatus:
    """The text of a `status` file of /proc."""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return ProcessStatus(int(fields["VmRSS"].split()[0]) << 10, int(fields["Threads"]))

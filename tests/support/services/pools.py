"""Pools on Ray as processes: `slipstream ray up`, and the services that its replicas keep."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.services.processes import LIMIT_S, Process, command_line
from support.state.redis_server import running_redis

# A busy machine is no reason to give up, nor to wait for what else runs there.
_ENV = {
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_worker_niceness": "0",
    "SLIPSTREAM_ROUTER_TARGET_WAIT_S": "120",
}
_POLL_S = 0.1


@contextmanager
def ray_up(model: Path, *flags: str) -> Iterator["RayPools"]:
    """Pools of a tiny model that drafts for itself, in a cluster of their own."""
    named = ["--model", str(model), "--draft", f"vanilla:{model}", "--dtype", "float32"]
    # Little is left of two processors for many replicas: what they are to keep is not what counts.
    light = ["--target-cpus", "0.2", "--draft-cpus", "0.2", "--threads", "1", "--port", "0"]
    with running_redis() as store:
        words = ["ray", "up", "--store-url", store, *named, *light, *flags]
        with Process("slipstream.cli.main", *words, env=_ENV) as process:
            yield RayPools(process)


class RayPools:
    def __init__(self, process: Process) -> None:
        self.process = process

    def services(self, role: str) -> dict[int, int]:
        """Services of a role that run, each with the actor that keeps it."""
        return {
            pid: _parent(pid)
            for pid in _running()
            if f"slipstream_{role} " in command_line(pid) and self._is_ours(pid)
        }

    def until(self, role: str, *, number: int) -> dict[int, int]:
        """Return the services of a role once there are so many of them."""
        pause = threading.Event()
        for _ in range(round(2 * LIMIT_S / _POLL_S)):
            found = self.services(role)
            if len(found) == number:
                return found
            pause.wait(_POLL_S)
        raise AssertionError(f"there are {found}, and not {number} {role}s: {self.process.err}")

    def _is_ours(self, pid: int) -> bool:
        while pid > 1:
            if pid == self.process.pid:
                return True
            pid = _parent(pid)
        return False


def _running() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _parent(pid: int) -> int:
    """0 once it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])

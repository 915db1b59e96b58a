"""Pools on Ray as processes: `serve run`, a router, and the services that the replicas keep."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.services.processes import LIMIT_S, Process, command_line, serve
from support.state.redis_server import running_redis

# A busy machine is no reason to give up, nor to wait for what else runs there.
_ENV = {
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "SLIPSTREAM_ROUTER_TARGET_WAIT_S": "120",
}
_POLL_S = 0.1


@contextmanager
def ray_pools(model: Path, folder: Path, **draft: Any) -> Iterator["RayPools"]:
    """Pools of a tiny model that drafts for itself, in a cluster of their own, and a router.

    `draft` are further arguments of the pool of drafts.
    """
    engine = {"dtype": "float32", "threads": 1}
    # Little is left of two processors for many replicas: what they are to keep is not what counts.
    target = {"num_cpus": 0.2, "options": {"model": str(model), **engine}}
    options = {"draft": f"vanilla:{model}", "target_model": str(model), **engine}
    draft = {"num_cpus": 0.2, "options": options, **draft}
    with running_redis() as store:
        pools = {"host": "127.0.0.1", "store_url": store, "target": target, "draft": draft}
        app = {"import_path": "slipstream.cluster.app:build", "route_prefix": None, "args": pools}
        config, file = {"proxy_location": "Disabled", "applications": [app]}, folder / "pools.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")  # which is YAML, too
        words = ("run", "--address", "local", str(file))
        found = ("--targets", "registry:", "--drafts", "registry:", "--store-url", store)
        with (
            Process("ray.serve.scripts", *words, env=_ENV) as cluster,
            serve("router", "--address", "127.0.0.1:0", *found, env=_ENV) as router,
        ):
            yield RayPools(cluster, router)
            cluster.signal(signal.SIGTERM)  # an interrupt is missed by `serve run` once in a while
            cluster.wait()


class RayPools:
    def __init__(self, cluster: Process, router: Process) -> None:
        self.cluster, self.router = cluster, router

    def services(self, role: str) -> dict[int, int]:
        """Services of a role that run, each with the actor that keeps it."""
        return {
            pid: _parent(pid)
            for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
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
        raise AssertionError(f"there are {found}, and not {number} {role}s: {self.cluster.err}")

    def _is_ours(self, pid: int) -> bool:
        while pid > 1:
            if pid == self.cluster.pid:
                return True
            pid = _parent(pid)
        return False


def _parent(pid: int) -> int:
    """0 once it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])

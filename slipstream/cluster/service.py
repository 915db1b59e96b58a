"""One service as a child of this process, kept by a thread of its own. Needs no Ray.

The child does not outlive that thread, nor this process; and the process does not outlive the
child, so that Ray, which watches the process, need not watch the child.
"""

import asyncio
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import ProxyHandler, build_opener

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slipstream.core.errors import Unavailable
from slipstream.local.child import Child, show, start_child

T = TypeVar("T")
_LOCAL = "127.0.0.1"
_TIMEOUT_S = 5.0
"""Timeout of health checks, and of reading the page of metrics."""
_SPARE_S = 5.0
"""Time beyond its own grace that the service gets before it is killed."""
# Metrics by their names on a page of Prometheus.
_SESSIONS = 'slipstream_sessions{state="active"}'
_WAITING = "slipstream_waiting"
_PROPOSING = (
    "slipstream_draft_queue_duration_seconds_sum",
    "slipstream_draft_engine_duration_seconds_sum",
)


class ServiceLoad:
    """Load of a service, by its pages of metrics, one after the other.

    The load of a target is its sessions and what waits there; that of a draft is the number of
    proposals that are there at once, on average since the page before.
    """

    def __init__(self, role: str) -> None:
        self._is_draft = role == "draft"
        self._before: tuple[float, float] | None = None
        """Seconds that all proposals had taken on the last page, and when it was read."""

    def read(self, page: str, now_s: float) -> float:
        """Return the load by a page of Prometheus, read now; what is not on it counts as 0."""
        pairs = (line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#")
        values = {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2}
        if not self._is_draft:
            return sum(values.get(name, 0.0) for name in (_SESSIONS, _WAITING))
        taken_s = sum(values.get(name, 0.0) for name in _PROPOSING)
        before, self._before = self._before, (taken_s, now_s)
        return 0.0 if before is None else (taken_s - before[0]) / (now_s - before[1])


class Service:
    """A running `python -m slipstream_ROLE`. For any thread."""

    def __init__(
        self, role: str, flags: Sequence[str], host: str, port: int, metrics_port: int
    ) -> None:
        """Return once it serves. Raises what `Child.ready` does.

        A port of 0 is any that is free; with `metrics_port` 0 this machine alone reads metrics.
        """
        self._place = Path(tempfile.mkdtemp(prefix="slipstream-"))
        self._health = f"unix:{self._place}/health"
        metrics = f"{host}:{metrics_port}" if metrics_port else f"{_LOCAL}:{_free_port()}"
        self._page = f"http://{metrics}/metrics"
        self._load = ServiceLoad(role)
        self._is_stopping = False
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        serving = f"{host}:{port}"
        options = ["--address", serving, "--health-address", self._health]
        options += ["--metrics-address", metrics, *flags]
        self._child, self.address = self._run(self._start(role, options))

    def check(self) -> None:
        """Raise `Unavailable` unless it reports that it serves."""
        with grpc.insecure_channel(self._health) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
            except grpc.RpcError as error:
                raise Unavailable(f"the {self._child.name} does not answer ({error})") from None
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise Unavailable(f"the {self._child.name} does not serve")

    def load(self) -> float:
        """Return the load by its page. Raises `OSError` when that can't be read."""
        # The page is on this machine: no proxy leads there.
        with build_opener(ProxyHandler({})).open(self._page, timeout=_TIMEOUT_S) as page:
            body: bytes = page.read()
        return self._load.read(body.decode(errors="replace"), time.monotonic())

    def stop(self, grace_s: float) -> None:
        """Let it finish what runs, at most for the grace, and end it. May be repeated."""
        self._is_stopping = True
        self._run(self._child.stop(grace_s + _SPARE_S))
        shutil.rmtree(self._place, ignore_errors=True)

    async def _start(self, role: str, flags: Sequence[str]) -> tuple[Child, str]:
        child = await start_child(role, f"slipstream_{role}", flags, on_line=show)
        address = await child.ready()
        self._watching = asyncio.create_task(self._watch(child))
        return child, address

    async def _watch(self, child: Child) -> None:
        await child.ended()
        if not self._is_stopping:
            show(child.name, f"{child.exit_text()}, and this replica with it")
            os._exit(1)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _free_port() -> int:
    """Return a port that is free now; one that is taken meanwhile fails at the start."""
    with socket.create_server((_LOCAL, 0)) as free:
        return int(free.getsockname()[1])

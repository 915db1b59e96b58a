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
from collections.abc import Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass
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
"""How much longer than its own grace the service gets before it is killed."""
# Gauges by their names on a page of Prometheus.
_SESSIONS = 'slipstream_sessions{state="active"}'
_WAITING = "slipstream_waiting"
_DRAFT_WAIT = "slipstream_target_draft_wait"


@dataclass(frozen=True, slots=True)
class ServicePorts:
    """Ports of a service on a host; 0 for any port, and for metrics one of this machine."""

    host: str
    serving: int = 0
    metrics: int = 0


@dataclass(frozen=True, slots=True)
class Gauges:
    """Load of one replica at the moment."""

    num_sessions: float = 0.0
    num_waiting: float = 0.0
    draft_wait: float = 0.0
    """Share of the last half minute in which a target waited for drafts."""

    @property
    def load(self) -> float:
        """Sessions, and what waits."""
        return self.num_sessions + self.num_waiting


def gauges_of(page: str) -> Gauges:
    """Return the gauges on a page of Prometheus; 0 for what is not on it."""
    pairs = (line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#")
    values = {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2}
    return Gauges(
        num_sessions=values.get(_SESSIONS, 0.0),
        num_waiting=values.get(_WAITING, 0.0),
        draft_wait=values.get(_DRAFT_WAIT, 0.0),
    )


class Service:
    """A running `python -m slipstream.ROLE`. For any thread."""

    def __init__(self, role: str, flags: Sequence[str], ports: ServicePorts) -> None:
        """Return once it serves. Raises what `Child.ready` does."""
        self._place = Path(tempfile.mkdtemp(prefix="slipstream-"))
        self._health = f"unix:{self._place}/health"
        metrics = f"{ports.host}:{ports.metrics}" if ports.metrics else f"{_LOCAL}:{_free_port()}"
        self._page = f"http://{metrics}/metrics"
        self._is_stopping = False
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        serving = f"{ports.host}:{ports.serving}"
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

    def gauges(self) -> Gauges:
        """Return the gauges of its page. Raises `OSError` when that can't be read."""
        # The page is on this machine: no proxy leads there.
        with build_opener(ProxyHandler({})).open(self._page, timeout=_TIMEOUT_S) as page:
            body: bytes = page.read()
        return gauges_of(body.decode(errors="replace"))

    def stop(self, grace_s: float) -> None:
        """Let it finish what runs, at most for the grace, and end it. May be repeated."""
        self._is_stopping = True
        self._run(self._child.stop(grace_s + _SPARE_S))
        shutil.rmtree(self._place, ignore_errors=True)

    async def _start(self, role: str, flags: Sequence[str]) -> tuple[Child, str]:
        child = await start_child(role, f"slipstream.{role}", flags, on_line=show)
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
    with closing(socket.socket()) as free:
        free.bind((_LOCAL, 0))
        port: int = free.getsockname()[1]
        return port

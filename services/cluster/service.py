"""One service as a child of this process, kept by a thread of its own. Knows no Ray.

The child does not outlive that thread, nor this process; and the process does not outlive the
child, so that whoever watches over the process need not know of the child.
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

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slipstream.cluster.gauges import Gauges, read_gauges
from slipstream.core.errors import Unavailable
from slipstream.local.child import Child, show, start_child

T = TypeVar("T")
HEALTH_S = 5.0
PATIENCE_S = 5.0
"""How much longer than its own grace the service gets before it is killed."""
LOCAL = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a service listens on a host; 0 for any port, and for metrics one of this machine."""

    host: str
    serving: int = 0
    metrics: int = 0


class Service:
    """A running `python -m slipstream.ROLE`. For any thread."""

    def __init__(self, role: str, flags: Sequence[str], ports: Ports) -> None:
        """Returns once it serves. Raises what `Child.ready` does."""
        self._place = Path(tempfile.mkdtemp(prefix="slipstream-"))
        self._health = f"unix:{self._place}/health"
        metrics = f"{ports.host}:{ports.metrics}" if ports.metrics else f"{LOCAL}:{_free_port()}"
        self._page = f"http://{metrics}/metrics"
        self._is_stopping = False
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        serving = f"{ports.host}:{ports.serving}"
        told = ["--address", serving, "--health-address", self._health]
        told += ["--metrics-address", metrics, *flags]
        self._child, self.address = self._run(self._start(role, told))

    def check(self) -> None:
        """Raises `Unavailable` unless it says that it serves."""
        with grpc.insecure_channel(self._health) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=HEALTH_S)
            except grpc.RpcError as error:
                raise Unavailable(f"the {self._child.name} says nothing ({error})") from None
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise Unavailable(f"the {self._child.name} does not serve")

    def gauges(self) -> Gauges:
        """What it says of itself. Raises `OSError`."""
        return read_gauges(self._page)

    def stop(self, grace_s: float) -> None:
        """Have it finish what runs, at most for the grace, and end. Again is fine."""
        self._is_stopping = True
        self._run(self._child.stop(grace_s + PATIENCE_S))
        shutil.rmtree(self._place, ignore_errors=True)

    async def _start(self, role: str, flags: Sequence[str]) -> tuple[Child, str]:
        child = await start_child(role, f"slipstream.{role}", flags, say=show)
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
    """One that nobody has at the moment; who takes it before us is found out at the start."""
    with closing(socket.socket()) as free:
        free.bind((LOCAL, 0))
        port: int = free.getsockname()[1]
        return port

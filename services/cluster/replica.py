"""A replica of a pool as Ray Serve starts it: one service, told of to the directory.

Serve's own calls end here; rounds go straight to the service's port.
"""

import asyncio
import logging

import ray
from ray import serve

from slipstream.cluster.gauges import Gauges
from slipstream.cluster.plan import ClusterPlan, plan_from
from slipstream.cluster.scaling import LOAD, TARGETS_WAIT, WAITING
from slipstream.cluster.service import Ports, Service

DIRECTORY = "Directory"
EVERY_S = 1.0
_ANSWER_S = 5.0
_LOG = logging.getLogger("ray.serve")


class Replica:
    """Methods are those that Serve calls, on one event loop."""

    def __init__(self, role: str, arguments: dict[str, object]) -> None:
        """Returns once the service is ready; `arguments` are those of the plan."""
        self._role = role
        self._plan: ClusterPlan = plan_from(arguments)
        pool = self._plan.pools()[role]
        host = _bracketed(self._plan.host or _node_address())
        ports = Ports(host, pool.port, pool.metrics_port)
        self._service = Service(role, self._plan.flags(role), ports)
        self._gauges = Gauges()
        self._targets_wait = 0.0
        self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def check_health(self) -> None:
        """Raises when the service does not say that it serves."""
        await asyncio.to_thread(self._service.check)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What the pool's policy goes by."""
        return {
            LOAD: self._gauges.load,
            WAITING: self._gauges.num_waiting,
            TARGETS_WAIT: self._targets_wait,
        }

    def __del__(self) -> None:
        """Serve wants this replica to end: what runs may finish, and nothing new comes."""
        if hasattr(self, "_service"):
            self._service.stop(self._plan.grace_s)

    async def _tell(self) -> None:
        name = serve.get_replica_context().app_name
        directory = serve.get_deployment_handle(DIRECTORY, name)
        problem = ""
        while True:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    self._gauges = await asyncio.to_thread(self._service.gauges)
                    self._targets_wait = await directory.announce.remote(
                        self._role, self._service.address, self._gauges.draft_wait
                    )
                problem = ""
            except Exception as error:  # whatever it is, it must not end this
                if str(error) != problem:
                    _LOG.warning("the replica can't tell of itself: %s", error)
                problem = str(error)
            await asyncio.sleep(EVERY_S)


def _node_address() -> str:
    """Of this node as its cluster knows it: it may have others, which lead elsewhere."""
    here = ray.get_runtime_context().get_node_id()
    (address,) = (node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here)
    return str(address)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

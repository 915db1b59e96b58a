"""The pools as an application of Ray Serve: `import_path: slipstream.cluster.app:build`."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from slipstream.cluster.plan import LOAD, ClusterPlan, plan_from
from slipstream.cluster.service import Service

EVERY_S = 1.0
HEALTH_PERIOD_S = 2.0
HEALTH_TIMEOUT_S = 10.0
_NO_CALLS_S = 0.1
"""Time that Serve waits for its own calls to a replica to end, repeatedly: there are none."""
_SPARE_S = 15.0
"""Time beyond its service's grace that Ray waits for a stopping replica."""
_PUSH_S = 10.0
"""Longest interval of replicas' reports; it is shorter where the look-back time is short."""
_LOG = logging.getLogger("ray.serve")


def build(args: Mapping[str, Any]) -> Application:
    """Return the pools of `args` as one application. Raises what `plan_from` does."""
    plan = plan_from(args)
    others = [_pool(role, plan) for role in plan.pools() if role != "target"]
    return _pool("target", plan, *others)


def _pool(role: str, plan: ClusterPlan, *others: Application) -> Application:
    pool = plan.pools()[role]
    scaling = AutoscalingConfig(
        min_replicas=pool.min_replicas,
        max_replicas=pool.max_replicas,
        target_ongoing_requests=pool.load_per_replica,
        look_back_period_s=pool.look_back_s,
        metrics_interval_s=min(_PUSH_S, pool.look_back_s / 3),
        upscale_delay_s=pool.upscale_delay_s,
        downscale_delay_s=pool.downscale_delay_s,
        policy=AutoscalingPolicy(policy_function=f"slipstream.cluster.plan:wanted_{role}s"),
    )
    deployment: Any = serve.deployment(PoolReplica)
    app: Application = deployment.options(
        name=role.capitalize(),
        ray_actor_options={
            "num_cpus": pool.num_cpus,
            "num_gpus": pool.num_gpus,
            "resources": dict(pool.resources),
        },
        autoscaling_config=scaling,
        graceful_shutdown_timeout_s=plan.grace_s + _SPARE_S,
        graceful_shutdown_wait_loop_s=_NO_CALLS_S,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
    ).bind(role, plan, *others)
    return app


class PoolReplica:
    """A replica of a pool: one service, which announces itself in Redis.

    Methods are those that Serve calls, on one event loop. Rounds go straight to the service's port.
    """

    def __init__(self, role: str, plan: ClusterPlan, *_others: Any) -> None:
        """Return once the service is ready. `_others` are pools of the same application."""
        self._role, self._plan = role, plan
        pool = plan.pools()[role]
        host = plan.host or _node_address()
        host = f"[{host}]" if ":" in host else host
        self._service = Service(role, plan.flags(role), host, pool.port, pool.metrics_port)
        self._load = 0.0
        self._following = asyncio.get_running_loop().create_task(self._follow_load())

    async def __call__(self, _request: Any = None) -> str:
        """Return the role, for HTTP: Serve asks that of an application's first deployment."""
        return self._role

    async def check_health(self) -> None:
        """Raise when the service does not report that it serves."""
        await asyncio.to_thread(self._service.check)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what the pool's policy goes by."""
        return {LOAD: self._load}

    def __del__(self) -> None:
        """Stop the service for Serve: what runs may finish, and nothing new comes."""
        if hasattr(self, "_service"):
            self._service.stop(self._plan.grace_s)

    async def _follow_load(self) -> None:
        problem = ""
        while True:
            try:
                self._load = await asyncio.to_thread(self._service.load)
                problem = ""
            except OSError as error:
                if str(error) != problem:
                    _LOG.warning("the load of the replica can't be read: %s", error)
                problem = str(error)
            await asyncio.sleep(EVERY_S)


def _node_address() -> str:
    """Return this node's address in the cluster; others may lead elsewhere."""
    here = ray.get_runtime_context().get_node_id()
    (address,) = (node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here)
    return str(address)

"""The pools as an application of Ray Serve: `import_path: slipstream.cluster.app:build`."""

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from slipstream.cluster.directory import Directory
from slipstream.cluster.plan import ClusterPlan, PoolPlan, plan_from
from slipstream.cluster.replica import DIRECTORY, Replica

_POLICIES = {
    "target": "slipstream.cluster.scaling:wanted_targets",
    "draft": "slipstream.cluster.scaling:wanted_drafts",
}
HEALTH_PERIOD_S = 2.0
HEALTH_TIMEOUT_S = 10.0
_NO_CALLS_S = 0.1
"""How long Serve waits for its own calls to a replica to end, again and again: there are none."""
_PUSH_S = 10.0
"""How often replicas report at most; more often where the look-back time is short."""


def build(args: Mapping[str, Any]) -> Application:
    """The pools of `args`, which `plan_from` reads. Raises `InvalidRequest`."""
    plan = plan_from(args)
    pools = [_pool(role, plan) for role in plan.pools()]
    directory: Any = serve.deployment(Directory)
    app: Application = directory.options(
        name=DIRECTORY,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=1000,
        logging_config={"enable_access_log": False},  # a line a second and replica says nothing
    ).bind(*pools)
    return app


def _pool(role: str, plan: ClusterPlan) -> Application:
    pool = plan.pools()[role]
    deployment: Any = serve.deployment(Replica)
    app: Application = deployment.options(
        name=role.capitalize(),
        ray_actor_options={
            "num_cpus": pool.num_cpus,
            "num_gpus": pool.num_gpus,
            "resources": dict(pool.resources),
        },
        autoscaling_config=_scaling(role, pool),
        graceful_shutdown_timeout_s=plan.stopping_s,
        graceful_shutdown_wait_loop_s=_NO_CALLS_S,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
    ).bind(role, plan.arguments())
    return app


def _scaling(role: str, pool: PoolPlan) -> AutoscalingConfig:
    return AutoscalingConfig(
        min_replicas=pool.min_replicas,
        max_replicas=pool.max_replicas,
        target_ongoing_requests=pool.load_per_replica,
        look_back_period_s=pool.look_back_s,
        metrics_interval_s=min(_PUSH_S, pool.look_back_s / 3),
        upscale_delay_s=pool.upscale_delay_s,
        downscale_delay_s=pool.downscale_delay_s,
        policy=AutoscalingPolicy(policy_function=_POLICIES[role]),
    )

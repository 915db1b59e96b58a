"""Plans of the pools on Ray: values, also from the arguments of a Serve configuration, and how many
replicas a pool should have by their loads.

Each service checks its own options. Needs no Ray.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.core.errors import InvalidRequest
from slipstream.options import Bounded, check_bounds, option, overlaid

LOAD = "load"
SPARE = 1.5
"""Growth of a draft's load that is allowed when another draft is removed."""
Option = str | bool | int | float | Sequence[str]
_OURS = (
    "address",
    "advertised_address",
    "config",
    "grace_s",
    "health_address",
    "metrics_address",
    "store_url",
)
"""Options of services that are set in other ways here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """Replicas of one role: their options, their resources, and how many there are."""

    options: Mapping[str, Option] = field(default_factory=dict)
    """Options of the service, by name, as in a table of its configuration file."""
    min_replicas: int = 1
    max_replicas: int = 1
    num_cpus: float = option(1.0, "Processors reserved for a replica.", least=0)
    num_gpus: float = option(0.0, "GPUs of a replica.", least=0)
    resources: Mapping[str, float] = field(default_factory=dict)
    """Others that a node must have, such as those of a worker group of its own."""
    port: int = option(
        0, "Port of each on its node; 0 takes any that is free.", least=0, most=65535
    )
    metrics_port: int = option(
        0,
        "Port that Prometheus reads metrics from; 0 shows them to the pool alone.",
        least=0,
        most=65535,
    )
    load_per_replica: float = option(16.0, "Load for one replica; see docs/ray.md.", above=0)
    look_back_s: float = option(30.0, "Seconds over which the load is a mean.", above=0)
    upscale_delay_s: float = option(30.0, "Seconds of higher load before another starts.", least=0)
    downscale_delay_s: float = option(600.0, "Seconds of lower load before one goes.", least=0)

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise InvalidRequest(
                f"replicas are {self.min_replicas} to {self.max_replicas}, but must be at least 1"
                " and not go down"
            )
        for name in _OURS:
            if name in self.options:
                raise InvalidRequest(f"the option {name} is not one of a pool's on Ray")
        check_bounds(self)


POOLS = {"target": PoolPlan(), "draft": PoolPlan(load_per_replica=3.0)}
"""Pools of one replica, with the load that each role takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan(Bounded):
    """Both pools, and what they share."""

    target: PoolPlan = POOLS["target"]
    draft: PoolPlan | None = POOLS["draft"]
    """None where only routers draft, by n-grams."""
    grace_s: float = option(
        30.0, "Time for requests to finish when a replica is to stop.", least=0, most=3600
    )
    store_url: str = ""
    """Redis that replicas announce themselves in; empty where `config` names it."""
    host: str | None = None
    """Address to listen on, on every node; None for its address in the cluster."""
    config: str | None = None
    """Configuration file of the services, at the same path on every node."""

    def pools(self) -> dict[str, PoolPlan]:
        pools = {"target": self.target}
        return pools if self.draft is None else {**pools, "draft": self.draft}

    def flags(self, role: str) -> tuple[str, ...]:
        """Return the flags of a service of the role, but for its addresses."""
        pool = self.pools()[role]
        given: dict[str, Option] = {"grace_s": self.grace_s, **pool.options}
        shared = {"store_url": self.store_url, "config": self.config}
        given |= {name: value for name, value in shared.items() if value}
        if pool.num_gpus and "device" not in given:
            given["device"] = "cuda"
        return tuple(flag for name, value in given.items() for flag in _flags(name, value))


def plan_from(arguments: Mapping[str, Any]) -> ClusterPlan:
    """Return the plan of a Serve application's `args`. Raises `InvalidRequest`."""
    return overlaid(ClusterPlan(), arguments, "args")


def _flags(name: str, value: Option) -> tuple[str, ...]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return (f"--{flag}" if value else f"--no-{flag}",)
    if not isinstance(value, str | int | float):
        return (f"--{flag}", ",".join(map(str, value)))
    return (f"--{flag}", str(value))


def wanted_targets(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the number of targets over which their whole load is spread.

    A scaling policy of Ray Serve, which keeps to bounds and delays by itself, and carries the
    function to its controller by value. Loads are means over the look-back time, by replica; one
    that has just begun has reported none yet.
    """
    loads = context.aggregated_metrics.get(LOAD, {}).values()
    if not loads:
        return float(context.target_num_replicas), {}
    return float(sum(loads) / context.config.get_target_ongoing_requests()), {}


def wanted_drafts(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the same for drafts; fewer only where these have room to spare.

    The fewer drafts there are, the longer proposals take, and the more of them are there at once.
    """
    wanted, _ = wanted_targets(context)
    return max(wanted, min(float(context.target_num_replicas), SPARE * wanted)), {}

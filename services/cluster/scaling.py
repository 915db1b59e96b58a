"""Scaling policy of Ray Serve: how many replicas a pool should have, by their loads.

Serve keeps to bounds and delays by itself. `aggregated_metrics` are means over the look-back time,
by metric and replica. Imports nothing of ours: Serve carries the function to its controller as it
is.
"""

from typing import Any

LOAD = "load"


def wanted_replicas(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the number of replicas over which the pool's whole load is spread."""
    loads = context.aggregated_metrics.get(LOAD, {}).values()
    if not loads:  # no replica has reported yet
        return float(context.target_num_replicas), {}
    # Replicas that have just begun have not reported yet, and have no load yet.
    return float(sum(loads) / context.config.get_target_ongoing_requests()), {}

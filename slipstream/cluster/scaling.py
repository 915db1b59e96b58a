"""Scaling policies of Ray Serve: how many replicas a pool should have, by their loads.

Serve keeps to bounds and delays by itself. `aggregated_metrics` are means over the look-back time,
by metric and replica. Imports nothing of ours: Serve carries these functions to its controller as
they are.
"""

from typing import Any

LOAD = "load"
SPARE = 1.5
"""Growth of a draft's load that is allowed when another draft is removed."""


def wanted_targets(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the number of targets over which their whole load is spread."""
    return _by_load(context), {}


def wanted_drafts(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the same for drafts; fewer only where these have room to spare.

    The fewer drafts there are, the longer proposals take, and the more of them are there at once.
    """
    wanted = _by_load(context)
    return max(wanted, min(float(context.target_num_replicas), SPARE * wanted)), {}


def _by_load(context: Any) -> float:
    loads = context.aggregated_metrics.get(LOAD, {}).values()
    if not loads:  # no replica has reported yet
        return float(context.target_num_replicas)
    # Replicas that have just begun have not reported yet, and have no load yet.
    return float(sum(loads) / context.config.get_target_ongoing_requests())

"""Scaling policies of Ray Serve: how many replicas a pool should have, by their metrics.

Serve keeps to bounds and delays by itself. `aggregated_metrics` are means over the look-back time,
by metric and replica. Imports nothing of ours: Serve carries these functions to its controller as
they are.
"""

from typing import Any

LOAD, WAITING, TARGETS_WAIT = "load", "waiting", "targets_wait"
MUCH_WAIT, LITTLE_WAIT = 0.3, 0.1
"""Shares of their time that targets wait for drafts."""
QUEUE, SHORT_QUEUE = 1.0, 0.25
"""Proposals that wait in a draft."""


def wanted_targets(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the number of targets over which sessions and waiting verifications are spread."""
    return _by_load(context), {}


def wanted_drafts(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the same for drafts, corrected by how long targets wait for them.

    While they hardly wait for drafts, more of these change nothing. While they wait much and
    proposals queue, there is one draft too few at this load.
    """
    wanted, now = _by_load(context), context.target_num_replicas
    wait, queue = _mean(context, TARGETS_WAIT), _mean(context, WAITING)
    if wait is None or queue is None:
        return now, {}
    if wanted > now and wait < LITTLE_WAIT:
        return now, {}
    if wait >= MUCH_WAIT and queue >= QUEUE and context.current_num_replicas == now:
        return max(wanted, now + 1), {}
    if wanted < now and wait >= LITTLE_WAIT and queue >= SHORT_QUEUE:
        return now, {}
    return wanted, {}


def _by_load(context: Any) -> float:
    loads = context.aggregated_metrics.get(LOAD, {}).values()
    if not loads:  # no replica has reported yet
        return float(context.target_num_replicas)
    # Replicas that have just begun have not reported yet, and have no load yet.
    return float(sum(loads) / context.config.get_target_ongoing_requests())


def _mean(context: Any, name: str) -> float | None:
    values = context.aggregated_metrics.get(name, {}).values()
    return sum(values) / len(values) if values else None

"""How many replicas a pool should have, by what its replicas say of themselves.

These are policies of Ray Serve, which keeps to bounds and delays by itself: `aggregated_metrics`
are means over the look-back time, by metric and replica. Imports nothing of ours: Serve carries
these functions to its controller as they are.
"""

from typing import Any

LOAD, WAITING, TARGETS_WAIT = "load", "waiting", "targets_wait"
MUCH_WAIT, LITTLE_WAIT = 0.3, 0.1
"""Shares of their time that targets wait for drafts."""
QUEUE, SHORT_QUEUE = 1.0, 0.25
"""Proposals that wait in a draft."""


def wanted_targets(context: Any) -> tuple[float, dict[str, Any]]:
    """As many as their sessions, and the verifications that wait, are to be spread over."""
    return _by_load(context), {}


def wanted_drafts(context: Any) -> tuple[float, dict[str, Any]]:
    """The same, unless targets say otherwise.

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
    if not loads:  # nobody has said anything yet
        return float(context.target_num_replicas)
    # Of those that have just begun nothing is known yet, and they have nothing to do yet.
    return float(sum(loads) / context.config.get_target_ongoing_requests())


def _mean(context: Any, name: str) -> float | None:
    values = context.aggregated_metrics.get(name, {}).values()
    return sum(values) / len(values) if values else None

"""Forwards of a model before anything is served, to measure their costs on this machine."""

import time
from collections.abc import Callable
from typing import Any

from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.cost_curve import CROWD, CostCurve, learn
from slipstream.core.round import Clock
from slipstream.models.causal import CausalModel
from slipstream.models.kv.batch import Part
from slipstream.models.kv.pool import BLOCK_SIZE, KvPool, round_up
from slipstream.models.machine import this_machine
from slipstream.models.memory import wait_for

_TOKEN = 0
_CHECKED = (1, 8)
"""Batched tokens of the forwards that kept costs are checked by."""
_CHECKS = 2
_FASTER = 0.8
"""Kept costs are those of a busy machine where a forward takes so much less than they say."""
_SHORTEST_TILE = 8
"""Products of fewer tokens make a slope, not a staircase."""

Forward = Callable[[int, int], None]
"""Computes a forward of so many tokens of so many sessions."""


def learn_cost(
    model: CausalModel,
    pool: KvPool,
    *,
    max_tokens: int,
    seconds: float,
    name: str,
    clock: Clock = time.perf_counter,
) -> CostCurve:
    """Time steps of up to `max_tokens` tokens, logits included, for about so many seconds.

    Costs kept under this `name` by an earlier start hold unless a few forwards are clearly faster.
    On a device they are timed over the engine's own `pool`, whose forwards are captured.
    """
    max_tokens = min(max_tokens, model.context_length)
    num_pages = CROWD + round_up(max_tokens, BLOCK_SIZE) // BLOCK_SIZE
    if not model.draws_on_device or pool.num_free < num_pages:
        pool = model.pool(num_pages, scratch_rows=BLOCK_SIZE)
    caches = [model.open_in(pool) for _ in range(1 + CROWD)]

    def forward(num_tokens: int, num_sessions: int) -> None:
        used = caches[:1] if num_sessions == 1 else caches[1 : 1 + num_sessions]
        tokens = [_TOKEN] * (num_tokens // num_sessions)
        hidden, _ = model.forward([Part(cache, tokens) for cache in used])
        model.logits(hidden)
        wait_for(model.device)

    tile = model.rule.max_rows if _SHORTEST_TILE <= model.rule.max_rows < max_tokens else None
    is_cpu = model.device == "cpu"
    curve = _kept(name, forward, clock, max_tokens, tile) if is_cpu else None
    if curve is None:
        curve = learn(forward, clock, seconds=seconds, max_rows=max_tokens, tile=tile)
        if is_cpu:
            this_machine().keep(name, [curve.points, curve.session_s])
    for cache in caches:
        cache.close()
    return curve


def _kept(
    name: str, forward: Forward, clock: Clock, max_tokens: int, tile: int | None
) -> CostCurve | None:
    """Return the costs of an earlier start; None where forwards show that it was a busy one."""
    curve = _read(this_machine().get(name), tile)
    if curve is None or curve.points[-1][0] > max_tokens:
        return None
    seconds = dict(curve.points)
    if not seconds.keys() >= set(_CHECKED):
        return None
    forward(1, 1)
    for count in _CHECKED * _CHECKS:
        start = clock()
        forward(count, 1)
        if clock() - start < _FASTER * seconds[count]:
            return None
    return curve


def _read(value: Any, tile: int | None) -> CostCurve | None:
    try:
        points, session_s, *_ = value
        points = [(int(count), float(seconds)) for count, seconds in points]
        return CostCurve(points, tile=tile, session_s=float(session_s))
    except (TypeError, ValueError, OverflowError, InvalidRequest):
        return None

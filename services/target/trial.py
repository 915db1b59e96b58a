"""Forwards of a model before anybody is served, to learn what they cost. Keeps nothing."""

import time

import torch

from slipstream.core.cost_curve import CROWD, Budget, CostCurve, learn
from slipstream.core.timing import Clock
from slipstream.models.causal import CausalModel
from slipstream.models.kv_layout import KEY_BLOCK, round_up
from slipstream.models.pool import KvPool
from slipstream.models.rows import Part

_TOKEN = 0


def learn_cost(
    model: CausalModel,
    pool: KvPool,
    *,
    max_rows: int,
    seconds: float,
    clock: Clock = time.perf_counter,
) -> CostCurve:
    """Time steps of up to `max_rows` rows, for about so many seconds; head and all.

    On a device, where a pool's forwards are captured, it is the engine's own `pool` that they are
    timed over, so that they are captured before anybody waits for one.
    """
    max_rows = min(max_rows, model.context_length)
    own_pages = round_up(max_rows, KEY_BLOCK) // KEY_BLOCK
    if not model.has_shapes or pool.num_free < CROWD + own_pages:
        pool = model.pool(CROWD + own_pages, scratch_rows=KEY_BLOCK)
    alone, *crowd = caches = [model.open_in(pool) for _ in range(1 + CROWD)]
    alone.reserve(max_rows)
    for cache in crowd:
        cache.reserve(1)

    def forward(rows: int, sessions: int) -> None:
        used = crowd[:sessions] if sessions > 1 else [alone]
        tokens = [_TOKEN] * (rows // sessions)
        hidden, _ = model.forward([Part(cache, tokens) for cache in used])
        model.logits(hidden)
        _finish(model.device)

    tile = model.rule.max_rows if model.rule.max_rows < max_rows else None
    curve = learn(forward, clock, tile=tile, budget=Budget(seconds, max_rows))
    for cache in caches:
        cache.close()
    return curve


def _finish(device: torch.device) -> None:
    """Wait for what the device was given to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

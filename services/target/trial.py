"""Forwards of a model before anybody is served, to learn what they cost. Keeps nothing."""

import time

import torch

from slipstream.core.cost_curve import CROWD, Budget, CostCurve, learn
from slipstream.core.timing import Clock
from slipstream.models.causal import CausalModel
from slipstream.models.kv_layout import KEY_BLOCK
from slipstream.models.rows import Part

_TOKEN = 0


def learn_cost(
    model: CausalModel, *, max_rows: int, seconds: float, clock: Clock = time.perf_counter
) -> CostCurve:
    """Time steps of up to `max_rows` rows, for about so many seconds; head and all."""
    max_rows = min(max_rows, model.context_length)
    alone = model.open(max_rows)
    pool = model.pool(CROWD, scratch_rows=KEY_BLOCK)
    crowd = [model.open_in(pool) for _ in range(CROWD)]
    for cache in crowd:
        cache.reserve(1)

    def forward(rows: int, sessions: int) -> None:
        caches = crowd[:sessions] if sessions > 1 else [alone]
        tokens = [_TOKEN] * (rows // sessions)
        hidden, _ = model.forward([Part(cache, tokens) for cache in caches])
        model.logits(hidden)
        _finish(model.device)

    tile = model.rule.max_rows if model.rule.max_rows < max_rows else None
    return learn(forward, clock, tile=tile, budget=Budget(seconds, max_rows))


def _finish(device: torch.device) -> None:
    """Wait for what the device was given to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

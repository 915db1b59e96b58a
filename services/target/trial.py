"""Forwards of a model before anything is served, to learn what they cost on this machine."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from slipstream.core.cost_curve import CROWD, Budget, CostCurve, Costs, learn
from slipstream.core.timing import Clock
from slipstream.core.tree import ROOT, TokenTree
from slipstream.models.batched_tokens import Part
from slipstream.models.cache import KvCache
from slipstream.models.causal import CausalModel
from slipstream.models.machine import best_seconds, this_machine
from slipstream.models.pool import BLOCK_SIZE, KvPool, round_up

_TOKEN = 0
_CHECKED = (1, 8)
"""Batched tokens of the forwards that kept costs are checked by, each up to three times."""
_FASTER = 0.8
_BENT = 1.25
"""Kept costs are those of a busy machine where a forward takes so much less than they say: they are
all as much lower, unless the ratio of the two has changed by so much, and then measured again. Once
a start has found them right, a changed ratio alone says that the machine is busy now."""
_CHECKS = 3
_SHORTEST_TILE = 8
"""Products of fewer rows make a slope, not a staircase."""

Forward = Callable[[int, int], None]


def learn_cost(
    model: CausalModel,
    pool: KvPool,
    *,
    max_rows: int,
    seconds: float,
    name: str,
    clock: Clock = time.perf_counter,
) -> CostCurve:
    """Time steps of up to `max_rows` rows, for about so many seconds; head and all.

    What was found under this `name` at an earlier start is kept if a few forwards confirm it, or if
    it was measured twice: a machine that is always busy has no other costs. On a device it is the
    engine's own `pool` that they are timed over, so that they are captured early.
    """
    max_rows = min(max_rows, model.context_length)
    own_pages = round_up(max_rows, BLOCK_SIZE) // BLOCK_SIZE
    if not model.has_shapes or pool.num_free < CROWD + own_pages:
        pool = model.pool(CROWD + own_pages, scratch_rows=BLOCK_SIZE)
    alone = model.open_in(pool)
    crowd: list[KvCache] = []
    alone.reserve(max_rows)

    def forward(rows: int, sessions: int) -> None:
        used = [alone] if sessions == 1 else _opened(crowd, sessions, partial(model.open_in, pool))
        tokens = [_TOKEN] * (rows // sessions)
        hidden, _ = model.forward([Part(cache, tokens) for cache in used])
        model.logits(hidden)
        _finish(model.device)

    tile = model.rule.max_rows if _SHORTEST_TILE <= model.rule.max_rows < max_rows else None
    costs = _kept(name, forward, clock, max_rows) if model.device.type == "cpu" else None
    if costs is None:
        costs = learn(forward, clock, tile=tile, budget=Budget(seconds, max_rows))
        if model.device.type == "cpu":
            costs = replace(costs, branch_s=_branch_s(model, alone, clock))
            _keep(name, costs, is_confirmed=this_machine().get(name) is not None)
    for cache in (alone, *crowd):
        cache.close()
    return CostCurve(costs.points, tile=tile, session_s=costs.session_s, branch_s=costs.branch_s)


def _opened(crowd: list[KvCache], count: int, make: Callable[[], KvCache]) -> list[KvCache]:
    """So many caches with room for a token; those that are not there yet are made."""
    for _ in range(len(crowd), count):
        crowd.append(make())
        crowd[-1].reserve(1)
    return crowd[:count]


def _keep(name: str, costs: Costs, *, is_confirmed: bool = False) -> None:
    points = [list(point) for point in costs.points]
    this_machine().keep(name, [points, costs.session_s, costs.branch_s, is_confirmed])


def _kept(name: str, forward: Forward, clock: Clock, max_rows: int) -> Costs | None:
    """What an earlier start has found, where this one finds the same."""
    value = this_machine().get(name)
    costs = _read(value)
    if costs is None or costs.points[-1][0] > max_rows:
        return None
    known = dict(costs.points)
    if not all(rows in known for rows in _CHECKED):
        return None
    is_confirmed = bool(value[3:] and value[3])
    factor, is_alike = _compared(forward, known, clock)
    is_faster = factor <= _FASTER
    if not is_alike and (is_faster or not is_confirmed):
        return None
    if is_faster:
        costs = _scaled(costs, factor)
    if is_faster or not is_confirmed:
        _keep(name, costs, is_confirmed=True)
    return costs


def _compared(forward: Forward, known: Mapping[int, float], clock: Clock) -> tuple[float, bool]:
    """How long one row takes in units of what is known, and whether several take as many times as
    long as they did."""
    forward(1, 1)
    fastest, is_alike = dict.fromkeys(_CHECKED, math.inf), False
    for _ in range(_CHECKS):
        for rows in _CHECKED:
            fastest[rows] = min(fastest[rows], _timed(forward, rows, clock))
        one, some = (fastest[rows] / known[rows] for rows in _CHECKED)
        is_alike = 1 / _BENT < some / one < _BENT
        if is_alike:
            break
    return one, is_alike


def _scaled(costs: Costs, factor: float) -> Costs:
    points = tuple((rows, factor * seconds) for rows, seconds in costs.points)
    return replace(
        costs, points=points, session_s=factor * costs.session_s, branch_s=factor * costs.branch_s
    )


def _branch_s(model: CausalModel, cache: KvCache, clock: Clock) -> float:
    """What a second path adds to a tree of as many nodes."""
    chain, forked = TokenTree.chain([_TOKEN] * 4), TokenTree((1, 1, 2, 2), (ROOT, 0, ROOT, 2))

    def run(tree: TokenTree) -> None:
        model.logits(model.forward([Part(cache, [_TOKEN], tree)])[0])

    one, two = best_seconds([partial(run, chain), partial(run, forked)], clock=clock)
    return max(two - one, 0.0)


def _timed(forward: Forward, rows: int, clock: Clock) -> float:
    start = clock()
    forward(rows, 1)
    return max(clock() - start, 1e-9)


def _read(value: Any) -> Costs | None:
    """Costs as they were kept; None for anything else."""
    try:
        points, session_s, branch_s, *_ = value
        costs = Costs(
            tuple((int(rows), float(seconds)) for rows, seconds in points),
            float(session_s),
            float(branch_s),
        )
    except (TypeError, ValueError, OverflowError):
        return None
    is_sound = len(costs.points) > 1 and all(0 < at < math.inf for _, at in costs.points)
    is_sound &= all(0 <= more < math.inf for more in (costs.session_s, costs.branch_s))
    rows = [rows for rows, _ in costs.points]
    return costs if is_sound and rows[0] == 1 and rows == sorted(set(rows)) else None


def _finish(device: torch.device) -> None:
    """Wait for what the device was given to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

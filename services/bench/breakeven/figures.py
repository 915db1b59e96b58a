"""The figures: measured points beside the model's curve, and where it crosses 1. Pure."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from slipstream.bench.breakeven.plan import BreakEvenPlan, Point
from slipstream.bench.breakeven.run import Measured, Tally
from slipstream.bench.serve.distributions import median_interval
from slipstream.sizing.break_even import acceptance_of, pay_off
from slipstream.sizing.making import expected_tokens
from slipstream.sizing.recording import Devices


def break_even_figures(plan: BreakEvenPlan, measured: Measured) -> dict[str, Any]:
    """All of it; `devices` and `draft` are what `slipstream size --measured` takes."""
    devices = measured.devices
    points = {
        point: point_figures(point, tally, devices) for point, tally in measured.points.items()
    }
    sweeps = {name: [points[at] for at in of] for name, of in plan.sweeps.points().items()}
    real = [real_figures(n, tally, plan.depth, devices) for n, tally in measured.real.items()]
    tallies = [*measured.points.values(), *measured.real.values()]
    return {
        "depth": plan.depth,
        "num_tokens": plan.num_tokens,
        "pairs": plan.num_pairs,
        "seed": plan.seed,
        "base": plan.sweeps.base.values(),
        "plain_round_ms": 1000 * devices.curve().seconds(1),
        "sweeps": sweeps,
        "real": real,
        "largest_deviation": _largest(points, "deviation"),
        "largest_deviation_of_round_cost": _largest(points, "round_cost_deviation"),
        "num_identical": sum(tally.num_same for tally in tallies),
        "num_outputs": sum(tally.num_outputs for tally in tallies),
        "devices": asdict(devices),
        "draft": _draft(plan, measured),
    }


def point_figures(point: Point, tally: Tally, devices: Devices) -> dict[str, Any]:
    """One point: `speedup` is of pairs of runs, `model` what the curve has there.

    `round_cost` is that of a round in plain ones, `measured_round_cost` that of the tokens which
    came of the rounds that there were: their luck is out of it.
    """
    setting = point.setting
    found = pay_off(devices, setting)
    speedup = median_interval(tally.ratios)
    assert speedup is not None, "every point has a pair"
    model = found.speedup(point.acceptance)
    round_cost = tally.tokens_per_round / speedup.median
    return {
        **point.values(),
        "speedup": asdict(speedup),
        "model": model,
        "deviation": speedup.median / model - 1,
        "tokens_per_round": tally.tokens_per_round,
        "expected_tokens": expected_tokens(point.acceptance, setting.depth),
        "round_cost": found.round_cost,
        "measured_round_cost": round_cost,
        "round_cost_deviation": round_cost / found.round_cost - 1,
        "break_even_acceptance": found.acceptance,
    }


def real_figures(sessions: int, tally: Tally, depth: int, devices: Devices) -> dict[str, Any]:
    """The draft that there is: `acceptance` is the one that makes as many tokens a round."""
    speedup = median_interval(tally.ratios)
    assert speedup is not None, "every point has a pair"
    level_s = devices.level(sessions)
    return {
        "sessions": sessions,
        "speedup": asdict(speedup),
        "tokens_per_round": tally.tokens_per_round,
        "acceptance": acceptance_of(tally.tokens_per_round, depth),
        "cost_ratio": level_s / devices.curve().seconds(1),
        "rtt_ms": 0.0,
    }


def _draft(plan: BreakEvenPlan, measured: Measured) -> dict[str, Any]:
    """How often the draft is right in all of its rounds, and how many tokens it drafts."""
    acceptance: float | None = plan.sweeps.base.acceptance
    if real := measured.real.values():
        tokens = sum(tally.tokens for tally in real) / sum(tally.rounds for tally in real)
        # Rounds at a run's edges count by shares: a draft that is always right may come to more.
        acceptance = acceptance_of(min(tokens, plan.depth + 1.0), plan.depth)
    return {"acceptance": acceptance, "depth": plan.depth}


def _largest(points: Mapping[Point, dict[str, Any]], name: str) -> dict[str, Any]:
    """The value farthest from 0, and of which point."""
    point, values = max(points.items(), key=lambda item: abs(item[1][name]))
    return {"value": values[name], "point": point.values()}

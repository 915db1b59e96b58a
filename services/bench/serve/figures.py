"""From the runs of all arms at all points to figures. Pure; knows no clock and no terminal."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from slipstream.bench.methods import PLAIN
from slipstream.bench.serve.distributions import median_interval, spread
from slipstream.bench.serve.identity import References, identity
from slipstream.bench.serve.plan import Point, ServePlan
from slipstream.bench.serve.ratios import over, point_ratios, rates
from slipstream.bench.serve.sample import Limits, Run, Sample
from slipstream.core.results import RequestStats

Runs = Mapping[Point, Mapping[str, Sequence[Run]]]
"""By point and by the name of the arm, one a repeat."""

ONE_SESSION = Point("concurrency", 1)

_LATENCIES: Mapping[str, Callable[[Sample], float | None]] = {
    "ttft_ms": lambda sample: sample.ttft_s,
    "tpot_ms": lambda sample: sample.tpot_s,
    "latency_ms": lambda sample: sample.latency_s,
}


def serve_figures(
    plan: ServePlan, runs: Runs, references: References | None = None
) -> dict[str, Any]:
    """`{"points": [...]}`: each with its arms' figures, and ratios between arms."""
    single = runs.get(ONE_SESSION, {}).get(PLAIN)
    points = []
    for point, by_arm in runs.items():
        arms = {name: arm_figures(of, plan.limits) for name, of in by_arm.items()}
        for arm in plan.arms:
            of, figures = by_arm[arm.name], arms[arm.name]
            figures["over_one_plain"] = None if single is None else over(of, single)
            figures["identity"] = None
            if references is not None:
                expected = arm.is_comparable(is_greedy=plan.sampling.is_greedy)
                figures["identity"] = identity(_samples(of), references, is_expected=expected)
        facts = {"kind": point.kind, "value": point.value, "arms": arms}
        points.append(facts | point_ratios(rates(by_arm)))
    return {"points": points}


def arm_figures(runs: Sequence[Run], limits: Limits) -> dict[str, Any]:
    """One arm at one point: speeds are medians over the runs, latencies are of all requests."""
    samples = _samples(runs)
    finished = [sample for sample in samples if sample.is_finished]
    gaps = [1000 * gap for sample in finished for gap in sample.gaps_s]
    return {
        "runs": [_run(run, limits) for run in runs],
        "tokens_per_s": _median(run.tokens_per_s for run in runs),
        "steady_tokens_per_s": _median(run.steady_tokens_per_s for run in runs),
        "requests_per_s": _median(run.requests_per_s for run in runs),
        **{name: _spread_ms(finished, value) for name, value in _LATENCIES.items()},
        "gap_ms": spread(gaps),
        "sent_late_ms": _sent_late(runs),
        "goodput": _goodput(runs, limits) if limits.is_any else None,
        "requests": len(samples),
        "finished": len(finished),
        "tokens": sum(sample.num_tokens for sample in finished),
        **failures(samples),
        **_counts([sample.stats for sample in finished if sample.stats is not None]),
    }


def failures(samples: Iterable[Sample]) -> dict[str, Any]:
    """Failed requests by the class of their error, and one sentence of each."""
    found = [sample.failure for sample in samples if sample.failure is not None]
    return {
        "errors": dict(Counter(failure.name for failure in found)),
        "error_examples": {failure.name: failure.sentence for failure in reversed(found)},
    }


def _run(run: Run, limits: Limits) -> dict[str, Any]:
    return {
        "wall_s": run.wall_s,
        "tokens_per_s": run.tokens_per_s,
        "steady_tokens_per_s": run.steady_tokens_per_s,
        "requests_per_s": run.requests_per_s,
        "good_per_s": run.good_per_s(limits) if limits.is_any else None,
        "requests": len(run.samples),
        "finished": len(run.finished),
    }


def _goodput(runs: Sequence[Run], limits: Limits) -> dict[str, Any]:
    """Of all requests, failed ones included, those that met the limits."""
    samples = _samples(runs)
    met = sum(map(limits.met_by, samples))
    return {
        **asdict(limits),
        "requests_per_s": _median(run.good_per_s(limits) for run in runs),
        "met": met,
        "share": met / len(samples) if samples else None,
    }


def _sent_late(runs: Sequence[Run]) -> dict[str, float] | None:
    """How long users waited for the benchmark itself; in a closed loop nobody does."""
    samples = _samples(run for run in runs if run.concurrency is None)
    return _spread_ms(samples, lambda sample: sample.sent_s - sample.due_s)


def _counts(stats: Sequence[RequestStats]) -> dict[str, Any]:
    speculation = [at.speculation for at in stats]
    steps = sum(at.num_spec_steps for at in speculation)
    rounds = steps + sum(at.num_plain_steps for at in speculation)
    accepted = sum(at.num_accepted_draft_tokens for at in speculation)
    fallbacks: Counter[str] = Counter()
    for at in speculation:
        fallbacks.update(at.fallbacks)
    return {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "speculative_share": steps / rounds if rounds else 0.0,
        "drafted_tokens": sum(at.num_draft_tokens for at in speculation),
        "fallbacks": dict(fallbacks),
        "prompt_tokens": sum(at.num_prompt_tokens for at in stats),
        "cached_tokens": sum(at.num_cached_tokens for at in stats),
    }


def _spread_ms(
    samples: Iterable[Sample], value: Callable[[Sample], float | None]
) -> dict[str, float] | None:
    found = [value(sample) for sample in samples]
    return spread([1000 * seconds for seconds in found if seconds is not None])


def _samples(runs: Iterable[Run]) -> list[Sample]:
    return [sample for run in runs for sample in run.samples]


def _median(values: Iterable[float | None]) -> float | None:
    interval = median_interval([value for value in values if value is not None])
    return None if interval is None else interval.median

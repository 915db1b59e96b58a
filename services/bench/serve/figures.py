"""Figures of the runs of all methods at all points."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from slipstream.bench.methods import PLAIN
from slipstream.bench.serve.plan import Point, ServePlan
from slipstream.bench.serve.sample import GoodputLimits, LoadRun, LoadSample
from slipstream.bench.statistics import (
    SpeculationCounts,
    differences,
    median_interval,
    paired,
    positions,
    spread,
)
from slipstream.core.request.results import RequestStats

References = Mapping[int | str, tuple[int, ...]]
"""Tokens of plain decoding by question_id, one request at a time, by the same engine."""
Runs = Mapping[Point, Mapping[str, Sequence[LoadRun]]]
"""Runs by point and by method, one a repeat."""

Rates = Mapping[str, Sequence[float | None]]
"""Tokens per second of every run by method; None where nothing was finished."""

BETTER = "better"
BASELINES = (PLAIN, "forced")
"""Methods that others are measured against."""
ONE_SESSION = Point("concurrency", 1)

_LATENCIES: Mapping[str, Callable[[LoadSample], float | None]] = {
    "ttft_ms": lambda sample: sample.ttft_s,
    "tpot_ms": lambda sample: sample.tpot_s,
    "latency_ms": lambda sample: sample.latency_s,
}


def serve_figures(
    plan: ServePlan, runs: Runs, references: References | None = None
) -> dict[str, Any]:
    """Return `{"points": [...]}`: each with figures of its methods, and their ratios."""
    single = runs.get(ONE_SESSION, {}).get(PLAIN)
    points = []
    for point, by_method in runs.items():
        methods = {name: runs_figures(of, plan.limits) for name, of in by_method.items()}
        for method in plan.methods:
            of, figures = by_method[method.name], methods[method.name]
            # Repeats are interleaved over all points, so that these are neighbours, too.
            figures["over_one_plain"] = (
                None if single is None else paired(speeds(of), speeds(single))
            )
            figures["identity"] = None
            if references is not None:
                expected = method.is_comparable(is_greedy=plan.sampling.is_greedy)
                figures["identity"] = identity(_samples(of), references, is_expected=expected)
        facts = {"kind": point.kind, "value": point.value, "arms": methods}
        points.append(facts | point_ratios({name: speeds(of) for name, of in by_method.items()}))
    return {"points": points}


def runs_figures(runs: Sequence[LoadRun], limits: GoodputLimits) -> dict[str, Any]:
    """Return figures at one point: speeds are medians over runs, latencies of all requests."""
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


def identity(
    samples: Sequence[LoadSample], references: References, *, is_expected: bool
) -> dict[str, Any]:
    """Compare finished outputs with those of the same prompts alone, by tokens."""
    outputs = [(at.question_id, at.token_ids) for at in samples if at.is_finished]
    num_identical = sum(tokens == references[name] for name, tokens in outputs)
    return {
        "identical": num_identical,
        "outputs": len(outputs),
        "expected": is_expected,
        "differences": positions(differences(outputs, references)),
    }


def speeds(runs: Sequence[LoadRun]) -> list[float | None]:
    """Return the speed of every run."""
    return [run.tokens_per_s for run in runs]


def point_ratios(of: Rates) -> dict[str, Any]:
    """Return `{"ratios": {SUBJECT: {BASELINE: interval, "better": interval}}}`.

    `better` is the better of all baselines in the same repeat, each time: the hardest to meet, as
    the larger of two figures with noise is too large on average. `forced` is a subject where
    there is no other.
    """
    bases = [name for name in BASELINES if name in of]
    subjects = [name for name in of if name not in bases]
    if not subjects and len(bases) > 1:
        subjects, bases = bases[1:], bases[:1]
    against = {name: of[name] for name in bases}
    if len(bases) > 1:
        against[BETTER] = better(list(against.values()))
    ratios = {
        subject: {name: paired(of[subject], base) for name, base in against.items()}
        for subject in subjects
    }
    return {"ratios": ratios if bases else {}}


def better(of: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the largest of each repeat; None where one is missing."""
    return [
        None if None in rates else max(rate for rate in rates if rate is not None)
        for rates in zip(*of, strict=True)
    ]


def failures(samples: Iterable[LoadSample]) -> dict[str, Any]:
    """Count failed requests by the class of their error, and one sentence of each."""
    found = [sample.failure for sample in samples if sample.failure is not None]
    return {
        "errors": dict(Counter(failure.name for failure in found)),
        "error_examples": {failure.name: failure.sentence for failure in reversed(found)},
    }


def _run(run: LoadRun, limits: GoodputLimits) -> dict[str, Any]:
    return {
        "wall_s": run.wall_s,
        "tokens_per_s": run.tokens_per_s,
        "steady_tokens_per_s": run.steady_tokens_per_s,
        "requests_per_s": run.requests_per_s,
        "good_per_s": run.good_per_s(limits) if limits.is_any else None,
        "requests": len(run.samples),
        "finished": len(run.finished),
    }


def _goodput(runs: Sequence[LoadRun], limits: GoodputLimits) -> dict[str, Any]:
    """Count the requests that met the limits, among all, failed ones included."""
    samples = _samples(runs)
    met = sum(map(limits.met_by, samples))
    return {
        **asdict(limits),
        "requests_per_s": _median(run.good_per_s(limits) for run in runs),
        "met": met,
        "share": met / len(samples) if samples else None,
    }


def _sent_late(runs: Sequence[LoadRun]) -> dict[str, float] | None:
    """Return how late requests of open loops were sent."""
    samples = _samples(run for run in runs if run.concurrency is None)
    return _spread_ms(samples, lambda sample: sample.sent_s - sample.due_s)


def _counts(stats: Sequence[RequestStats]) -> dict[str, Any]:
    counts = SpeculationCounts.of(at.speculation for at in stats)
    return {
        "mean_acceptance_length": counts.acceptance_length,
        "speculative_share": counts.speculative / max(counts.rounds, 1),
        "drafted_tokens": counts.drafted,
        "fallbacks": dict(counts.fallbacks),
        "prompt_tokens": sum(at.num_prompt_tokens for at in stats),
        "cached_tokens": sum(at.num_cached_tokens for at in stats),
    }


def _spread_ms(
    samples: Iterable[LoadSample], value: Callable[[LoadSample], float | None]
) -> dict[str, float] | None:
    found = [value(sample) for sample in samples]
    return spread([1000 * seconds for seconds in found if seconds is not None])


def _samples(runs: Iterable[LoadRun]) -> list[LoadSample]:
    return [sample for run in runs for sample in run.samples]


def _median(values: Iterable[float | None]) -> float | None:
    interval = median_interval([value for value in values if value is not None])
    return None if interval is None else interval.median

"""Arms against each other, run by run: each ratio is of two runs that came one after the other.

Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from slipstream.bench.serve.arms import baselines
from slipstream.bench.serve.distributions import median_interval
from slipstream.bench.serve.sample import Run

Rates = Mapping[str, Sequence[float | None]]
"""Tokens per second of every run by the name of the arm; None where nothing was finished."""

BETTER = "better"


def rates(runs: Mapping[str, Sequence[Run]]) -> dict[str, list[float | None]]:
    """Of every arm's runs."""
    return {name: [run.tokens_per_s for run in of] for name, of in runs.items()}


def point_ratios(of: Rates) -> dict[str, Any]:
    """`{"ratios": {SUBJECT: {BASELINE: interval, "better": interval}}}`.

    `better` is the better of all baselines in the same repeat, each time: the hardest to meet, as
    the larger of two figures with noise is too large on average.
    """
    subjects, bases = baselines(tuple(of))
    if not bases:
        return {"ratios": {}}
    against = {name: of[name] for name in bases}
    if len(bases) > 1:
        against[BETTER] = better(list(against.values()))
    return {
        "ratios": {
            subject: {name: paired(of[subject], base) for name, base in against.items()}
            for subject in subjects
        }
    }


def better(of: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The largest of each repeat; None where one is missing, which may have been the largest."""
    return [
        max(known)
        if len(known := [rate for rate in rates if rate is not None]) == len(of)
        else None
        for rates in zip(*of, strict=True)
    ]


def paired(
    subject: Sequence[float | None], base: Sequence[float | None]
) -> dict[str, float] | None:
    """Median and interval of subject over base, repeat by repeat; None without a pair."""
    found = [a / b for a, b in zip(subject, base, strict=True) if a is not None and b]
    interval = median_interval(found)
    return None if interval is None else asdict(interval)


def over(runs: Sequence[Run], base: Sequence[Run]) -> dict[str, float] | None:
    """The same of runs at different points: repeats are interleaved over all points."""
    return paired([run.tokens_per_s for run in runs], [run.tokens_per_s for run in base])

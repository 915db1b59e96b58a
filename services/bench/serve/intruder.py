"""What a long prompt does to the sessions that run when it comes. Pure; knows no clock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from slipstream.bench.serve.distributions import median_interval
from slipstream.bench.serve.figures import failures
from slipstream.bench.serve.plan import Point
from slipstream.bench.serve.sample import Sample
from slipstream.core.errors import InvalidRequest

WINDOWS = ("before", "during", "after")


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time."""

    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if self.end_s < self.start_s:
            raise InvalidRequest(
                f"a window from {self.start_s} to {self.end_s} ends before it starts"
            )


@dataclass(frozen=True, slots=True)
class Intrusion:
    """One run: the sessions, the intruder among them, and from when to when all of them ran.

    `intruder` is None where the sessions failed before it could come.
    """

    samples: Sequence[Sample]
    begun_s: float
    ended_s: float
    intruder: Sample | None

    def windows(self) -> dict[str, Window]:
        """Before it came, until its first token, and after; none without a first token."""
        if self.intruder is None or not self.intruder.marks:
            return {}
        came_s, first_s = self.intruder.sent_s, self.intruder.marks[0].at_s
        return {
            "before": Window(self.begun_s, came_s),
            "during": Window(came_s, first_s),
            "after": Window(first_s, max(self.ended_s, first_s)),
        }


Intrusions = Mapping[Point, Mapping[str, Sequence[Intrusion]]]
"""By point and by the name of the arm, one a repeat."""


def time_per_token(samples: Sequence[Sample], window: Window) -> float | None:
    """Seconds that sessions decoded within the window, over the tokens that they got for them.

    A session decodes from its first token to its last. Tokens count by the part of the wait for
    them that lies in the window: those of a wait that is longer than it are not lost. None where
    nobody decoded.
    """
    seconds = tokens = 0.0
    for sample in samples:
        for before, after in pairwise(sample.marks):
            inside_s = _inside_s(before.at_s, after.at_s, window)
            seconds += inside_s
            if inside_s > 0:
                tokens += after.num_tokens * inside_s / (after.at_s - before.at_s)
    return seconds / tokens if tokens else None


def longest_gap(samples: Sequence[Sample], window: Window) -> float | None:
    """The longest that a session waited between two chunks, of which it spent a part here."""
    gaps = [
        after.at_s - before.at_s
        for sample in samples
        for before, after in pairwise(sample.marks)
        if _inside_s(before.at_s, after.at_s, window) > 0
    ]
    return max(gaps, default=None)


def intruder_figures(intrusions: Intrusions) -> dict[str, Any]:
    """`{"points": [...]}`: times per token around the intruder, for each point and arm."""
    return {
        "points": [
            {
                "kind": point.kind,
                "value": point.value,
                "arms": {name: _arm(runs) for name, runs in by_arm.items()},
            }
            for point, by_arm in intrusions.items()
        ]
    }


def _arm(runs: Sequence[Intrusion]) -> dict[str, Any]:
    each = [_run(run) for run in runs]
    samples = [sample for run in runs for sample in run.samples]
    intruders = [run.intruder for run in runs if run.intruder is not None]
    ratio = _interval(each, "ratio")
    return {
        "runs": each,
        **{f"{name}_ms": _median(each, f"{name}_ms") for name in WINDOWS},
        **{f"{name}_gap_ms": _median(each, f"{name}_gap_ms") for name in WINDOWS},
        "ratio": ratio,
        "intruder_ttft_ms": _median(each, "intruder_ttft_ms"),
        "intruder_cached_tokens": _median(each, "intruder_cached_tokens"),
        **failures([*samples, *intruders]),
    }


def _run(run: Intrusion) -> dict[str, float | None]:
    """In milliseconds; None for what did not happen."""
    windows = run.windows()
    figures: dict[str, float | None] = {}
    for name in WINDOWS:
        window = windows.get(name)
        figures[f"{name}_ms"] = _ms(time_per_token, run.samples, window)
        figures[f"{name}_gap_ms"] = _ms(longest_gap, run.samples, window)
    before, during = figures["before_ms"], figures["during_ms"]
    figures["ratio"] = during / before if before and during is not None else None
    intruder = run.intruder
    ttft_s = None if intruder is None else intruder.ttft_s
    figures["intruder_ttft_ms"] = None if ttft_s is None else 1000 * ttft_s
    stats = None if intruder is None else intruder.stats
    figures["intruder_cached_tokens"] = None if stats is None else stats.num_cached_tokens
    return figures


def _ms(
    of: Callable[[Sequence[Sample], Window], float | None],
    samples: Sequence[Sample],
    window: Window | None,
) -> float | None:
    seconds = None if window is None else of(samples, window)
    return None if seconds is None else 1000 * seconds


def _inside_s(start_s: float, end_s: float, window: Window) -> float:
    """How much of a span lies in the window."""
    return max(min(end_s, window.end_s) - max(start_s, window.start_s), 0.0)


def _interval(runs: Sequence[Mapping[str, float | None]], name: str) -> dict[str, float] | None:
    found = median_interval([value for run in runs if (value := run[name]) is not None])
    return None if found is None else asdict(found)


def _median(runs: Sequence[Mapping[str, float | None]], name: str) -> float | None:
    found = _interval(runs, name)
    return None if found is None else found["median"]

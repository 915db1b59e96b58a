"""The part of a request's time that its trace accounts for, and spans that are missing.

Both sources are of the router's own process. Spans below that of the request have positions in
time, but only some rounds have spans. The stages on the request's span (`slipstream.stage.*_ms`)
are totals over all rounds; no two of them count the same moment.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from slipstream.telemetry.traces import Span, Trace

STAGES = (
    "enter",
    "acquire",
    "encode",
    "prefill",
    "draft",
    "verify",
    "between",
    "settle",
    "park",
    "close",
)
"""Stages in the order of a request."""
_PREFIX, _SUFFIX = "slipstream.stage.", "_ms"


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a request's time, over all rounds."""

    name: str
    duration_ms: float


def stages(request: Span) -> tuple[Stage, ...]:
    """Return the stages of the span of a request; unknown ones come last."""
    found = {
        key.removeprefix(_PREFIX).removesuffix(_SUFFIX): float(value)
        for key, value in request.attributes.items()
        if key.startswith(_PREFIX) and key.endswith(_SUFFIX) and isinstance(value, int | float)
    }
    names = [*(name for name in STAGES if name in found), *sorted(found.keys() - set(STAGES))]
    return tuple(Stage(name, found[name]) for name in names)


def explained(trace: Trace) -> float:
    """Return the share of the request's wall time that is accounted for, from 0 to 1.

    That is the larger of two durations, over the wall time:
    the union of all spans below the request's that are of its own process, clipped to it, and
    the sum of its stages.
    Stages have no position in time, so what only one of them covers can't be separated
    from what both cover. Taking the larger one never counts a moment twice: the true share is this
    or more. A request that took no time is accounted for.
    """
    wall_ns = trace.request.end_ns - trace.request.start_ns
    if wall_ns <= 0:
        return 1.0
    staged_ns = sum(stage.duration_ms for stage in stages(trace.request)) * 1e6
    return min(1.0, max(covered_ns(trace), staged_ns) / wall_ns)


def covered_ns(trace: Trace) -> int:
    """Return how long at least one span below the request's, and of its process, was open."""
    request = trace.request
    place = (request.service, request.process)
    own = (span for span in trace.descendants(request) if (span.service, span.process) == place)
    return _union_ns(
        (max(span.start_ns, request.start_ns), min(span.end_ns, request.end_ns)) for span in own
    )


def orphans(trace: Trace) -> tuple[Span, ...]:
    """Return spans whose parent is not in the trace: it is missing, or not there yet."""
    return tuple(span for span in trace.tops() if span.parent_id is not None)


def _union_ns(intervals: Iterable[tuple[int, int]]) -> int:
    total, reached = 0, None
    for start, end in sorted(intervals):
        begin = start if reached is None else max(start, reached)
        if end > begin:
            total += end - begin
            reached = end
    return total

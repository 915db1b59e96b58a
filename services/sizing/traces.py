"""A recording from traces that services wrote: their rounds, and what these took.

Only rounds of which every service has spans count: the first ones of each request. Those that are
kept because they were slow or rejected would describe a slower system.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from statistics import StatisticsError, linear_regression, median
from typing import Any

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.recording import PLAIN, DeviceTimes, RecordedRequest, Recording, RoundShape
from slipstream.telemetry.traces import Span, SpanKind

_MOST_TOKENS = 256
_LEAST_CALL_S = 1e-5
"""Clocks of two processes may differ by more than a call takes."""
Children = Mapping[str, list[Span]]


def recording_of(spans: Iterable[Span]) -> Recording:
    """Return the rounds of all requests among the spans, and the times of their engines.

    Raises `InvalidRequest` where nothing was drafted, or the targets' spans are missing.
    """
    by_id = {span.span_id: span for span in spans}
    children: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(by_id.values(), key=lambda span: span.start_ns):
        children[span.parent_id or ""].append(span)
    requests, counted = [], []
    gaps_s: list[float] = []
    for parent, below in list(children.items()):
        rounds = [span for span in below if _value(span, "round.selected") == "first"]
        if rounds:
            later = [span for span in rounds if _is_counted(span)]
            about = by_id[parent].attributes if parent in by_id else {}
            prompt = max(int(about.get("gen_ai.usage.input_tokens", 1)), 1)
            shapes = tuple(_shape(span, children) for span in later)
            requests.append(RecordedRequest(prompt, shapes))
            counted += later
            gaps_s += _gaps_s(rounds)
    return Recording(_times(counted, children, median(gaps_s or [0.0])), tuple(requests))


def _value(span: Span, name: str, default: Any = None) -> Any:
    return span.attributes.get(f"slipstream.{name}", default)


def _is_counted(span: Span) -> bool:
    """Return whether it is neither a prompt's own round nor one that broke off."""
    return _value(span, "round.kind") != "prefill" and bool(_value(span, "round.final"))


def _shape(span: Span, children: Children) -> RoundShape:
    nodes = int(_value(span, "round.drafted", 0))
    for call in children.get(span.span_id, ()):
        if call.name == "draft.propose" and nodes:
            depth = int(_value(call, "proposal.depth", nodes))
            return RoundShape(depth, nodes, min(int(_value(span, "round.accepted", 0)), depth))
    return PLAIN


def _gaps_s(rounds: list[Span]) -> Iterator[float]:
    """Return the time from a verdict to the next call, of rounds that follow each other."""
    for before, after in pairwise(rounds):
        if _value(after, "round.index") == _value(before, "round.index", -1) + 1:
            yield max(after.start_ns - before.end_ns, 0) / 1e9


def _times(rounds: Iterable[Span], children: Children, router_s: float) -> DeviceTimes:
    calls_s, levels_s = [], []
    steps: dict[int, list[float]] = defaultdict(list)
    for span in rounds:
        at = _shape(span, children)
        for call in children.get(span.span_id, ()):
            engine_ms = _value(call, "reply.engine_ms")
            if engine_ms is None:
                continue
            away_ms = call.duration_ms - engine_ms - _value(call, "reply.queue_ms", 0.0)
            calls_s.append(max(away_ms / 1000, _LEAST_CALL_S))
            if call.name == "draft.propose" and at.depth:
                levels_s.append(engine_ms / 1000 / at.depth)
            if call.name == "target.verify":
                steps[_num_tokens(call, at, children)].append(engine_ms / 1000)
    if not levels_s or not steps:
        raise InvalidRequest(
            "the traces have no round in which something was drafted: record with a draft, and"
            " with --trace-ratio above 0"
        )
    return DeviceTimes(
        _verify_line(steps), median(levels_s), call_s=median(calls_s), router_s=router_s
    )


def _num_tokens(call: Span, at: RoundShape, children: Children) -> int:
    """Return the batched tokens of the step, as the target's own span has them."""
    for span in children.get(call.span_id, ()):
        if span.kind is SpanKind.SERVER:
            return int(_value(span, "batch.rows", 1 + at.nodes))
    return 1 + at.nodes


def _verify_line(steps: Mapping[int, list[float]]) -> tuple[tuple[int, float], ...]:
    """Return two points of the line through the medians by batched tokens; it never falls."""
    medians = [median(each) for each in steps.values()]
    try:
        slope, first_s = linear_regression([rows - 1 for rows in steps], medians)
    except StatisticsError:  # steps of one size only
        slope, first_s = 0.0, 0.0
    if slope <= 0:
        slope, first_s = 0.0, median(medians)
    first_s = max(first_s, 0.01 * median(medians))
    return (1, first_s), (_MOST_TOKENS, first_s + slope * (_MOST_TOKENS - 1))

"""A recording out of traces that services wrote: what their rounds were, and what they took.

Only rounds that every service has spans of count: the first ones of each request. Those that are
kept because they were slow, or in vain, would tell of a slower system than there is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.fitting import StepSeen, fitted
from slipstream.sizing.recording import Devices, RecordedRequest, Recording, Round
from slipstream.telemetry.traces import Span, SpanKind

_ROUND, _PROPOSE, _VERIFY = "round", "draft.propose", "target.verify"
_FIRST, _PREFILL = "first", "prefill"
_LEAST_CALL_S = 1e-5
"""Clocks of two processes may differ by more than a call takes."""


@dataclass(slots=True)
class _Seen:
    """What spans say of rounds, in lists of seconds."""

    levels: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    steps: list[StepSeen] = field(default_factory=list)


def recording_of(spans: Iterable[Span]) -> Recording:
    """Of all requests that have rounds among the spans.

    Raises `InvalidRequest` where they say nothing of drafts or of targets.
    """
    spans = list({span.span_id: span for span in spans}.values())
    by_id = {span.span_id: span for span in spans}
    children: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: span.start_ns):
        children.setdefault(span.parent_id or "", []).append(span)
    seen, requests = _Seen(), []
    for parent, below in children.items():
        rounds = [span for span in below if _is_first(span)]
        if not rounds:
            continue
        _note_between(rounds, seen)
        requests.append(_request(by_id.get(parent), rounds, children, seen))
    return Recording(_devices(seen), tuple(requests))


def _is_first(span: Span) -> bool:
    return span.name == _ROUND and span.attributes.get("slipstream.round.selected") == _FIRST


def _request(
    request: Span | None,
    rounds: Sequence[Span],
    children: Mapping[str, list[Span]],
    seen: _Seen,
) -> RecordedRequest:
    found = []
    for span in rounds:
        calls = {child.name: child for child in children.get(span.span_id, ())}
        at = _round(span, calls)
        if at is not None:
            _note_calls(at, calls, children, seen)
            found.append(at)
    said = {} if request is None else request.attributes
    return RecordedRequest(max(int(said.get("gen_ai.usage.input_tokens", 1)), 1), tuple(found))


def _round(span: Span, calls: Mapping[str, Span]) -> Round | None:
    """None of a prompt's own, and of one that broke off."""
    said = span.attributes
    if said.get("slipstream.round.kind") == _PREFILL or not said.get("slipstream.round.final"):
        return None
    nodes = int(said["slipstream.round.drafted"])
    accepted = int(said["slipstream.round.accepted"])
    if not nodes or _PROPOSE not in calls:
        return Round(0, 0, 0)
    depth = int(calls[_PROPOSE].attributes.get("slipstream.proposal.depth", nodes))
    return Round(depth, nodes, accepted)


def _note_calls(
    at: Round, calls: Mapping[str, Span], children: Mapping[str, list[Span]], seen: _Seen
) -> None:
    """What its two calls took, by whom."""
    for name, span in calls.items():
        said = span.attributes
        if "slipstream.reply.engine_ms" not in said:
            continue
        engine_s = said["slipstream.reply.engine_ms"] / 1000
        queue_s = said.get("slipstream.reply.queue_ms", 0.0) / 1000
        seen.calls.append(max(span.duration_ms / 1000 - engine_s - queue_s, _LEAST_CALL_S))
        if name == _PROPOSE and at.depth:
            seen.levels.append(engine_s / at.depth)
        if name == _VERIFY:
            seen.steps += _steps(at, engine_s, children.get(span.span_id, ()))


def _steps(at: Round, engine_s: float, below: Iterable[Span]) -> Iterator[StepSeen]:
    """The target's own words of its step; without, it had nobody else in it."""
    own = [span for span in below if span.kind is SpanKind.SERVER]
    said = own[0].attributes if own else {}
    rows = int(said.get("slipstream.batch.rows", 1 + at.nodes))
    yield StepSeen(rows, int(said.get("slipstream.batch.sessions", 1)), engine_s)


def _note_between(rounds: Sequence[Span], seen: _Seen) -> None:
    """From a verdict to the next question, of rounds that follow each other."""
    index = "slipstream.round.index"
    for before, after in pairwise(rounds):
        if after.attributes.get(index) == before.attributes.get(index, -1) + 1:
            seen.between.append(max(after.start_ns - before.end_ns, 0) / 1e9)


def _devices(seen: _Seen) -> Devices:
    if not seen.levels or not seen.steps:
        raise InvalidRequest(
            "the traces have no round in which something was drafted: record with a draft, and"
            " with --trace-ratio above 0"
        )
    verify, session_s = fitted(seen.steps)
    return Devices(
        verify,
        median(seen.levels),
        verify_session_s=session_s,
        wire_s=median(seen.calls),
        router_s=median(seen.between) if seen.between else 0.0,
    )

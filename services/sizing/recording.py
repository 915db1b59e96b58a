"""Rounds of requests, and the times of the engines that ran them: input of formula and simulator.

Rounds belong to the requests, times to the machines: either can be replaced without the other.
Both come from traces that services wrote, or from random numbers.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import StatisticsError, linear_regression, median
from typing import Any

from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.cost_curve import CostCurve
from slipstream.telemetry.traces import Span, SpanKind

_MOST_TOKENS = 256
_LEAST_CALL_S = 1e-5
"""Clocks of two processes may differ by more than a call takes."""
Children = Mapping[str, list[Span]]


@dataclass(frozen=True, slots=True)
class RoundShape:
    """A round after the prompt's own: levels drafted, nodes proposed, nodes accepted."""

    depth: int
    nodes: int
    accepted: int

    def within(self, remaining: int) -> "RoundShape":
        """Return the round cut to the tokens that may still come: the last is never drafted."""
        depth = min(self.depth, remaining - 1)
        if depth == self.depth:
            return self
        return RoundShape(depth, depth, min(self.accepted, depth))


PLAIN = RoundShape(0, 0, 0)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A prompt's length, and the rounds that followed the first token."""

    num_prompt_tokens: int
    rounds: tuple[RoundShape, ...]

    @property
    def num_tokens(self) -> int:
        """Return the tokens of the answer."""
        return 1 + sum(each.accepted + 1 for each in self.rounds)


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Seconds of engines, and of calls between them.

    `verify` are (batched tokens, seconds) of one session's forwards on the target, ascending from
    1; every further session of a step adds `verify_session_s`. A pass of the draft, one level of
    the trees of all its sessions, takes `level_s`, and `level_token_s` for every batched token
    beyond the first. `call_s` is a call to an engine and back beside the engine's own time,
    `router_s` a round's time in the router.
    """

    verify: tuple[tuple[int, float], ...]
    level_s: float
    level_token_s: float = 0.0
    verify_session_s: float = 0.0
    call_s: float = 0.001
    router_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("level_s", "call_s", "level_token_s", "verify_session_s", "router_s"):
            seconds, is_needed = getattr(self, name), name in {"level_s", "call_s"}
            if not 0 <= seconds < math.inf or (is_needed and not seconds):
                raise InvalidRequest(f"{name} is {seconds}, which is no time of an engine or call")
        self.curve()

    def curve(self) -> CostCurve:
        """Return the time of a step of the target by batched tokens and sessions."""
        return CostCurve(self.verify, session_s=self.verify_session_s)

    def level(self, num_tokens: float) -> float:
        """Return the time of a pass of the draft over so many batched tokens."""
        return self.level_s + self.level_token_s * (num_tokens - 1)


@dataclass(frozen=True, slots=True)
class Recording:
    """Requests, and the times of the machines that they ran on."""

    times: DeviceTimes
    requests: tuple[RecordedRequest, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class RandomRounds:
    """Chains of `depth` tokens; each is accepted with this probability if all before it are."""

    acceptance: float = 0.8
    depth: int = 4
    num_tokens: int = 128
    num_prompt_tokens: int = 64

    def __post_init__(self) -> None:
        if not (0 <= self.acceptance <= 1 and 0 <= self.depth <= 127):
            raise InvalidRequest(
                f"acceptance is {self.acceptance:g} and depth {self.depth}, but must be from 0 to 1"
                " and from 0 to 127"
            )
        if self.num_tokens < 2 or self.num_prompt_tokens < 1:
            raise InvalidRequest("answers need 2 tokens, prompts 1, or more")

    def requests(self, count: int, seed: int) -> tuple[RecordedRequest, ...]:
        """Return that many requests; the same seed gives the same ones."""
        rng = random.Random(seed)
        return tuple(self._request(rng) for _ in range(count))

    def _request(self, rng: random.Random) -> RecordedRequest:
        rounds, left = [], self.num_tokens - 1
        while left > 0:
            accepted = 0
            while accepted < self.depth and rng.random() < self.acceptance:
                accepted += 1
            rounds.append(RoundShape(self.depth, self.depth, accepted).within(left))
            left -= rounds[-1].accepted + 1
        return RecordedRequest(self.num_prompt_tokens, tuple(rounds))


def recording_of(spans: Iterable[Span]) -> Recording:
    """Return the rounds of all requests among the spans, and the times of their engines.

    Only rounds of which every service has spans count: the first ones of each request. Those that
    are kept because they were slow or rejected would describe a slower system. Raises
    `InvalidRequest` where nothing was drafted, or the targets' spans are missing.
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

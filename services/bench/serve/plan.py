"""Plan of a benchmark under load: loads, questions, and the methods that answer in turn."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Literal

from slipstream.bench.harness import parse_numbers, require_at_least
from slipstream.bench.methods import Method
from slipstream.bench.questions import Question, in_turn
from slipstream.bench.serve.sample import GoodputLimits
from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.core.types import SamplingParams

Kind = Literal["concurrency", "rate"]
MAX_CONCURRENCY = 4096
PER_WORKER = 2
PER_RATE = 32


@dataclass(frozen=True, slots=True)
class Point:
    """Load: so many users who wait for their answers, or so many a second who do not."""

    kind: Kind
    value: float

    def __post_init__(self) -> None:
        if self.kind == "rate":
            _require(math.isfinite(self.value) and self.value > 0, "a rate", self.value, "above 0")
        else:
            fits = 1 <= self.value <= MAX_CONCURRENCY and self.value == int(self.value)
            limit = f"a whole number from 1 to {MAX_CONCURRENCY}"
            _require(fits, "a concurrency", self.value, limit)

    @property
    def concurrency(self) -> int | None:
        """Return the users of a closed loop."""
        return int(self.value) if self.kind == "concurrency" else None

    @property
    def name(self) -> str:
        """Return the load in words."""
        return f"{self.kind} {self.value:g}{'/s' if self.kind == 'rate' else ''}"


@dataclass(frozen=True, slots=True)
class Amount:
    """Amount of requests in one run: one of the three, or by default a few requests a user."""

    per_worker: int | None = None
    requests: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        named = {
            "requests_per_worker": self.per_worker,
            "num_requests": self.requests,
            "seconds": self.seconds,
        }
        given = {name: value for name, value in named.items() if value is not None}
        if len(given) > 1:
            raise UnsupportedCombination(f"{' and '.join(given)} both say how much is asked")
        for name, value in given.items():
            if name == "seconds":
                _require(math.isfinite(value) and value > 0, name, value, "above 0")
            else:
                _require(value >= 1, name, value, "at least 1")

    def num_requests(self, point: Point) -> int | None:
        """Return the requests of a run at this point; None where the time decides."""
        if self.seconds is not None or self.requests is not None:
            return self.requests
        if point.concurrency is None:
            return PER_RATE
        return point.concurrency * (self.per_worker or PER_WORKER)


@dataclass(frozen=True, slots=True)
class ServePlan:
    """Loads, questions, and the methods that answer in turn."""

    points: tuple[Point, ...]
    methods: tuple[Method, ...]
    questions: tuple[Question, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    amount: Amount = field(default_factory=Amount)
    max_new_tokens: int = 128
    repeats: int = 7
    warmup: int = 1
    limits: GoodputLimits = field(default_factory=GoodputLimits)
    checks_identity: bool = False
    long_prompt_tokens: int | None = None
    """Length of a long prompt that comes among running sessions."""

    def __post_init__(self) -> None:
        require_at_least(self, max_new_tokens=1, repeats=1, warmup=0)
        if not self.points:
            raise InvalidRequest("there is no load: name concurrencies or rates")
        kinds = {point.kind for point in self.points}
        if "concurrency" not in kinds and self.amount.per_worker is not None:
            raise UnsupportedCombination("requests_per_worker needs workers, but rates have none")
        if self.long_prompt_tokens is not None:
            self._check_long_prompt(self.long_prompt_tokens, kinds)
        for name in ("ttft_ms", "tpot_ms"):
            limit = getattr(self.limits, name)
            fits = limit is None or (math.isfinite(limit) and limit > 0)
            _require(fits, f"slo_{name}", limit, "above 0")

    @property
    def num_runs(self) -> int:
        """Return the runs of the whole benchmark, those that warm up included."""
        return len(self.points) * len(self.methods) * (self.repeats + (self.warmup > 0))

    def questions_of(self, point: Point, repeat: int) -> Iterator[Question]:
        """Return the questions of one run, without end where the time decides.

        The same for every method; the next repeat goes on where this one ends.
        """
        count = self.amount.num_requests(point)
        start = repeat * (count or 1) % len(self.questions)
        stop = None if count is None else start + count
        return islice(cycle(in_turn(self.questions)), start, stop)

    def _check_long_prompt(self, num_tokens: int, kinds: set[Kind]) -> None:
        _require(num_tokens >= 1, "intruder_tokens", num_tokens, "at least 1")
        if "rate" in kinds:
            raise UnsupportedCombination("a long prompt comes among workers, but rates have none")
        if self.amount != Amount():
            raise UnsupportedCombination("a long prompt ends its run, so no amount can be set")
        if self.checks_identity or self.limits.is_any:
            raise UnsupportedCombination("a long prompt goes with neither identity nor limits")


def parse_points(concurrency: str, rates: str) -> tuple[Point, ...]:
    """Parse two lists with commas, either of which may be empty. Raises `InvalidRequest`."""
    texts: dict[Kind, tuple[str, str]] = {
        "concurrency": ("concurrency", concurrency),
        "rate": ("rates", rates),
    }
    points = [
        Point(kind, value)
        for kind, (name, text) in texts.items()
        if text.strip()
        for value in parse_numbers(name, text, float)
    ]
    for point in points:
        if points.count(point) > 1:
            raise InvalidRequest(f"{point.name} is named twice")
    return tuple(points)


def _require(ok: bool, name: str, value: float, limit: str) -> None:
    if not ok:
        raise InvalidRequest(f"{name} is {value:g}, but must be {limit}")

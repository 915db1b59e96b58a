"""Harness of all benchmarks: checks of plans, and the order of configurations.

Each question goes through all configurations before the next one, in an order that moves on by one
from question to question, so that a drift of the machine favours none of them.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from slipstream.bench.questions import Question
from slipstream.core.errors import InvalidRequest
from slipstream.core.request.results import Result
from slipstream.core.round import Clock
from slipstream.core.types import SamplingParams
from slipstream.options import Bounded, group, option

T = TypeVar("T")

Advance = Callable[[str], None]
"""Receives the name of a configuration after each of its steps."""

WARMUP_TOKENS = 32
"""Most tokens of an answer that is not measured."""


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Temperature and seed of all replies."""

    temperature: float = option(0.0, "Sampling temperature; 0 is greedy.")
    seed: int = option(0, "Seed of sampling above temperature 0.")

    def __post_init__(self) -> None:
        self.params()

    def params(self) -> SamplingParams:
        """Return how tokens are drawn. Raises `InvalidRequest` for a value out of range."""
        return SamplingParams(temperature=self.temperature, seed=self.seed)


@dataclass(frozen=True, slots=True)
class TurnPlan(Bounded):
    """Plan of replies to the same questions in turn."""

    max_new_tokens: int = option(128, "Maximum number of tokens of a reply.", least=2)
    warmup: int = option(1, "Short unmeasured replies of each engine or method first.", least=0)
    sampling: SamplingPlan = group(SamplingPlan)
    questions: tuple[Question, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """Answer as its caller saw it; `wall_s` is from the call to the last token."""

    question: Question
    result: Result
    wall_s: float


Ask = Callable[..., Result]
"""A client's `generate`, with all but the prompt and `max_tokens`."""
Samples = Mapping[str, Sequence[Sample]]


def run_in_turn(
    asks: Mapping[str, Ask],
    plan: TurnPlan,
    *,
    repeats: int = 1,
    advance: Advance,
    clock: Clock = time.perf_counter,
) -> dict[str, list[Sample]]:
    """Return every answer of all configurations, after short ones that are not measured."""
    for first in plan.questions[:1] * plan.warmup:
        for name, ask in asks.items():
            ask(first.turns[0], max_tokens=min(plan.max_new_tokens, WARMUP_TOKENS))
            advance(name)
    samples: dict[str, list[Sample]] = {name: [] for name in asks}
    for turn, question in enumerate(plan.questions * repeats):
        for name in rotated(tuple(asks), turn):
            start = clock()
            result = asks[name](question.turns[0], max_tokens=plan.max_new_tokens)
            samples[name].append(Sample(question, result, clock() - start))
            advance(name)
    return samples


def rotated(items: Sequence[T], by: int) -> tuple[T, ...]:
    """Return `items` beginning with another one for each `by`."""
    start = by % max(len(items), 1)
    return (*items[start:], *items[:start])


def require_distinct(names: Sequence[str], what: str) -> None:
    """Raise `InvalidRequest` for a name that comes twice."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidRequest(f"{what} {twice[0]!r} is named twice")


def check_writable(path: Path) -> None:
    """Raise `InvalidRequest` unless a file can be written there, before hours are spent."""
    if path.is_dir():
        raise InvalidRequest(f"{path} is a directory, but a file is to be written")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InvalidRequest(f"{path} can't be written: {path.parent} is no writable directory")

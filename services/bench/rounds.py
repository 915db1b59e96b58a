"""Asks the embedded engine and the services the same questions in turn. Prints nothing."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slipstream.bench.harness import WARMUP_TOKENS, Advance, require_at_least, rotated
from slipstream.bench.questions import Question
from slipstream.bench.rounds_figures import Sample
from slipstream.client import Client
from slipstream.core.errors import InvalidRequest
from slipstream.core.model_info import ModelInfo
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.timing import Clock


@dataclass(frozen=True, slots=True)
class RoundsPlan:
    """Questions, asked greedily; every round drafts, so that all parts of a round are seen."""

    questions: tuple[Question, ...]
    max_new_tokens: int = 128
    warmup: int = 1

    def __post_init__(self) -> None:
        require_at_least(self, max_new_tokens=2, warmup=0)


@dataclass(frozen=True, slots=True)
class Answerer:
    """Engine under test.

    `prepare` is called before each question; `others_cpu_s` is the processor time so far of those
    that ought to be idle meanwhile, None where they can't be seen.
    """

    client: Client
    prepare: Callable[[], None] = lambda: None
    others_cpu_s: Callable[[], float] | None = None


def check_same_model(embedded: ModelInfo, routed: ModelInfo) -> None:
    """Raise `InvalidRequest` unless the tokens of both must be the same."""
    for name in ("model", "tokenizer_hash", "numerics", "dtype"):
        ours, theirs = getattr(embedded, name), getattr(routed, name)
        if ours != theirs:
            raise InvalidRequest(f"{name} is {ours!r} here, but {theirs!r} at the router")


def run_rounds(
    plan: RoundsPlan,
    answerers: Mapping[str, Answerer],
    *,
    advance: Advance,
    clock: Clock = time.perf_counter,
) -> dict[str, list[Sample]]:
    """Return every answer of all engines; each question goes through all before the next.

    The order moves on by one from question to question.
    """
    for _ in range(plan.warmup):
        for name, answerer in answerers.items():
            most = min(plan.max_new_tokens, WARMUP_TOKENS)
            _ask(answerer, plan.questions[0], most, clock)
            advance(name)
    samples: dict[str, list[Sample]] = {name: [] for name in answerers}
    names = tuple(answerers)
    for number, question in enumerate(plan.questions):
        for name in rotated(names, number):
            samples[name].append(_ask(answerers[name], question, plan.max_new_tokens, clock))
            advance(name)
    return samples


def _ask(answerer: Answerer, question: Question, max_tokens: int, clock: Clock) -> Sample:
    answerer.prepare()
    others = answerer.others_cpu_s or _unseen
    cpu_s, start = others(), clock()
    drafting = SpeculationOptions(mode=Mode.FORCED)
    result = answerer.client.generate(
        question.turns[0], max_tokens=max_tokens, speculation=drafting
    )
    wall_s = clock() - start
    seen_s = None if answerer.others_cpu_s is None else others() - cpu_s
    return Sample(question.question_id, result, wall_s, seen_s)


def _unseen() -> float:
    return 0.0

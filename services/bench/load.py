"""Many requests at once through one client: throughput, and outputs beside those alone."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from statistics import median
from typing import Any

from rich.table import Table

from slipstream.bench.harness import (
    WARMUP_TOKENS,
    Advance,
    require_at_least,
    require_distinct,
    require_room,
    rotated,
)
from slipstream.bench.methods import PLAIN, Method
from slipstream.bench.questions import Question, in_turn
from slipstream.bench.report import Figures, fixed, number, position_text, table_of
from slipstream.bench.statistics import SpeculationCounts, differences, paired, positions
from slipstream.client import AsyncClient
from slipstream.core.errors import InvalidRequest, SlipstreamError
from slipstream.core.request.options import Mode, SpeculationOptions
from slipstream.core.request.results import Result
from slipstream.core.timing import Clock
from slipstream.core.types import SamplingParams

MAX_CONCURRENCY = 4096
_AFTER_FAILURE_S = 0.1
"""Pause of a user whose request failed."""
References = Mapping[int | str, tuple[int, ...]]
"""Tokens of plain decoding by question_id, one request at a time, by the same engine."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Numbers of users, the questions that they send, and the methods that answer in turn."""

    concurrency: tuple[int, ...]
    methods: tuple[Method, ...]
    questions: tuple[Question, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    per_worker: int = 2
    max_new_tokens: int = 128
    repeats: int = 7

    def __post_init__(self) -> None:
        require_at_least(self, max_new_tokens=1, repeats=1, per_worker=1)
        require_distinct([str(users) for users in self.concurrency], "concurrency")
        for users in self.concurrency:
            if not 1 <= users <= MAX_CONCURRENCY:
                raise InvalidRequest(
                    f"a concurrency is {users}, but must be from 1 to {MAX_CONCURRENCY}"
                )

    @property
    def num_runs(self) -> int:
        """Return the runs of the whole benchmark."""
        return len(self.concurrency) * len(self.methods) * self.repeats

    def questions_of(self, users: int, repeat: int) -> Iterator[Question]:
        """Return the questions of a run: the same for every method; the next repeat goes on."""
        count = users * self.per_worker
        start = repeat * count % len(self.questions)
        return islice(cycle(in_turn(self.questions)), start, start + count)

    def turns(self) -> Iterator[tuple[int, Method, int]]:
        """Yield users, method and repeat of every run; the order of methods moves on by one."""
        for repeat in range(self.repeats):
            for users in self.concurrency:
                for method in rotated(self.methods, repeat):
                    yield users, method, repeat


@dataclass(slots=True)
class LoadRun:
    """Answers of one run by question, and its failures by the class of their error."""

    answers: list[tuple[int | str, Result]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Return output tokens of all answers together over the time of the run."""
        tokens = sum(len(result.token_ids) for _, result in self.answers)
        return tokens / self.seconds if self.seconds > 0 else None


Runs = Mapping[int, Mapping[str, Sequence[LoadRun]]]
"""Runs by users and by method, one a repeat."""


@dataclass(frozen=True, slots=True)
class LoadBench:
    """A plan, the client that it goes through, and a clock in seconds."""

    plan: LoadPlan
    client: AsyncClient
    advance: Advance
    clock: Clock = time.perf_counter

    async def figures(self) -> dict[str, Any]:
        """Measure every run, decode the questions alone, and return what came of it.

        Raises what refuses a method or a prompt before anything is measured; later failures are
        results.
        """
        await self._prepare()
        runs: dict[int, dict[str, list[LoadRun]]] = {
            users: {method.name: [] for method in self.plan.methods}
            for users in self.plan.concurrency
        }
        for users, method, repeat in self.plan.turns():
            runs[users][method.name].append(await self._run(users, method, repeat))
            self.advance(method.name)
        return load_figures(self.plan, runs, await self._references(runs))

    async def _prepare(self) -> None:
        limit = (await self.client.model_info()).limits.context_length
        for question in self.plan.questions:
            length = len(await self.client.tokenize(question.turns[0]))
            require_room(question.question_id, length, self.plan.max_new_tokens, limit)
        short = min(WARMUP_TOKENS, self.plan.max_new_tokens)
        for method in self.plan.methods:
            await self._ask(self.plan.questions[0], method.options, short)

    async def _run(self, users: int, method: Method, repeat: int) -> LoadRun:
        """Have so many users send the next question when their last is answered."""
        run, questions = LoadRun(), self.plan.questions_of(users, repeat)

        async def work() -> None:
            for question in questions:  # which all users take from
                try:
                    result = await self._ask(question, method.options, self.plan.max_new_tokens)
                except SlipstreamError as error:
                    run.errors[type(error).__name__] += 1
                    await asyncio.sleep(_AFTER_FAILURE_S)
                else:
                    run.answers.append((question.question_id, result))

        begun = self.clock()
        async with asyncio.TaskGroup() as group:
            for _ in range(users):
                group.create_task(work())
        run.seconds = self.clock() - begun
        return run

    async def _references(self, runs: Runs) -> References:
        """Decode every question that was answered, plainly, one by one, by the same engine."""
        each = [run for by_method in runs.values() for of in by_method.values() for run in of]
        answered, most = {name for run in each for name, _ in run.answers}, self.plan.max_new_tokens
        plain = SpeculationOptions(mode=Mode.OFF)
        return {
            question.question_id: (await self._ask(question, plain, most)).token_ids
            for question in self.plan.questions
            if question.question_id in answered
        }

    async def _ask(self, question: Question, options: SpeculationOptions, most: int) -> Result:
        prompt, sampling = question.turns[0], self.plan.sampling
        return await self.client.generate(
            prompt, max_tokens=most, sampling=sampling, speculation=options
        )


def load_figures(plan: LoadPlan, runs: Runs, references: References) -> dict[str, Any]:
    """Return `{"points": [...]}`: figures of each method with each number of users."""
    points = []
    for users, by_method in runs.items():
        speeds = {name: [run.tokens_per_s for run in of] for name, of in by_method.items()}
        arms = {}
        for method in plan.methods:
            of = by_method[method.name]
            over = paired(speeds[method.name], speeds[PLAIN]) if PLAIN in speeds else None
            is_expected = method.is_comparable(is_greedy=plan.sampling.is_greedy)
            compared = identity(of, references, is_expected=is_expected)
            arms[method.name] = {**_figures(of), "over_plain": over, "identity": compared}
        points.append({"kind": "concurrency", "value": users, "arms": arms})
    return {"points": points}


def identity(
    runs: Sequence[LoadRun], references: References, *, is_expected: bool
) -> dict[str, Any]:
    """Compare outputs with those of the same prompts alone, by tokens."""
    outputs = [(name, result.token_ids) for run in runs for name, result in run.answers]
    return {
        "identical": sum(tokens == references[name] for name, tokens in outputs),
        "outputs": len(outputs),
        "expected": is_expected,
        "differences": positions(differences(outputs, references)),
    }


def _figures(runs: Sequence[LoadRun]) -> dict[str, Any]:
    answers = [result for run in runs for _, result in run.answers]
    errors = sum((run.errors for run in runs), Counter[str]())
    speeds = [speed for run in runs if (speed := run.tokens_per_s) is not None]
    counts = SpeculationCounts.of(result.stats.speculation for result in answers)
    return {
        "tokens_per_s": median(speeds) if speeds else None,
        "requests": len(answers) + errors.total(),
        "finished": len(answers),
        "tokens": sum(len(result.token_ids) for result in answers),
        "errors": dict(errors),
        "mean_acceptance_length": counts.acceptance_length,
        "speculative_share": counts.speculative / max(counts.rounds, 1),
        "drafted_tokens": counts.drafted,
    }


def load_table(figures: Figures) -> Table:
    """Return a row for each number of users and method."""
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        "of plain": lambda of: fixed((of["over_plain"] or {}).get("median"), 2, "x"),
        "acceptance length": number("mean_acceptance_length", 2),
        "speculative rounds": lambda of: f"{of['speculative_share']:.0%}",
        "identical": lambda of: f"{of['identity']['identical']}/{of['identity']['outputs']}",
        "errors": lambda of: str(sum(of["errors"].values())),
    }
    return table_of(("users", "method"), columns, (((u, n), of) for u, n, of in _rows(figures)))


def remarks(figures: Figures) -> Iterator[str]:
    """Yield where outputs differ that must not, and failures by the class of their error."""
    for users, name, of in _rows(figures):
        compared = of["identity"]
        if compared["differences"] and compared["expected"]:
            where = position_text(compared["differences"])
            yield f"{name} with {users} users differs from the prompts alone: {where}"
        for error, count in of["errors"].items():
            yield f"{name} with {users} users: {count} failed with {error}"


def _rows(figures: Figures) -> Iterator[tuple[str, str, Figures]]:
    for point in figures["points"]:
        for name, of in point["arms"].items():
            yield str(point["value"]), name, of

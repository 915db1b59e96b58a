"""Many requests at once to engines under test: throughput, and answers beside those alone."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from statistics import median
from typing import Any

from rich.table import Table

from slipstream.bench.harness import (
    WARMUP_TOKENS,
    Advance,
    parse_numbers,
    require_at_least,
    require_distinct,
    rotated,
)
from slipstream.bench.questions import Question, in_turn
from slipstream.bench.report import Figures, fixed, number, position_text, table_of
from slipstream.bench.statistics import SpeculationCounts, differences, paired, positions
from slipstream.core.errors import InvalidRequest, SlipstreamError
from slipstream.core.request.stats import SpeculationStats
from slipstream.core.round import Clock
from slipstream.options import option

MAX_CONCURRENCY = 4096
_AFTER_FAILURE_S = 0.1
"""Pause of a user whose request failed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a request: its tokens, or the text of a server that sends no tokens."""

    num_tokens: int
    content: Sequence[Any]
    speculation: SpeculationStats | None = None


Send = Callable[[Question, int], Awaitable[Answer]]
"""Function that sends a question, to be answered with at most so many tokens."""
References = Mapping[int | str, Sequence[Any]]
"""Contents of the reference's answers by question_id, one request at a time."""


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """Engine that answers; `is_exact` promises the contents of the reference's answers."""

    name: str
    send: Send
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Numbers of users, and what each of them sends."""

    concurrency: str = option("1,2,4,8", "Users who send the next request when answered, as 1,2,4.")
    requests_per_worker: int = option(2, "Requests of each user in a run.")
    repeats: int = option(7, "Runs of each engine with each number of users, in turn.")
    max_new_tokens: int = option(128, "Maximum number of tokens of an answer.")

    def __post_init__(self) -> None:
        require_at_least(self, max_new_tokens=1, repeats=1, requests_per_worker=1)
        require_distinct([str(users) for users in self.users], "concurrency")
        for users in self.users:
            if not 1 <= users <= MAX_CONCURRENCY:
                raise InvalidRequest(
                    f"a concurrency is {users}, but must be from 1 to {MAX_CONCURRENCY}"
                )

    @property
    def users(self) -> tuple[int, ...]:
        """Return the numbers of users."""
        return parse_numbers("concurrency", self.concurrency, int)

    def num_runs(self, num_engines: int) -> int:
        """Return the runs of the whole benchmark."""
        return len(self.users) * num_engines * self.repeats

    def questions_of(
        self, questions: Sequence[Question], users: int, repeat: int
    ) -> Iterator[Question]:
        """Return the questions of a run: the same for every engine; the next repeat goes on."""
        count = users * self.requests_per_worker
        start = repeat * count % len(questions)
        return islice(cycle(in_turn(questions)), start, start + count)

    def turns(
        self, engines: Sequence[EngineUnderTest]
    ) -> Iterator[tuple[int, EngineUnderTest, int]]:
        """Yield users, engine and repeat of every run; the order of engines moves on by one."""
        for repeat in range(self.repeats):
            for users in self.users:
                for engine in rotated(engines, repeat):
                    yield users, engine, repeat


@dataclass(slots=True)
class LoadRun:
    """Answers of one run by question, and its failures by the class of their error."""

    answers: list[tuple[int | str, Answer]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Return output tokens of all answers together over the time of the run."""
        tokens = sum(answer.num_tokens for _, answer in self.answers)
        return tokens / self.seconds if self.seconds > 0 else None


Runs = Mapping[int, Mapping[str, Sequence[LoadRun]]]
"""Runs by users and by engine, one a repeat."""


@dataclass(frozen=True, slots=True)
class LoadBench:
    """A plan, its questions, the engines under test, and a clock in seconds.

    Ratios are over the first engine; answers are compared with those of `reference`.
    """

    plan: LoadPlan
    questions: tuple[Question, ...]
    engines: tuple[EngineUnderTest, ...]
    reference: Send
    advance: Advance
    clock: Clock = time.perf_counter

    async def figures(self) -> dict[str, Any]:
        """Measure every run, send the questions one by one, and return what came of it.

        Raises what refuses the first request of an engine; later failures are results.
        """
        for engine in self.engines:
            await engine.send(self.questions[0], min(WARMUP_TOKENS, self.plan.max_new_tokens))
        runs: dict[int, dict[str, list[LoadRun]]] = {
            users: {engine.name: [] for engine in self.engines} for users in self.plan.users
        }
        for users, engine, repeat in self.plan.turns(self.engines):
            runs[users][engine.name].append(await self._run(users, engine, repeat))
            self.advance(engine.name)
        return load_figures(self.engines, runs, await self._references(runs))

    async def _run(self, users: int, engine: EngineUnderTest, repeat: int) -> LoadRun:
        """Have so many users send the next question when their last is answered."""
        run, questions = LoadRun(), self.plan.questions_of(self.questions, users, repeat)

        async def work() -> None:
            for question in questions:  # which all users take from
                try:
                    answer = await engine.send(question, self.plan.max_new_tokens)
                except SlipstreamError as error:
                    run.errors[type(error).__name__] += 1
                    await asyncio.sleep(_AFTER_FAILURE_S)
                else:
                    run.answers.append((question.question_id, answer))

        begun = self.clock()
        async with asyncio.TaskGroup() as group:
            for _ in range(users):
                group.create_task(work())
        run.seconds = self.clock() - begun
        return run

    async def _references(self, runs: Runs) -> References:
        """Send every question that was answered to the reference, one by one."""
        each = [run for by_engine in runs.values() for of in by_engine.values() for run in of]
        answered = {name for run in each for name, _ in run.answers}
        return {
            question.question_id: (await self.reference(question, self.plan.max_new_tokens)).content
            for question in self.questions
            if question.question_id in answered
        }


def load_figures(
    engines: Sequence[EngineUnderTest], runs: Runs, references: References
) -> dict[str, Any]:
    """Return `{"base": NAME, "levels": [...]}`: figures of each engine for each number of users."""
    levels, base = [], engines[0].name
    for users, by_engine in runs.items():
        speeds = {name: [run.tokens_per_s for run in of] for name, of in by_engine.items()}
        found = {
            engine.name: {
                **_figures(by_engine[engine.name]),
                "ratio": paired(speeds[engine.name], speeds[base]),
                "identity": identity(by_engine[engine.name], references, is_exact=engine.is_exact),
            }
            for engine in engines
        }
        levels.append({"users": users, "engines": found})
    return {"base": base, "levels": levels}


def identity(runs: Sequence[LoadRun], references: References, *, is_exact: bool) -> dict[str, Any]:
    """Compare answers with the reference's; tokens must be the same where that `is_exact`."""
    outputs = [(name, answer.content) for run in runs for name, answer in run.answers]
    return {
        "identical": sum(content == references[name] for name, content in outputs),
        "outputs": len(outputs),
        "expected": is_exact,
        "differences": positions(differences(outputs, references)),
    }


def _figures(runs: Sequence[LoadRun]) -> dict[str, Any]:
    answers = [answer for run in runs for _, answer in run.answers]
    errors = sum((run.errors for run in runs), Counter[str]())
    speeds = [speed for run in runs if (speed := run.tokens_per_s) is not None]
    stats = [answer.speculation for answer in answers if answer.speculation is not None]
    counts = SpeculationCounts.of(stats)
    return {
        "tokens_per_s": median(speeds) if speeds else None,
        "requests": len(answers) + errors.total(),
        "finished": len(answers),
        "tokens": sum(answer.num_tokens for answer in answers),
        "errors": dict(errors),
        "mean_acceptance_length": counts.acceptance_length if stats else None,
        "speculative_share": counts.speculative / max(counts.rounds, 1) if stats else None,
        "drafted_tokens": counts.drafted,
    }


def load_table(figures: Figures) -> Table:
    """Return a row for each number of users and engine."""
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        f"over {figures['base']}": lambda of: fixed((of["ratio"] or {}).get("median"), 2, "x"),
        "lowest and highest": lambda of: _range(of["ratio"]),
        "acceptance length": number("mean_acceptance_length", 2),
        "speculative rounds": number("speculative_share", 2),
        "identical": lambda of: f"{of['identity']['identical']}/{of['identity']['outputs']}",
        "errors": lambda of: str(sum(of["errors"].values())),
    }
    return table_of(("users", "engine"), columns, (((u, n), of) for u, n, of in _rows(figures)))


def _range(ratio: Figures | None) -> str:
    return "-" if ratio is None else f"{ratio['low']:.2f} to {ratio['high']:.2f}"


def remarks(figures: Figures) -> Iterator[str]:
    """Yield where answers differ that must not, and failures by the class of their error."""
    for users, name, of in _rows(figures):
        compared = of["identity"]
        if compared["differences"] and compared["expected"]:
            where = position_text(compared["differences"])
            yield f"{name} with {users} users differs from the prompts alone: {where}"
        for error, count in of["errors"].items():
            yield f"{name} with {users} users: {count} failed with {error}"


def _rows(figures: Figures) -> Iterator[tuple[str, str, Figures]]:
    for level in figures["levels"]:
        for name, of in level["engines"].items():
            yield str(level["users"]), name, of

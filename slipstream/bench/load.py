"""Many requests at once to engines under test: throughput, and answers beside those alone."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from typing import Any

from rich.table import Table

from slipstream.bench.figures import (
    Figures,
    differences,
    drafting_figures,
    fixed,
    number,
    paired,
    position_text,
    quotient,
    table_of,
)
from slipstream.bench.harness import WARMUP_TOKENS, Advance, require_distinct, rotated
from slipstream.bench.methods import Method
from slipstream.bench.questions import Question, in_turn
from slipstream.client import AsyncClient
from slipstream.core.errors import check
from slipstream.core.request.stats import SpeculationStats
from slipstream.core.types import SamplingParams
from slipstream.options import check_bounds, option, parse_numbers

MAX_CONCURRENCY = 4096


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a request: its tokens, or the text of a server that sends no tokens."""

    num_tokens: int
    content: Sequence[Any]
    speculation: SpeculationStats | None = None
    decode_s: float = 0.0


Send = Callable[[Question, int], Awaitable[Answer]]
"""Function that sends a question, to be answered with at most so many tokens."""
Answers = list[tuple[int | str, Answer]]
_Runs = dict[str, list[tuple[Answers, float]]]
"""Answers and tokens per second of each run, by engine."""


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
    requests_per_worker: int = option(2, "Requests of each user in a run.", least=1)
    repeats: int = option(7, "Runs of each engine with each number of users, in turn.", least=1)
    max_new_tokens: int = option(128, "Maximum number of tokens of an answer.", least=1)

    def __post_init__(self) -> None:
        check_bounds(self)
        require_distinct([str(users) for users in self.users], "concurrency")
        for users in self.users:
            is_right = 1 <= users <= MAX_CONCURRENCY
            check(is_right, "a concurrency", users, f"from 1 to {MAX_CONCURRENCY}")

    @property
    def users(self) -> tuple[int, ...]:
        return parse_numbers("concurrency", self.concurrency)


async def measure_load(
    plan: LoadPlan,
    questions: Sequence[Question],
    engines: Sequence[EngineUnderTest],
    reference: Send,
    *,
    advance: Advance,
) -> dict[str, Any]:
    """Return `{"base": NAME, "levels": [...]}`: figures of each engine for each number of users.

    Ratios are over the first engine; answers are compared with those that `reference` gives to the
    prompts alone. The order of the engines moves on by one from repeat to repeat, and the
    questions go on. A request that fails ends it all.
    """
    for engine in engines:
        await engine.send(questions[0], min(WARMUP_TOKENS, plan.max_new_tokens))
    base, order = engines[0].name, in_turn(questions)
    levels: dict[int, _Runs] = {users: {of.name: [] for of in engines} for users in plan.users}
    for repeat in range(plan.repeats):
        for users, runs in levels.items():
            count = users * plan.requests_per_worker
            for engine in rotated(engines, repeat):
                sent = islice(cycle(order), repeat * count, (repeat + 1) * count)
                runs[engine.name].append(await _run(engine, sent, users, plan.max_new_tokens))
                advance(engine.name)
    every = [run for runs in levels.values() for own in runs.values() for run in own]
    answered = {name for answers, _ in every for name, _ in answers}
    alone = {
        question.question_id: (await reference(question, plan.max_new_tokens)).content
        for question in questions
        if question.question_id in answered
    }
    found = [
        {"users": users, "engines": {of.name: _figures(of, runs, base, alone) for of in engines}}
        for users, runs in levels.items()
    ]
    return {"base": base, "levels": found}


async def _run(
    engine: EngineUnderTest, questions: Iterator[Question], users: int, most: int
) -> tuple[Answers, float]:
    """Have so many users send the next question when their last is answered; return the answers and
    tokens per second."""
    answers: Answers = []

    async def work() -> None:
        for question in questions:  # which all users take from
            answers.append((question.question_id, await engine.send(question, most)))

    begun = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(users)))
    seconds = time.perf_counter() - begun
    return answers, sum(of.num_tokens for _, of in answers) / seconds


def _figures(
    engine: EngineUnderTest, runs: _Runs, base: str, alone: Mapping[int | str, Sequence[Any]]
) -> dict[str, Any]:
    """Return the figures of an engine beside the base; `alone` are the contents to compare with."""
    answers = [answer for own, _ in runs[engine.name] for answer in own]
    speeds, base_speeds = ([speed for _, speed in runs[name]] for name in (engine.name, base))
    outputs = [(name, answer.content) for name, answer in answers]
    return {
        "tokens_per_s": median(speeds),
        "ratio": paired(speeds, base_speeds),
        "requests": len(answers),
        "tokens": sum(answer.num_tokens for _, answer in answers),
        **drafting_figures([of.speculation for _, of in answers if of.speculation]),
        "identical": sum(content == alone[name] for name, content in outputs),
        "outputs": len(outputs),
        "expected": engine.is_exact,
        "differences": differences(outputs, alone),
    }


def method_engine(method: Method, client: AsyncClient, sampling: SamplingParams) -> EngineUnderTest:
    """Return a method as requests through a client of the SDK."""

    async def send(question: Question, max_tokens: int) -> Answer:
        result = await client.generate(
            question.turns[0], max_tokens=max_tokens, sampling=sampling, speculation=method.options
        )
        tokens, stats = result.token_ids, result.stats
        return Answer(len(tokens), tokens, stats.speculation, stats.timings.decode_s)

    return EngineUnderTest(method.name, send, method.is_comparable(is_greedy=sampling.is_greedy))


def load_table(figures: Figures) -> Table:
    """Return a row for each number of users and engine."""
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        f"over {figures['base']}": lambda of: fixed((of["ratio"] or {}).get("median"), 2, "x"),
        "acceptance length": number("mean_acceptance_length", 2),
        "speculative rounds": lambda of: fixed(
            quotient(of["rounds"] - of["plain_rounds"], of["rounds"]), 2
        ),
        "identical": lambda of: f"{of['identical']}/{of['outputs']}",
    }
    return table_of(("users", "engine"), columns, (((u, n), of) for u, n, of in rows_of(figures)))


def remarks(figures: Figures) -> Iterator[str]:
    """Yield where answers differ that must not."""
    for users, name, of in rows_of(figures):
        if of["differences"] and of["expected"]:
            where = position_text(of["differences"])
            yield f"{name} with {users} users differs from the prompts alone: {where}"


def rows_of(figures: Figures) -> Iterator[tuple[str, str, Figures]]:
    """Yield the number of users, the engine's name and its figures."""
    for level in figures["levels"]:
        for name, of in level["engines"].items():
            yield str(level["users"]), name, of

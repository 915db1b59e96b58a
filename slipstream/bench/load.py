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
from slipstream.bench.harness import (
    WARMUP_TOKENS,
    Advance,
    parse_numbers,
    require_distinct,
    require_room,
    rotated,
)
from slipstream.bench.methods import Method
from slipstream.bench.questions import Question, in_turn
from slipstream.client import AsyncClient
from slipstream.core.errors import InvalidRequest, SlipstreamError
from slipstream.core.policy.options import SpeculationOptions
from slipstream.core.request.stats import SpeculationStats
from slipstream.core.types import SamplingParams
from slipstream.options import check_bounds, option

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
    requests_per_worker: int = option(2, "Requests of each user in a run.", least=1)
    repeats: int = option(7, "Runs of each engine with each number of users, in turn.", least=1)
    max_new_tokens: int = option(128, "Maximum number of tokens of an answer.", least=1)

    def __post_init__(self) -> None:
        check_bounds(self)
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


async def measure_load(
    plan: LoadPlan,
    questions: Sequence[Question],
    engines: Sequence[EngineUnderTest],
    reference: Send,
    *,
    advance: Advance,
) -> dict[str, Any]:
    """Measure every run, send the questions one by one to the reference, and return the figures.

    The order of the engines moves on by one from repeat to repeat. Raises what refuses the first
    request of an engine; later failures are results.
    """
    for engine in engines:
        await engine.send(questions[0], min(WARMUP_TOKENS, plan.max_new_tokens))
    runs: dict[int, dict[str, list[LoadRun]]] = {
        users: {engine.name: [] for engine in engines} for users in plan.users
    }
    for repeat in range(plan.repeats):
        for users in plan.users:
            for engine in rotated(engines, repeat):
                sent = plan.questions_of(questions, users, repeat)
                run = await _run(engine.send, sent, users, plan.max_new_tokens)
                runs[users][engine.name].append(run)
                advance(engine.name)
    each = [run for by_engine in runs.values() for of in by_engine.values() for run in of]
    answered = {name for run in each for name, _ in run.answers}
    references = {
        question.question_id: (await reference(question, plan.max_new_tokens)).content
        for question in questions
        if question.question_id in answered
    }
    return load_figures(engines, runs, references)


async def _run(
    send: Send, questions: Iterator[Question], users: int, max_new_tokens: int
) -> LoadRun:
    """Have so many users send the next question when their last is answered."""
    run = LoadRun()

    async def work() -> None:
        for question in questions:  # which all users take from
            try:
                answer = await send(question, max_new_tokens)
            except SlipstreamError as error:
                run.errors[type(error).__name__] += 1
                await asyncio.sleep(_AFTER_FAILURE_S)
            else:
                run.answers.append((question.question_id, answer))

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(users):
            group.create_task(work())
    run.seconds = time.perf_counter() - begun
    return run


def method_engines(
    methods: Sequence[Method], client: AsyncClient, sampling: SamplingParams
) -> list[EngineUnderTest]:
    """Return methods as requests through one client of the SDK."""

    def sender(speculation: SpeculationOptions) -> Send:
        async def send(question: Question, max_tokens: int) -> Answer:
            result = await client.generate(
                question.turns[0], max_tokens=max_tokens, sampling=sampling, speculation=speculation
            )
            return Answer(len(result.token_ids), result.token_ids, result.stats.speculation)

        return send

    is_greedy = sampling.is_greedy
    return [
        EngineUnderTest(
            method.name, sender(method.options), method.is_comparable(is_greedy=is_greedy)
        )
        for method in methods
    ]


async def check_lengths(plan: LoadPlan, questions: Sequence[Question], client: AsyncClient) -> None:
    """Raise `PromptTooLong` where a prompt and its answer exceed the model's context."""
    limit = (await client.model_info()).limits.context_length
    for question in questions:
        length = len(await client.tokenize(question.turns[0]))
        require_room(question.question_id, length, plan.max_new_tokens, limit)


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
        "differences": differences(outputs, references),
    }


def _figures(runs: Sequence[LoadRun]) -> dict[str, Any]:
    answers = [answer for run in runs for _, answer in run.answers]
    errors = sum((run.errors for run in runs), Counter[str]())
    speeds = [speed for run in runs if (speed := run.tokens_per_s) is not None]
    stats = [answer.speculation for answer in answers if answer.speculation is not None]
    return {
        "tokens_per_s": median(speeds) if speeds else None,
        "requests": len(answers) + errors.total(),
        "finished": len(answers),
        "tokens": sum(answer.num_tokens for answer in answers),
        "errors": dict(errors),
        **drafting_figures(stats),
    }


def load_table(figures: Figures) -> Table:
    """Return a row for each number of users and engine."""
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        f"over {figures['base']}": lambda of: fixed((of["ratio"] or {}).get("median"), 2, "x"),
        "lowest and highest": lambda of: _range(of["ratio"]),
        "acceptance length": number("mean_acceptance_length", 2),
        "speculative rounds": lambda of: fixed(_share(of), 2),
        "identical": lambda of: f"{of['identity']['identical']}/{of['identity']['outputs']}",
        "errors": lambda of: str(sum(of["errors"].values())),
    }
    return table_of(("users", "engine"), columns, (((u, n), of) for u, n, of in _rows(figures)))


def _share(of: Figures) -> float | None:
    return quotient(of["rounds"] - of["plain_rounds"], of["rounds"])


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

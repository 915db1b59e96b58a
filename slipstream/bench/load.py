"""Many requests at once to engines under test: throughput, and answers beside those alone."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
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
from slipstream.bench.harness import (
    WARMUP_TOKENS,
    Advance,
    Question,
    in_turn,
    random_questions,
    require_distinct,
    rotated,
)
from slipstream.bench.methods import Method, parse_method
from slipstream.client import AsyncClient
from slipstream.core.errors import check
from slipstream.core.request.stats import SpeculationStats
from slipstream.core.types import SamplingParams
from slipstream.options import check_bounds, option, parse_numbers

MAX_CONCURRENCY = 4096
ROUND_METHODS = "plain", "glide", "glide+cape", "auto"
"""Methods whose rounds are taken apart: none, a chain, CaPE, and what a request gets by default."""


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
NUM_REPEATS = 2
Launches = Callable[[], AbstractContextManager[dict[str, float]]]
"""Function that collects what a device runs: see `cost.launches`."""
_OF_DEVICE = ("kernels", "copies", "waits", "device_ms")


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
    order, levels = in_turn(questions), {users: _Level(engines) for users in plan.users}
    for repeat in range(plan.repeats):
        for users, level in levels.items():
            count = users * plan.requests_per_worker
            for engine in rotated(engines, repeat):
                sent = islice(cycle(order), repeat * count, (repeat + 1) * count)
                await level.run(engine, sent, users, plan.max_new_tokens)
                advance(engine.name)
    answered = {name for level in levels.values() for name in level.questions()}
    alone = {
        question.question_id: (await reference(question, plan.max_new_tokens)).content
        for question in questions
        if question.question_id in answered
    }
    found = [{"users": users, "engines": level.figures(alone)} for users, level in levels.items()]
    return {"base": engines[0].name, "levels": found}


class _Level:
    """Runs of all engines with one number of users."""

    def __init__(self, engines: Sequence[EngineUnderTest]) -> None:
        self._engines = engines
        self._answers: dict[str, Answers] = {engine.name: [] for engine in engines}
        self._speeds: dict[str, list[float]] = {engine.name: [] for engine in engines}

    async def run(
        self, engine: EngineUnderTest, questions: Iterator[Question], users: int, most: int
    ) -> None:
        """Have so many users send the next question when their last is answered."""
        answers: Answers = []

        async def work() -> None:
            for question in questions:  # which all users take from
                answers.append((question.question_id, await engine.send(question, most)))

        begun = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(users)))
        seconds = time.perf_counter() - begun
        self._answers[engine.name] += answers
        self._speeds[engine.name].append(sum(of.num_tokens for _, of in answers) / seconds)

    def questions(self) -> set[int | str]:
        return {name for answers in self._answers.values() for name, _ in answers}

    def figures(self, alone: dict[int | str, Sequence[Any]]) -> dict[str, Any]:
        """Return the figures of each engine; `alone` are the contents to compare with."""
        found, base = {}, self._speeds[self._engines[0].name]
        for engine in self._engines:
            answers, speeds = self._answers[engine.name], self._speeds[engine.name]
            outputs = [(name, answer.content) for name, answer in answers]
            found[engine.name] = {
                "tokens_per_s": median(speeds),
                "ratio": paired(speeds, base),
                "requests": len(answers),
                "tokens": sum(answer.num_tokens for _, answer in answers),
                **drafting_figures([of.speculation for _, of in answers if of.speculation]),
                "identical": sum(content == alone[name] for name, content in outputs),
                "outputs": len(outputs),
                "expected": engine.is_exact,
                "differences": differences(outputs, alone),
            }
        return found


def method_engine(method: Method, client: AsyncClient, sampling: SamplingParams) -> EngineUnderTest:
    """Return a method as requests through a client of the SDK."""

    async def send(question: Question, max_tokens: int) -> Answer:
        result = await client.generate(
            question.turns[0], max_tokens=max_tokens, sampling=sampling, speculation=method.options
        )
        tokens, stats = result.token_ids, result.stats
        return Answer(len(tokens), tokens, stats.speculation, stats.timings.decode_s)

    return EngineUnderTest(method.name, send, method.is_comparable(is_greedy=sampling.is_greedy))


async def measure_rounds(
    plan: LoadPlan, client: AsyncClient, num_chars: int, launches: Launches, *, advance: Advance
) -> dict[str, Any]:
    """Return `measure_load` of random texts, and with each method what a round takes: see
    `_round`."""
    questions = random_questions(max(plan.users), num_chars)
    methods = map(parse_method, ROUND_METHODS)
    engines = [method_engine(method, client, SamplingParams()) for method in methods]
    figures = await measure_load(plan, questions, engines, engines[0].send, advance=advance)
    for level in figures["levels"]:
        asked = questions[: level["users"]]
        for engine in engines:
            of = await _round(engine.send, asked, plan.max_new_tokens, launches)
            level["engines"][engine.name] |= of
    return figures


async def _round(
    send: Send, questions: Sequence[Question], most: int, launches: Launches
) -> dict[str, float | None]:
    """Return the milliseconds of a round of as many users as questions, what `launches` collects
    in it, and the rest of the time, in which the device waits for the host. What a first token
    takes, and the prompt before it, is left out."""

    async def answers(count: int) -> list[Answer]:
        return await asyncio.gather(*(send(question, count) for question in questions))

    found = await answers(most)
    rounds = max(drafting_figures([of.speculation])["rounds"] for of in found if of.speculation)
    round_ms = 1000 * max(of.decode_s for of in found) / rounds
    with launches() as first:
        await answers(1)
    with launches() as every:
        await answers(most)
    own = {name: (every[name] - first[name]) / rounds for name in every}
    host_ms = round_ms - own["device_ms"] if own else None
    return {"round_ms": round_ms, **dict.fromkeys(_OF_DEVICE), **own, "host_ms": host_ms}


def rounds_table(figures: Figures, floors_ms: Mapping[str, float]) -> Table:
    """Return a row for each number of users and method; `floors_ms` are by the former."""
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        f"over {figures['base']}": lambda of: fixed((of["ratio"] or {}).get("median"), 2, "x"),
        "ms a round": number("round_ms", 2),
        "of floor": lambda of: fixed(of["round_ms"] / of["floor_ms"], 2, "x"),
        "kernels": number("kernels", 0),
        "to host": number("copies", 1),
        "waits": number("waits", 1),
        "device ms": number("device_ms", 2),
        "host ms": number("host_ms", 2),
        "identical": lambda of: f"{of['identical']}/{of['outputs']}",
    }
    rows = (((u, n), {**of, "floor_ms": floors_ms[u]}) for u, n, of in _rows(figures))
    return table_of(("sessions", "method"), columns, rows)


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
    return table_of(("users", "engine"), columns, (((u, n), of) for u, n, of in _rows(figures)))


def remarks(figures: Figures) -> Iterator[str]:
    """Yield where answers differ that must not."""
    for users, name, of in _rows(figures):
        if of["differences"] and of["expected"]:
            where = position_text(of["differences"])
            yield f"{name} with {users} users differs from the prompts alone: {where}"


def _rows(figures: Figures) -> Iterator[tuple[str, str, Figures]]:
    for level in figures["levels"]:
        for name, of in level["engines"].items():
            yield str(level["users"]), name, of

"""Load on a client: questions sent in open and closed loops, and the answers as callers see them.

The clock and random numbers are arguments.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice, takewhile
from typing import Any

from slipstream.bench.harness import WARMUP_TOKENS, Advance, require_room
from slipstream.bench.methods import Method
from slipstream.bench.questions import Question
from slipstream.bench.serve.plan import Point, ServePlan
from slipstream.bench.serve.sample import Failure, LoadSample, Mark
from slipstream.client import AsyncClient
from slipstream.core.errors import PromptTooLong, SlipstreamError
from slipstream.core.request.options import SpeculationOptions
from slipstream.core.request.prompt import Prompt
from slipstream.core.request.results import RequestStats
from slipstream.core.timing import Clock
from slipstream.core.types import SamplingParams

GoesOn = Callable[[int], bool]
"""Receives the number of tokens that have just come; returns whether to read on."""
Send = Callable[[Question, float], Awaitable[LoadSample]]
"""Function that sends a question due at that time, and reads the answer to its end."""

AFTER_FAILURE_S = 0.1
"""Pause of a user whose request failed."""


@dataclass(frozen=True, slots=True)
class LoadClock:
    """Clock in seconds, and how to wait for some."""

    clock: Clock = time.perf_counter
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep


def poisson_times(rate: float, rng: random.Random) -> Iterator[float]:
    """Yield the seconds at which users come, without end: `rate` a second, independently."""
    now = 0.0
    while True:
        now += rng.expovariate(rate)
        yield now


def schedule(
    rate: float, rng: random.Random, *, count: int | None = None, seconds: float | None = None
) -> list[float]:
    """Return the first `count` of the times, or those within `seconds`."""
    times = poisson_times(rate, rng)
    if seconds is not None:
        return list(takewhile(lambda at: at < seconds, times))
    return list(islice(times, count))


async def open_loop(
    times: Sequence[float], questions: Iterator[Question], send: Send, *, pace: LoadClock
) -> list[LoadSample]:
    """Send one question at each of the times, however many are unanswered.

    A user's time is the one of the schedule: what is sent late was late for its user.
    """
    begun = pace.clock()

    async def come(question: Question, due_s: float) -> LoadSample:
        return await send(question, due_s)

    tasks = []
    async with asyncio.TaskGroup() as group:
        # The times decide how many: a question too many would be taken the other way around.
        for at, question in zip(times, questions, strict=False):
            # A sleep may end a little before the clock is there.
            while (left_s := begun + at - pace.clock()) > 0:
                await pace.sleep(left_s)
            tasks.append(group.create_task(come(question, begun + at)))
    return [task.result() for task in tasks]


async def closed_loop(
    concurrency: int,
    questions: Iterator[Question],
    send: Send,
    *,
    pace: LoadClock,
    seconds: float | None = None,
) -> list[LoadSample]:
    """Have so many users send the next question when the last is answered.

    Ends after all questions, or takes no more after `seconds`.
    """
    samples: list[LoadSample] = []
    begun = pace.clock()

    async def work() -> None:
        for question in questions:  # which all workers take from
            now = pace.clock()
            if seconds is not None and now - begun >= seconds:
                return
            samples.append(sample := await send(question, now))
            if sample.failure is not None:
                await pace.sleep(AFTER_FAILURE_S)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
    return samples


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Request as the SDK takes it, and the question that it belongs to."""

    question_id: int | str
    prompt: Prompt
    max_tokens: int
    sampling: SamplingParams
    speculation: SpeculationOptions

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of the SDK's calls."""
        return {name: getattr(self, name) for name in ("max_tokens", "sampling", "speculation")}


def always(num_tokens: int) -> bool:
    """Read every answer to its end."""
    del num_tokens
    return True


async def send(
    client: AsyncClient,
    request: LoadRequest,
    *,
    due_s: float,
    clock: Clock,
    goes_on: GoesOn = always,
) -> LoadSample:
    """Read an answer until it ends, fails or is left. Errors of this package are results here."""
    marks: list[Mark] = []
    token_ids: list[int] = []

    async def read() -> RequestStats | None:
        stats = None
        async with client.stream(request.prompt, **request.options) as chunks:
            async for chunk in chunks:
                if chunk.token_ids:
                    marks.append(Mark(clock(), len(chunk.token_ids)))
                    token_ids.extend(chunk.token_ids)
                stats = chunk.stats or stats
                if not goes_on(len(chunk.token_ids)):
                    break
        return stats

    sent_s, stats, failure = clock(), None, None
    try:
        stats = await read()
    except SlipstreamError as error:
        failure = Failure(type(error).__name__, str(error))
    seen = tuple(marks), tuple(token_ids)
    return LoadSample(request.question_id, due_s, sent_s, clock(), *seen, stats, failure)


@dataclass(frozen=True, slots=True)
class ServeLoad:
    """Plan, the client that it goes through, and how time passes."""

    plan: ServePlan
    client: AsyncClient
    advance: Advance
    pace: LoadClock = field(default_factory=LoadClock)

    def request(
        self, question: Question, method: Method, *, most: int | None = None
    ) -> LoadRequest:
        """Return a question as it is sent, with at most `most` tokens."""
        limit = self.plan.max_new_tokens
        max_tokens = limit if most is None else min(most, limit)
        prompt, sampling = question.turns[0], self.plan.sampling
        return LoadRequest(question.question_id, prompt, max_tokens, sampling, method.options)

    def sender(self, method: Method, *, most: int | None = None) -> Send:
        """Return what sends questions for a method."""

        async def send(question: Question, due_s: float) -> LoadSample:
            return await self.send(self.request(question, method, most=most), due_s)

        return send

    async def send(
        self, request: LoadRequest, due_s: float, *, goes_on: GoesOn = always
    ) -> LoadSample:
        """Send a request now, for a user who came at `due_s`."""
        clock = self.pace.clock
        return await send(self.client, request, due_s=due_s, clock=clock, goes_on=goes_on)

    async def prepare(self) -> None:
        """Have every method answer alone, then at every point.

        Alone, any failure is raised; under load failures are results.
        """
        plan = self.plan
        await self._check_lengths()
        for method in plan.methods:
            request = self.request(plan.questions[0], method, most=WARMUP_TOKENS)
            await self.client.generate(request.prompt, **request.options)
        for point in plan.points if plan.warmup else ():
            for method in plan.methods:
                await self._warm_up(point, method)
                self.advance(method.name)

    async def _warm_up(self, point: Point, method: Method) -> None:
        """Take short answers that are not measured; failures come again where they count."""
        width = point.concurrency or 1
        questions = islice(cycle(self.plan.questions), width * self.plan.warmup)
        send = self.sender(method, most=WARMUP_TOKENS)
        await closed_loop(width, questions, send, pace=self.pace)

    async def _check_lengths(self) -> None:
        plan, client = self.plan, self.client
        limit = (await client.model_info()).limits.context_length
        for question in plan.questions:
            length = len(await client.tokenize(question.turns[0]))
            require_room(question.question_id, length, plan.max_new_tokens, limit)
        num_tokens = plan.long_prompt_tokens
        if num_tokens is not None and num_tokens >= limit:
            raise PromptTooLong(
                f"intruder_tokens is {num_tokens}, but the context holds {limit} with the token"
                " that follows"
            )

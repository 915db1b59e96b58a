"""Open and closed loops of load. The clock and random numbers are arguments."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from slipstream.bench.questions import Question
from slipstream.bench.serve.sample import Sample
from slipstream.core.timing import Clock

Send = Callable[[Question, float], Awaitable[Sample]]
"""Function that sends a question due at that time, and reads the answer to its end."""


AFTER_FAILURE_S = 0.1
"""Pause of a user whose request failed."""


@dataclass(frozen=True, slots=True)
class Pace:
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
    return [next(times) for _ in range(count or 0)]


async def open_loop(
    times: Sequence[float], asked: Iterator[Question], send: Send, *, pace: Pace
) -> list[Sample]:
    """Send one question at each of the times, however many are unanswered.

    A user's time is the one of the schedule: what is sent late was late for its user.
    """
    begun = pace.clock()
    tasks = []
    async with asyncio.TaskGroup() as group:
        # The times decide how many: a question too many would be taken the other way around.
        for at, question in zip(times, asked, strict=False):
            await _until(begun + at, pace)
            tasks.append(group.create_task(_sent(send, question, begun + at)))
    return [task.result() for task in tasks]


async def _sent(send: Send, question: Question, due_s: float) -> Sample:
    return await send(question, due_s)


async def _until(at_s: float, pace: Pace) -> None:
    # Once more where the sleep was short: it may end a little before the clock is there.
    while (left_s := at_s - pace.clock()) > 0:
        await pace.sleep(left_s)


async def closed_loop(
    concurrency: int,
    asked: Iterator[Question],
    send: Send,
    *,
    pace: Pace,
    seconds: float | None = None,
) -> list[Sample]:
    """Have so many users send the next question when the last is answered.

    Ends after all that is asked, or takes no more after `seconds`.
    """
    samples: list[Sample] = []
    begun = pace.clock()

    async def work() -> None:
        for question in asked:  # which all workers take from
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

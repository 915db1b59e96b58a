"""Closed-loop load: so many users, each of whom asks again when answered. The clock is given."""

import asyncio
from collections.abc import Iterator

from slipstream.bench.questions import Question
from slipstream.bench.serve.arrivals import Pace, Send
from slipstream.bench.serve.sample import Sample

AFTER_FAILURE_S = 0.1
"""How long a user who was refused waits: nobody asks without a pause."""


async def closed_loop(
    concurrency: int,
    asked: Iterator[Question],
    send: Send,
    *,
    pace: Pace,
    seconds: float | None = None,
) -> list[Sample]:
    """The answers to all that is asked, or to what was asked within `seconds`."""
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

"""Keeps sessions running, lets a long prompt come among them, and goes on for a while.

How long is said in tokens, so that it means the same on any machine. Knows no figures.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Protocol

from slipstream.bench.questions import Question
from slipstream.bench.serve.intruder import Intrusion
from slipstream.bench.serve.request import GoesOn
from slipstream.bench.serve.sample import Sample
from slipstream.core.timing import Clock

_STRIDE = 101
"""A prime, so that the numbers take many turns before one begins where another did."""


class Asked(Protocol):
    """Sends a question now, and reads on while `goes_on` says so."""

    async def __call__(self, question: Question, *, goes_on: GoesOn) -> Sample: ...


@dataclass(frozen=True, slots=True)
class Crowd:
    """So many sessions, and how many tokens each gets on average before the intruder and after."""

    size: int
    window_tokens: int


def intruder_prompt(words: Sequence[int], num_tokens: int, *, number: int) -> tuple[int, ...]:
    """A prompt of so many of these token ids, over and over; each number begins elsewhere.

    So no prompt has been read before, unless there are more numbers than words.
    """
    start = number * _STRIDE % len(words)
    return tuple(islice(cycle(words), start, start + num_tokens))


async def intrude(
    crowd: Crowd,
    asked: Iterator[Question],
    ask: Asked,
    come: Callable[[], Awaitable[Sample]],
    *,
    clock: Clock,
) -> Intrusion:
    """Run the sessions until the intruder has had its first token and they theirs after it.

    `asked` has no end. A session whose request fails ends there.
    """
    sessions = _Sessions(crowd.size)
    samples: list[Sample] = []
    intruder = None
    async with asyncio.TaskGroup() as group:
        for number in range(crowd.size):
            group.create_task(_work(number, sessions, asked, ask, samples))
        begun_s = ended_s = clock()
        if await sessions.all_begun():
            begun_s = clock()
            if await sessions.more(crowd.size * crowd.window_tokens):
                intruder = await come()
                await sessions.more(crowd.size * crowd.window_tokens)
            ended_s = clock()
        sessions.is_over = True
    return Intrusion(samples, begun_s, ended_s, intruder)


async def _work(
    number: int,
    sessions: "_Sessions",
    asked: Iterator[Question],
    ask: Asked,
    samples: list[Sample],
) -> None:
    try:
        while not sessions.is_over:
            sample = await ask(next(asked), goes_on=sessions.counter(number))
            samples.append(sample)
            if sample.failure is not None:
                return
    finally:
        sessions.left()


class _Sessions:
    """How far the sessions are, for whoever waits for them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._num_running = size
        self._begun: set[int] = set()
        self._num_tokens = 0
        self._changed = asyncio.Event()
        self.is_over = False

    def counter(self, number: int) -> GoesOn:
        """Counts the tokens of one session."""

        def count(num_tokens: int) -> bool:
            if num_tokens:
                self._begun.add(number)
                self._num_tokens += num_tokens
                self._changed.set()
            return not self.is_over

        return count

    def left(self) -> None:
        """One session has ended."""
        self._num_running -= 1
        self._changed.set()

    async def all_begun(self) -> bool:
        """Wait until each has had its first token. False when one ended before that."""
        return await self._until(lambda: len(self._begun) == self._size)

    async def more(self, num_tokens: int) -> bool:
        """Wait for so many more tokens of all together. False when a session has ended."""
        goal = self._num_tokens + num_tokens
        return await self._until(lambda: self._num_tokens >= goal)

    async def _until(self, holds: Callable[[], bool]) -> bool:
        while self._num_running == self._size:
            if holds():
                return True
            self._changed.clear()
            await self._changed.wait()
        return False

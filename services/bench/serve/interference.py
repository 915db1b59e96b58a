"""Interference of a long prompt: sessions run, the prompt comes among them, and they go on.

Durations are in tokens, so that they mean the same on any machine.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Protocol

from slipstream.bench.questions import Question
from slipstream.bench.serve.interference_figures import InterferenceRun
from slipstream.bench.serve.load import GoesOn
from slipstream.bench.serve.sample import Sample
from slipstream.core.timing import Clock

_STRIDE = 101
"""A prime, so that the numbers take many turns before one begins where another did."""


class Ask(Protocol):
    """Sends a question now, and reads on while `goes_on` says so."""

    async def __call__(self, question: Question, *, goes_on: GoesOn) -> Sample: ...


@dataclass(frozen=True, slots=True)
class RunningSessions:
    """Number of sessions, and the tokens each gets on average before the long prompt and after."""

    size: int
    window_tokens: int


def long_prompt(words: Sequence[int], num_tokens: int, *, number: int) -> tuple[int, ...]:
    """Return so many of these token ids, over and over; each number begins elsewhere.

    So no prompt has been read before, unless there are more numbers than words.
    """
    start = number * _STRIDE % len(words)
    return tuple(islice(cycle(words), start, start + num_tokens))


async def interfere(
    running: RunningSessions,
    questions: Iterator[Question],
    ask: Ask,
    send_prompt: Callable[[], Awaitable[Sample]],
    *,
    clock: Clock,
) -> InterferenceRun:
    """Run sessions until the long prompt has had its first token, and they theirs after it.

    `questions` has no end. A session whose request fails ends there.
    """
    sessions = _Sessions(running.size)
    samples: list[Sample] = []
    prompt = None
    async with asyncio.TaskGroup() as group:
        for number in range(running.size):
            group.create_task(_work(number, sessions, questions, ask, samples))
        begun_s = ended_s = clock()
        if await sessions.all_begun():
            begun_s = clock()
            if await sessions.more(running.size * running.window_tokens):
                prompt = await send_prompt()
                await sessions.more(running.size * running.window_tokens)
            ended_s = clock()
        sessions.is_over = True
    return InterferenceRun(samples, begun_s, ended_s, prompt)


async def _work(
    number: int,
    sessions: "_Sessions",
    questions: Iterator[Question],
    ask: Ask,
    samples: list[Sample],
) -> None:
    try:
        while not sessions.is_over:
            sample = await ask(next(questions), goes_on=sessions.counter(number))
            samples.append(sample)
            if sample.failure is not None:
                return
    finally:
        sessions.left()


class _Sessions:
    """Progress of all sessions, which can be waited for."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._num_running = size
        self._begun: set[int] = set()
        self._num_tokens = 0
        self._changed = asyncio.Event()
        self.is_over = False

    def counter(self, number: int) -> GoesOn:
        """Return what counts the tokens of one session."""

        def count(num_tokens: int) -> bool:
            if num_tokens:
                self._begun.add(number)
                self._num_tokens += num_tokens
                self._changed.set()
            return not self.is_over

        return count

    def left(self) -> None:
        """Note that a session has ended."""
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

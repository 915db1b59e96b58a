"""Interference of a long prompt with the sessions that run when it comes.

Durations are in tokens, so that they mean the same on any machine.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice, pairwise
from typing import Any, Protocol

from slipstream.bench.questions import Question
from slipstream.bench.serve.figures import failures
from slipstream.bench.serve.load import GoesOn
from slipstream.bench.serve.plan import Point
from slipstream.bench.serve.sample import LoadSample
from slipstream.bench.statistics import median_interval, quotient
from slipstream.core.errors import InvalidRequest
from slipstream.core.timing import Clock

WINDOWS = ("before", "during", "after")
_STRIDE = 101
"""A prime, so that the numbers take many turns before one begins where another did."""


@dataclass(frozen=True, slots=True)
class Window:
    """Span of time."""

    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if self.end_s < self.start_s:
            raise InvalidRequest(
                f"a window from {self.start_s} to {self.end_s} ends before it starts"
            )


@dataclass(frozen=True, slots=True)
class InterferenceRun:
    """Run of the sessions, the long prompt among them, and from when to when all of them ran.

    `long_prompt` is None where the sessions failed before it could come.
    """

    samples: Sequence[LoadSample]
    begun_s: float
    ended_s: float
    long_prompt: LoadSample | None

    def windows(self) -> dict[str, Window]:
        """Return the windows before it came, until its first token, and after, if it had one."""
        if self.long_prompt is None or not self.long_prompt.marks:
            return {}
        came_s, first_s = self.long_prompt.sent_s, self.long_prompt.marks[0].at_s
        return {
            "before": Window(self.begun_s, came_s),
            "during": Window(came_s, first_s),
            "after": Window(first_s, max(self.ended_s, first_s)),
        }


InterferenceRuns = Mapping[Point, Mapping[str, Sequence[InterferenceRun]]]
"""Runs by point and by the name of the method, one a repeat."""


def time_per_token(samples: Sequence[LoadSample], window: Window) -> float | None:
    """Return the seconds that sessions decoded within the window, over the tokens of these.

    A session decodes from its first token to its last. Tokens count by the part of the wait for
    them that lies in the window: those of a wait that is longer than it are not lost. None where
    no session decoded.
    """
    seconds = tokens = 0.0
    for sample in samples:
        for before, after in pairwise(sample.marks):
            inside_s = _inside_s(before.at_s, after.at_s, window)
            seconds += inside_s
            if inside_s > 0:
                tokens += after.num_tokens * inside_s / (after.at_s - before.at_s)
    return seconds / tokens if tokens else None


def longest_gap(samples: Sequence[LoadSample], window: Window) -> float | None:
    """Return the longest wait between two chunks that overlaps the window."""
    gaps = [
        after.at_s - before.at_s
        for sample in samples
        for before, after in pairwise(sample.marks)
        if _inside_s(before.at_s, after.at_s, window) > 0
    ]
    return max(gaps, default=None)


def interference_figures(interference: InterferenceRuns) -> dict[str, Any]:
    """Return `{"points": [...]}`: times per token before, during and after the prompt."""
    return {
        "points": [
            {
                "kind": point.kind,
                "value": point.value,
                "arms": {name: _method_figures(runs) for name, runs in by_method.items()},
            }
            for point, by_method in interference.items()
        ]
    }


def _method_figures(runs: Sequence[InterferenceRun]) -> dict[str, Any]:
    each = [_run_figures(run) for run in runs]
    samples = [sample for run in runs for sample in run.samples]
    long_prompts = [run.long_prompt for run in runs if run.long_prompt is not None]
    intervals = {
        name: median_interval([value for run in each if (value := run[name]) is not None])
        for name in each[0]
    }
    ratio = intervals.pop("ratio")
    return {
        "runs": each,
        **{name: None if found is None else found.median for name, found in intervals.items()},
        "ratio": None if ratio is None else asdict(ratio),
        **failures([*samples, *long_prompts]),
    }


def _run_figures(run: InterferenceRun) -> dict[str, float | None]:
    """Return figures in milliseconds; None for what did not happen."""
    windows, prompt = run.windows(), run.long_prompt
    measures = {"": time_per_token, "_gap": longest_gap}
    figures: dict[str, float | None] = {}
    for label, measure in measures.items():
        for name in WINDOWS:
            seconds = measure(run.samples, windows[name]) if windows else None
            figures[f"{name}{label}_ms"] = None if seconds is None else 1000 * seconds
    ttft_s, stats = (None, None) if prompt is None else (prompt.ttft_s, prompt.stats)
    return {
        **figures,
        "ratio": quotient(figures["during_ms"], figures["before_ms"]),
        "intruder_ttft_ms": None if ttft_s is None else 1000 * ttft_s,
        "intruder_cached_tokens": None if stats is None else stats.num_cached_tokens,
    }


def _inside_s(start_s: float, end_s: float, window: Window) -> float:
    """Return how much of a span lies in the window."""
    return max(min(end_s, window.end_s) - max(start_s, window.start_s), 0.0)


class SendWhile(Protocol):
    """Function that sends a question now, and reads on while `goes_on` returns True."""

    async def __call__(self, question: Question, *, goes_on: GoesOn) -> LoadSample: ...


def long_prompt(words: Sequence[int], num_tokens: int, *, number: int) -> tuple[int, ...]:
    """Return so many of these token ids, over and over; each number begins elsewhere.

    So no prompt has been read before, unless there are more numbers than words.
    """
    start = number * _STRIDE % len(words)
    return tuple(islice(cycle(words), start, start + num_tokens))


async def interfere(
    size: int,
    window_tokens: int,
    questions: Iterator[Question],
    send: SendWhile,
    send_prompt: Callable[[], Awaitable[LoadSample]],
    *,
    clock: Clock,
) -> InterferenceRun:
    """Run sessions until the long prompt has had its first token, and they theirs after it.

    Each gets `window_tokens` on average before it comes and after its first token. `questions` has
    no end. A session whose request fails ends there.
    """
    sessions, samples, prompt = _Sessions(size), list[LoadSample](), None

    async def work(number: int) -> None:
        try:
            while not sessions.is_over:
                sample = await send(next(questions), goes_on=sessions.counter(number))
                samples.append(sample)
                if sample.failure is not None:
                    return
        finally:
            sessions.left()

    async with asyncio.TaskGroup() as group:
        for number in range(size):
            group.create_task(work(number))
        begun_s = ended_s = clock()
        if await sessions.all_begun():
            begun_s = clock()
            if await sessions.more(size * window_tokens):
                prompt = await send_prompt()
                await sessions.more(size * window_tokens)
            ended_s = clock()
        sessions.is_over = True
    return InterferenceRun(samples, begun_s, ended_s, prompt)


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

"""So many sessions decode at once, by one way, for as long as all of them are there.

Time is counted from the moment when all have their first token to that when the first has all of
its tokens, so that neither prompts nor stragglers count. Knows the ports and the loop.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from slipstream.core.loop import Round, decode
from slipstream.core.planner import Planner, Settings
from slipstream.core.ports import Draft, Target
from slipstream.core.timing import Clock
from slipstream.core.types import Delta, Proposal, Session, Verdict


@dataclass(frozen=True, slots=True)
class Way:
    """A way to decode: the draft, and how it is asked."""

    draft: Draft
    settings: Settings


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens that a session makes while it is measured, and how many it may have."""

    measured: int
    longest: int


@dataclass(slots=True)
class Ran:
    """What came of a crowd: tokens in so many seconds, and of how many rounds of a session."""

    seconds: float = 0.0
    tokens: float = 0.0
    rounds: float = 0.0
    outputs: list[tuple[int, ...]] = field(default_factory=list)
    """Of each session, in order of the prompts; what came of it is no more than known."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_round(self) -> float:
        """Of one session."""
        return self.tokens / self.rounds


class AllOffered:
    """A target that offers all the rows that anybody asks for: how much is drafted is not its
    choice here."""

    def __init__(self, target: Target) -> None:
        self._target = target

    async def verify(self, session: Session, delta: Delta, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`."""
        return replace(await self._target.verify(session, delta, proposal), offer=None)

    async def release(self, session_id: str) -> None:
        """See `core.ports.Target.release`."""
        await self._target.release(session_id)


async def run_crowd(
    target: Target,
    way: Way,
    prompts: Sequence[tuple[int, ...]],
    lengths: Lengths,
    *,
    name: str,
    clock: Clock,
) -> Ran:
    """Decode all prompts at once. Sessions are called `name`, a dash and a number."""
    window = _Window(len(prompts), clock)
    async with asyncio.TaskGroup() as group:
        works = [
            group.create_task(_session(target, way, prompt, lengths, window, f"{name}-{number}"))
            for number, prompt in enumerate(prompts)
        ]
    return window.ran([work.result() for work in works])


@dataclass(slots=True)
class _Said:
    """One session's output, and when so many tokens of it came."""

    tokens: list[int]
    marks: list[tuple[float, int]] = field(default_factory=list)


class _Window:
    """From when all have begun until one is done."""

    def __init__(self, size: int, clock: Clock) -> None:
        self._clock = clock
        self._barrier = asyncio.Barrier(size)
        self._begun = 0.0
        self._ended: float | None = None

    async def begin(self) -> None:
        """Wait for all."""
        await self._barrier.wait()
        self._begun = self._begun or self._clock()

    def mark(self, said: _Said, at: Round, measured: int) -> bool:
        """A round of a session; whether it is to go on."""
        now = self._clock()
        said.tokens += at.verdict.tokens
        said.marks.append((now, len(at.verdict.tokens)))
        if self._ended is None and len(said.tokens) > measured:
            self._ended = now
        return self._ended is None

    def ran(self, sessions: Sequence[_Said]) -> Ran:
        """Rounds that were under way at the end count by the part of them that was over."""
        assert self._ended is not None, "somebody is the first"
        ran = Ran(self._ended - self._begun)
        for said in sessions:
            before = self._begun
            for at, count in said.marks:
                share = (min(at, self._ended) - before) / (at - before) if at > before else 1.0
                ran.tokens += max(share, 0.0) * count
                ran.rounds += max(share, 0.0)
                before = at
            ran.outputs.append(tuple(said.tokens))
        return ran


async def _session(
    target: Target,
    way: Way,
    prompt: tuple[int, ...],
    lengths: Lengths,
    window: _Window,
    session_id: str,
) -> _Said:
    session = Session(session_id, len(prompt), lengths.longest)
    try:
        rounds = decode(way.draft, target, Planner(way.settings), session, prompt)
        return await _said(rounds, lengths.measured, window)
    finally:
        await way.draft.release(session_id)
        await target.release(session_id)


async def _said(rounds: AsyncGenerator[Round, None], measured: int, window: _Window) -> _Said:
    """What comes of a session until the window closes."""
    async with aclosing(rounds):
        said = _Said(list((await anext(rounds)).verdict.tokens))
        await window.begin()
        async for at in rounds:
            if not window.mark(said, at, measured):
                break
    return said

"""Users who ask recorded questions one after the other, and what they saw. Prints nothing."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from slipstream.bench.timed.script import Script
from slipstream.client import AsyncClient, Mode, SpeculationOptions
from slipstream.core.results import RequestStats
from slipstream.core.timing import Clock
from slipstream.core.types import Shape, StopPolicy
from slipstream.sizing.outcome import Answer
from slipstream.sizing.simulator import Counts

_DRAFTED = SpeculationOptions(
    mode=Mode.FORCED, shape=Shape.CHAIN, stop=StopPolicy.SVIP, lookup=False
)
_PLAIN = SpeculationOptions(mode=Mode.OFF)


@dataclass(slots=True)
class Seen:
    """All answers of a crowd, their statistics, and how many had the recorded tokens."""

    answers: list[Answer] = field(default_factory=list)
    stats: list[RequestStats] = field(default_factory=list)
    num_identical: int = 0

    def counts(self) -> Counts:
        """What happened in all, in the simulator's words."""
        each = [at.speculation for at in self.stats]
        return Counts(
            len(self.answers),
            sum(at.num_tokens for at in self.answers),
            sum(at.num_spec_steps + at.num_plain_steps for at in each),
            sum(at.num_draft_tokens for at in each),
            sum(at.num_accepted_draft_tokens for at in each),
        )


async def ask_all(
    client: AsyncClient,
    script: Script,
    numbers: Iterator[int],
    *,
    users: int,
    is_drafted: bool,
    clock: Clock = time.perf_counter,
) -> Seen:
    """Have `users` ask the recorded requests of these numbers, whoever is free the next one."""
    seen = Seen()
    asking = _Asking(client, script, _DRAFTED if is_drafted else _PLAIN, clock)

    async def use() -> None:
        for number in numbers:  # which all users take from
            await asking.ask(number, seen)

    async with asyncio.TaskGroup() as group:
        for _ in range(users):
            group.create_task(use())
    return seen


@dataclass(frozen=True, slots=True)
class _Asking:
    client: AsyncClient
    script: Script
    speculation: SpeculationOptions
    clock: Clock

    async def ask(self, number: int, seen: Seen) -> None:
        expected = self.script.answer(number)
        answer, tokens = Answer(self.clock()), list[int]()
        stream = self.client.stream(
            self.script.prompt(number), max_tokens=len(expected), speculation=self.speculation
        )
        async with stream as chunks:
            async for chunk in chunks:
                if chunk.token_ids:
                    answer.marks.append((self.clock(), len(chunk.token_ids)))
                    tokens += chunk.token_ids
                if chunk.stats is not None:
                    seen.stats.append(chunk.stats)
        seen.answers.append(answer)
        seen.num_identical += tuple(tokens) == expected

"""Disturbances over traffic: each waits for its moment, and until all is as before."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from chaos.cluster import Cluster
from chaos.report import Fault, Report, Scenario
from chaos.traffic import Answers, Errand, Stream, Traffic
from support.services import fleet

MOST_TOKENS = 1500
"""Before a kill; a random number of tokens is a random moment."""


@dataclass(frozen=True, slots=True)
class Load:
    """What runs while things happen, and what it must say."""

    errands: Sequence[Errand]
    answers: Answers
    num_streams: int = 4
    most_tokens: int = MOST_TOKENS
    """Before a disturbance."""


def alone(load: Load) -> Load:
    """The part of it that belongs to no session."""
    return replace(load, errands=[each for each in load.errands if len(each.prompts) == 1])


def asked_of(names: Iterable[str], load: Load) -> Load:
    """The load that is answerable without these: what a session said is known to Redis alone."""
    return alone(load) if any("redis" in name for name in names) else load


class Chaos:
    """What can be done to a cluster while streams run. See `disturbed`."""

    def __init__(self, cluster: Cluster, traffic: Traffic, scenario: Scenario, load: Load) -> None:
        self.cluster, self.traffic = cluster, traffic
        self._most_tokens = load.most_tokens
        self._scenario = scenario
        self._random = random.Random(scenario.name)

    @property
    def faults(self) -> list[Fault]:
        return self._scenario.faults

    async def some_moment(self, most_tokens: int = MOST_TOKENS) -> None:
        """Let a random number of tokens come, until two streams at least run."""
        await self.traffic.after(self._random.randrange(min(most_tokens, self._most_tokens)))
        await self.traffic.until(lambda: len(self.traffic.running(time.monotonic())) > 1)

    def one_of(self, *roles: str) -> tuple[str, ...]:
        return tuple(self._random.choice(self.cluster.names(role)) for role in roles)

    def strike(self, *names: str) -> Fault:
        """Write down that this happens to these members now."""
        at = time.monotonic()
        fault = Fault(names, at, self.traffic.running(at))
        self._scenario.faults.append(fault)
        return fault

    async def kill(self, *names: str, most_tokens: int = MOST_TOKENS) -> Fault:
        await self.some_moment(most_tokens)
        fault = self.strike(*names)
        for name in names:
            self.cluster.members[name].kill()
        return fault

    async def gone_on(self, fault: Fault) -> None:
        """Wait until each stream it came over has said more, or has ended."""

        def has_gone_on(stream: Stream) -> bool:
            return stream.ended is not None or stream.next_after(fault.at) is not None

        await self.traffic.until(lambda: all(map(has_gone_on, fault.streams)))

    async def back(self, fault: Fault) -> None:
        """Wait until its streams have gone on and all members serve."""
        await self.gone_on(fault)
        await self.cluster.settled()

    async def lasting(
        self,
        names: Sequence[str],
        begin: Callable[[], object],
        end: Callable[[], object],
        *,
        s: float = 0,
        most_tokens: int = MOST_TOKENS,
    ) -> Fault:
        """Begin a disturbance at some moment, and end it after its time and all its streams."""
        await self.some_moment(most_tokens)
        fault = self.strike(*names)
        begin()
        try:
            await asyncio.sleep(s)  # the rule is for so long
            await self.traffic.ended(fault.streams)
        finally:
            end()
        await self.over(fault)
        return fault

    async def over(self, fault: Fault) -> None:
        """Wait until the streams it came over have ended and everybody is back."""
        await self.traffic.ended(fault.streams)
        await self.cluster.settled()

    async def idle(self) -> None:
        """Let all streams end; then no service may hold anything for a caller."""
        self.traffic.close()
        await self.traffic.ended(self.traffic.streams)
        await self.cluster.settled()
        await fleet.eventually(self.cluster.held, lambda held: not any(held.values()))


@asynccontextmanager
async def disturbed(
    cluster: Cluster, load: Load, report: Report, name: str
) -> AsyncIterator[Chaos]:
    """Traffic on a whole cluster; in the end every stream must have said what it should."""
    await cluster.settled()
    scenario = Scenario(name)
    traffic = Traffic(load.answers, load.errands)
    try:
        async with traffic.flowing(cluster.address, load.num_streams, cluster.tls):
            yield Chaos(cluster, traffic, scenario, load)
    finally:
        scenario.take(traffic)
        report.add(scenario)
    assert not traffic.faults, "\n".join(traffic.faults)

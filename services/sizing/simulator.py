"""Discrete-event simulation of drafts and targets that serve recorded rounds.

Engines and calls take the times of the recording; waits and batches come out. Requests go to the
least loaded replicas, as routers place them. Routers are never busy, memory never runs out and no
process fails. The same seed gives the same run.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import TypeVar

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.engines import (
    Callback,
    Clock,
    SimDraft,
    SimDrafting,
    SimTarget,
    SimVerification,
)
from slipstream.sizing.recording import PLAIN, RecordedRequest, Recording
from slipstream.target.time_spent import Activity

_WINDOW = (0.1, 0.9)
"""Part of a run that throughput is taken from: neither its beginning nor its end is typical."""
Wait = Callable[[Callback], None]
Arrivals = list[tuple[float, int]]
"""When how many tokens of an answer came; first the time of the request, with none."""


@dataclass(frozen=True, slots=True)
class SimLoad:
    """`num_requests` of `users` who send the next one when answered, or `rate` per second."""

    num_requests: int
    users: int = 1
    rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_requests < 1 or self.users < 1:
            raise InvalidRequest(f"{self.users} users can't send {self.num_requests} requests")
        if self.rate is not None and not self.rate > 0:
            raise InvalidRequest(f"the rate is {self.rate:g} a second, but must be above 0")


@dataclass(frozen=True, slots=True)
class SimFleet:
    """Numbers of replicas; without drafts every round is plain."""

    drafts: int
    targets: int
    max_tokens: int = 256
    """Most batched tokens of a target's step."""

    def __post_init__(self) -> None:
        if self.drafts < 0 or self.targets < 1 or self.max_tokens < 1:
            raise InvalidRequest(f"there can't be {self.drafts} drafts and {self.targets} targets")


@dataclass(frozen=True, slots=True)
class SimResult:
    """Result of a run. Utilisations and `draft_wait` are shares of its time."""

    fleet: SimFleet
    requests: int
    tokens: int
    rounds: int
    seconds: float
    tokens_per_s: float
    first_p50_s: float
    first_p95_s: float
    per_token_p50_s: float
    per_token_p95_s: float
    target_utilisation: float
    draft_utilisation: float
    draft_wait: float
    """Share of time that targets only waited for drafts."""
    tokens_per_step: float


def simulate(recording: Recording, fleet: SimFleet, load: SimLoad) -> SimResult:
    """Run until all requests are answered. Raises `InvalidRequest` where there are none."""
    if not recording.requests:
        raise InvalidRequest("there is no request to simulate")
    return _Simulation(recording, fleet, load).run()


Engine = TypeVar("Engine", SimTarget, SimDraft)


def _acquired(engines: Sequence[Engine], number: int) -> Engine:
    """Return the least loaded; among equals the one whose last request began first."""
    engine = min(engines, key=lambda engine: (engine.num_running, engine.last_request))
    engine.num_running += 1
    engine.last_request = number
    return engine


class _Simulation:
    def __init__(self, recording: Recording, fleet: SimFleet, load: SimLoad) -> None:
        self._clock, self._times = Clock(), recording.times
        self._fleet, self._load = fleet, load
        clock, times = self._clock, self._times
        self._targets = [SimTarget(clock, times, fleet.max_tokens) for _ in range(fleet.targets)]
        self._drafts = [SimDraft(clock, times) for _ in range(fleet.drafts)]
        self._requests = enumerate(islice(cycle(recording.requests), load.num_requests), 1)
        self._answers: list[Arrivals] = []

    def run(self) -> SimResult:
        rng, at_s = random.Random(self._load.seed), 0.0
        if self._load.rate is None:
            for _ in range(self._load.users):
                self._clock.after(0.0, self._begin)
        else:
            for _ in range(self._load.num_requests):
                at_s += rng.expovariate(self._load.rate)
                self._clock.after(at_s, self._begin)
        self._clock.run()
        return self._result()

    def _begin(self) -> None:
        """Begin the next request, if one is left."""
        found = next(self._requests, None)
        if found is not None:
            _resume(self._request(*found))

    def _request(self, number: int, request: RecordedRequest) -> Iterator[Wait]:
        """Run a request through its rounds, yielding what it waits for."""
        clock, times, rounds = self._clock, self._times, iter(request.rounds)
        wire, in_router = (partial(clock.after, s) for s in (times.call_s / 2, times.router_s))
        target = _acquired(self._targets, number)
        draft = _acquired(self._drafts, number) if self._drafts else None
        left = request.num_tokens
        arrivals: Arrivals = [(clock.now, 0)]
        unread, round_, pending = request.num_prompt_tokens, PLAIN, request.num_prompt_tokens
        while left:
            if draft is not None and round_.depth:
                yield wire
                yield partial(draft.propose, SimDrafting(unread, round_.depth))
                yield wire
                # A draft has read the path that it drew, but for its last token.
                unread = 1 if round_.accepted == round_.depth else 0
            count = round_.accepted + 1
            yield wire
            work = SimVerification(number, pending, round_.nodes, left == count)
            yield partial(target.verify, work)
            yield wire
            left, unread, pending = left - count, unread + 1, 1
            arrivals.append((clock.now, count))
            if left:
                yield in_router
                round_ = next(rounds, PLAIN).within(left) if draft is not None else PLAIN
        target.leave(number)
        if draft is not None:
            draft.num_running -= 1
        self._answers.append(arrivals)
        if self._load.rate is None:
            self._begin()

    def _result(self) -> SimResult:
        seconds, answers = self._clock.now, self._answers
        targets, drafts = self._targets, self._drafts
        firsts = [at[1][0] - at[0][0] for at in answers]
        others = [(at[-1][0] - at[1][0]) / max(sum(n for _, n in at[2:]), 1) for at in answers]
        waited_s = sum(at.spent.totals()[Activity.WAITING] for at in targets)
        return SimResult(
            fleet=self._fleet,
            requests=len(answers),
            tokens=sum(count for at in answers for _, count in at),
            rounds=sum(len(at) - 2 for at in answers),
            seconds=seconds,
            tokens_per_s=tokens_per_s(answers),
            first_p50_s=percentile(firsts, 0.5),
            first_p95_s=percentile(firsts, 0.95),
            per_token_p50_s=percentile(others, 0.5),
            per_token_p95_s=percentile(others, 0.95),
            target_utilisation=sum(at.busy_s for at in targets) / seconds / len(targets),
            draft_utilisation=sum(at.busy_s for at in drafts) / seconds / max(len(drafts), 1),
            draft_wait=waited_s / seconds / len(targets),
            tokens_per_step=sum(at.num_tokens for at in targets)
            / sum(at.num_steps for at in targets),
        )


def _resume(request: Iterator[Wait]) -> None:
    wait = next(request, None)
    if wait is not None:
        wait(lambda: _resume(request))


def tokens_per_s(answers: Sequence[Arrivals]) -> float:
    """Return the throughput within the middle of a run; tokens count as if they came evenly."""
    start = min(at[0][0] for at in answers)
    whole_s = max(at[-1][0] for at in answers) - start
    low, high = (start + share * whole_s for share in _WINDOW)
    total = 0.0
    for arrivals in answers:
        before = arrivals[0][0]
        for at, count in arrivals[1:]:
            within = min(at, high) - max(before, low)
            total += count * max(within, 0.0) / (at - before) if at > before else 0.0
            before = at
    return total / (high - low)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of all do not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]

"""`slipstream size`: the load that targets and drafts answer in time, by a simulation of steps."""

import json
import math
from collections import deque
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, takewhile
from random import Random
from typing import Annotated

import typer

from slipstream.cli.flags import with_flags
from slipstream.cli.report import show
from slipstream.core.errors import check
from slipstream.options import check_bounds, option

PROMPT_DELAY_MS = 50.0
"""Time by which a part of a prompt may slow a shared step, as a target has it by default."""
MOST_RATE = 1e6
"""Most requests a second that are tried."""
REQUESTS = 200
"""Requests that are simulated for each target."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class SizePlan:
    """Replicas, load and goals, the average round, and times of engines."""

    targets: int = option(1, "Target replicas.", least=1)
    rate: float = option(1.0, "Requests a second, on all targets.", above=0)
    first_ms: float = option(1000.0, "Goal of 99% of the times to the first token.", above=0)
    token_ms: float = option(60.0, "Goal of 95% of the times of a further token.", above=0)
    drafts: int = option(1, "Draft replicas, which all targets share.", least=1)
    acceptance: float = option(0.8, "Acceptance of each drafted token.", least=0, most=1)
    depth: int = option(4, "Tokens drafted in a round.", least=1, most=127)
    output_tokens: int = option(128, "Tokens of an answer.", least=2)
    prompt_tokens: int = option(64, "Tokens of a prompt.", least=1)
    verify_ms: float = option(40.0, "Time of a plain round on the target.", above=0)
    verify_free: int = option(32, "Tokens that a step verifies in the time of one.", least=1)
    verify_row_ms: float = option(0.2, "Time that each token beyond these adds.", least=0)
    verify_session_ms: float = option(0.0, "Time that each further session adds.", least=0)
    draft_ms: float = option(4.0, "Time of a drafted token of one session.", above=0)
    draft_row_ms: float = option(0.2, "Time that each further session adds.", least=0)
    wire_ms: float = option(1.0, "Time of a call to an engine and back.", above=0)

    def __post_init__(self) -> None:
        check_bounds(self)
        times = self.step_ms(2, 2) + self.level_ms(2) + self.wire_ms + self.first_ms + self.token_ms
        check(math.isfinite(times), "the sum of times", times, "finite")

    def step_ms(self, tokens: int, sessions: int) -> float:
        """Return the time of a target's step over so many tokens of so many sessions."""
        session_ms = min(self.verify_session_ms, self.verify_ms) * (sessions - 1)
        return self.verify_ms + self.verify_row_ms * max(tokens - self.verify_free, 0) + session_ms

    def level_ms(self, sessions: float) -> float:
        """Return the time of a draft's pass, in which each of so many sessions gets a token."""
        return self.draft_ms + self.draft_row_ms * (max(sessions, 1.0) - 1)


@dataclass(order=True, slots=True)
class SimulatedRequest:
    """A request: when it came, in ms, tokens to read and to write, and the first one's time."""

    begun: float
    unread: int
    left: int
    first: float = 0.0


@dataclass(slots=True)
class SimulatedTarget:
    """A target's requests by the time that they are ready, and the end and time of a step."""

    ready: list[tuple[float, SimulatedRequest]] = field(default_factory=list)
    free: float = 0.0
    step_ms: float = 0.0

    @property
    def next(self) -> float:
        return max(self.free, self.ready[0][0]) if self.ready else math.inf


class Simulation:
    """Requests that arrive by chance, on targets and the drafts that they share.

    `drafts` is their number, each with a device of its own, or None for drafts on the devices of
    the targets. A proposal takes as long as it would among those that it begins with.
    """

    def __init__(self, plan: SizePlan, drafts: int | None) -> None:
        self._plan, self._drafts, self._random = plan, drafts, Random(0)
        self._wire_ms = 0.0 if drafts is None else plan.wire_ms
        self._depth = 0 if drafts == 0 else plan.depth
        self._targets = [SimulatedTarget() for _ in range(plan.targets)]
        self._drafting, self._drafting_ms = list[float](), 0.0
        """Ends of the proposals that are under way, and the time of all."""
        self._latencies: list[tuple[float, float]] = []

    def run(self, rate: float) -> dict[str, float]:
        """Return the times until the first token (99% of requests) and of each further one (95%),
        where so many come in a second, and the proposals at a draft at once."""
        plan, num_requests = self._plan, REQUESTS * self._plan.targets
        gaps = (1000 * self._random.expovariate(rate) for _ in range(num_requests))
        arrivals = deque(accumulate(gaps))
        while len(self._latencies) < num_requests:
            target = min(self._targets, key=lambda target: target.next)
            if not arrivals or target.next < arrivals[0]:
                self._step(target)
                continue
            request = SimulatedRequest(arrivals.popleft(), plan.prompt_tokens, plan.output_tokens)
            target = min(self._targets, key=lambda target: len(target.ready))
            heappush(target.ready, (request.begun + self._wire_ms / 2, request))
        firsts, others = map(sorted, zip(*self._latencies, strict=True))
        whole_ms = max(target.free for target in self._targets) * (self._drafts or 1)
        return {
            "first_ms": firsts[int(0.99 * num_requests)],
            "token_ms": others[int(0.95 * num_requests)],
            "proposals": self._drafting_ms / whole_ms,
        }

    def _step(self, target: SimulatedTarget) -> None:
        """Run a step over requests that are ready, or will be within half of the last step's time,
        for which a target waits; and the drafting behind it."""
        plan, start, batch = self._plan, target.next, list[SimulatedRequest]()
        until = start + target.step_ms / 2
        while target.ready and target.ready[0][0] <= until:
            ready, request = heappop(target.ready)
            start, batch = max(start, ready), [*batch, request]
        chunk = max(int(PROMPT_DELAY_MS / max(plan.verify_row_ms, 0.2)), 1)
        sizes = [min(of.unread, chunk) or 1 + min(self._depth, of.left - 1) for of in batch]
        target.step_ms = plan.step_ms(sum(sizes), len(batch))
        end = target.free = start + target.step_ms
        steps = zip(batch, sizes, strict=True)
        running = [of for of, size in steps if self._goes_on(of, size, end)]
        drafting_ms = self._draft(end, sum(not of.unread for of in running))
        target.free += drafting_ms if self._drafts is None else 0.0
        for request in running:
            wait_ms = 0.0 if request.unread else self._wire_ms + drafting_ms
            heappush(target.ready, (end + wait_ms, request))

    def _goes_on(self, request: SimulatedRequest, size: int, now: float) -> bool:
        """Take in a step over so many tokens of a request; return whether it is not over."""
        if request.unread:
            request.unread, request.first, size = request.unread - size, now, 1
        kept = (self._random.random() < self._plan.acceptance for _ in range(size - 1))
        request.left -= 0 if request.unread else 1 + sum(takewhile(bool, kept))
        if request.left <= 0:
            each = (now - request.first) / (self._plan.output_tokens - 1)
            self._latencies.append((request.first - request.begun + self._wire_ms / 2, each))
        return request.left > 0

    def _draft(self, now: float, num_requests: int) -> float:
        """Return the time until the proposals of so many requests are there."""
        if not (num_requests and self._depth):
            return 0.0
        self._drafting = [end for end in self._drafting if end > now]
        sessions = (len(self._drafting) + num_requests) / (self._drafts or 1)
        drafting_ms = self._depth * self._plan.level_ms(sessions)
        self._drafting_ms += num_requests * drafting_ms
        self._drafting += [now + drafting_ms] * (num_requests if self._drafts else 0)
        return self._wire_ms + drafting_ms


def most_requests(plan: SizePlan, drafts: int | None) -> float:
    """Return the most requests a second whose times reach the goals, within 2%; 0 for none."""

    def reach(rate: float) -> bool:
        found = Simulation(plan, drafts).run(rate)
        return found["first_ms"] <= plan.first_ms and found["token_ms"] <= plan.token_ms

    low, high = 0.0, 1 / 64
    while reach(high) and high < MOST_RATE:
        low, high = high, 2 * high
    while low and high > 1.02 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if reach(middle) else (low, middle)
    return low


@with_flags
def size(plan: SizePlan, *, as_json: AsJson = False) -> None:
    """Simulate a load on targets alone, with drafts on them, and with drafts apart."""
    settings = {"targets alone": 0, "drafts on them": None, "drafts apart": plan.drafts}
    figures = {
        name: Simulation(plan, num).run(plan.rate) | {"requests_per_s": most_requests(plan, num)}
        for name, num in settings.items()
    }
    if as_json:
        typer.echo(json.dumps({"settings": figures, "plan": asdict(plan)}, indent=2))
        return
    for name, of in figures.items():
        times = f"{of['first_ms']:.0f} ms to the first token, {of['token_ms']:.1f} ms each"
        most = f"up to {of['requests_per_s']:.2f} requests/s"
        show(f"{name:16}{times}; {of['proposals']:.1f} proposals at once; {most}")

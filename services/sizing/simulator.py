"""Many drafts and targets, event by event: recorded rounds replayed by a crowd of sessions.

The time of engines and wires is the recording's; who waits for whom, and who shares a step, comes
out. Placement is the routers': to the least loaded, for the whole request. Routers are never busy,
memory never runs out, and nobody fails. The same seed gives the same run.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Generic, TypeVar

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.events import Events
from slipstream.sizing.outcome import Answer, percentile, tokens_per_s
from slipstream.sizing.recording import RecordedRequest, Recording, Round
from slipstream.sizing.replicas import Drafting, SimDraft, SimTarget, Verification
from slipstream.target.waiting import Spending

MAX_ROWS = 256


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who asks: `users` who ask again when answered, or, with a `rate`, as many a second as come.

    There are `num_requests` in all.
    """

    num_requests: int
    users: int = 1
    rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_requests < 1 or self.users < 1:
            raise InvalidRequest(f"{self.users} users can't ask {self.num_requests} requests")
        if self.rate is not None and not self.rate > 0:
            raise InvalidRequest(f"the rate is {self.rate:g} a second, but must be above 0")


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas; without drafts every round is plain. `max_rows` are those of a target's step."""

    drafts: int
    targets: int
    max_rows: int = MAX_ROWS

    def __post_init__(self) -> None:
        if self.drafts < 0 or self.targets < 1 or self.max_rows < 1:
            raise InvalidRequest(f"there can't be {self.drafts} drafts and {self.targets} targets")


@dataclass(frozen=True, slots=True)
class Counts:
    """What happened in all. A run of services has the same counts as its simulation."""

    requests: int = 0
    tokens: int = 0
    rounds: int = 0
    """After the prompts' own."""
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Simulated:
    """What came of a run. Utilisations and waiting are shares of the time it took."""

    fleet: Fleet
    counts: Counts
    seconds: float
    tokens_per_s: float
    first_p50_s: float
    first_p95_s: float
    per_token_p50_s: float
    per_token_p95_s: float
    target_utilisation: float
    draft_utilisation: float
    draft_wait: float
    """Share of time that targets did nothing but wait for drafts."""
    rows_per_step: float
    num_events: int


def simulate(recording: Recording, fleet: Fleet, crowd: Crowd) -> Simulated:
    """Run until everybody is answered."""
    return _Simulation(recording, fleet, crowd).run()


E = TypeVar("E")


class _Pool(Generic[E]):
    """Replicas of a role, and how much each has been given."""

    def __init__(self, engines: Sequence[E]) -> None:
        self.engines = engines
        self._running = [0] * len(engines)
        self._began = [0] * len(engines)
        self._num_requests = 0

    def choose(self) -> int:
        """The least loaded; among equals the one whose last request began first, as in
        `placement.py`."""
        running, began = self._running, self._began
        at = min(range(len(running)), key=lambda at: (running[at], began[at], at))
        self._num_requests += 1
        running[at] += 1
        began[at] = self._num_requests
        return at

    def leave(self, at: int) -> None:
        self._running[at] -= 1


class _Session:
    """A request on its way through its rounds."""

    def __init__(self, sim: "_Simulation", number: int, request: RecordedRequest) -> None:
        self._sim = sim
        self._number = number
        self._request = request
        self._rounds = iter(request.rounds)
        self._target = sim.targets.choose()
        self._draft = sim.drafts.choose() if sim.drafts.engines else None
        self._left = request.num_tokens
        self._is_told = False
        """Whether the draft has the prompt."""
        self._new_tokens = 0
        """What it has not."""
        self.answer = Answer(sim.events.now)
        self._ask(request.num_prompt_tokens, Round(0, 0, 0))

    def _next(self) -> None:
        """The next round: a proposal first, if one is to be drafted."""
        recorded = next(self._rounds, None) if self._draft is not None else None
        at = Round(0, 0, 0) if recorded is None else recorded.within(self._left)
        if not at.depth:
            self._ask(1, at)
            return
        assert self._draft is not None
        draft = self._sim.drafts.engines[self._draft]
        drafting = Drafting(self._pending(), at.depth, lambda: self._sim.wire(self._asker(at)))
        self._is_told = True
        self._sim.wire(lambda: draft.propose(drafting))

    def _asker(self, at: Round) -> Callable[[], None]:
        return lambda: self._ask(1, at)

    def _pending(self) -> int:
        """Tokens that the draft computes before it has a first guess."""
        if not self._is_told:
            return self._request.num_prompt_tokens + self.answer.num_tokens
        return max(self._new_tokens, 1)

    def _ask(self, pending: int, at: Round) -> None:
        """Have the target verify."""
        count = at.accepted + 1
        target = self._sim.targets.engines[self._target]
        work = Verification(
            self._number,
            pending,
            at.nodes,
            self._left == count,
            lambda: self._sim.wire(lambda: self._verified(at)),
        )
        self._sim.wire(lambda: target.verify(work))

    def _verified(self, at: Round) -> None:
        sim, count = self._sim, at.accepted + 1
        if self.answer.marks:
            sim.count(at)
        # A draft holds the path it drew, but for its last token.
        self._new_tokens = 2 if at.depth and at.accepted == at.depth else 1
        self._left -= count
        self.answer.marks.append((sim.events.now, count))
        if self._left:
            sim.events.after(sim.devices.router_s, self._next)
            return
        sim.targets.leave(self._target)
        sim.targets.engines[self._target].leave(self._number)
        if self._draft is not None:
            sim.drafts.leave(self._draft)
        sim.ended(self.answer)


class _Simulation:
    """A run: the replicas, who asks, and what is counted."""

    def __init__(self, recording: Recording, fleet: Fleet, crowd: Crowd) -> None:
        self.events = Events()
        self.devices = recording.devices
        self._fleet, self._crowd = fleet, crowd
        events, devices = self.events, self.devices
        self.targets = _Pool(
            [SimTarget(events, devices, max_rows=fleet.max_rows) for _ in range(fleet.targets)]
        )
        self.drafts = _Pool([SimDraft(events, devices) for _ in range(fleet.drafts)])
        self._requests = enumerate(islice(cycle(recording.requests), crowd.num_requests))
        self._answers: list[Answer] = []
        self._rounds = self._drafted = self._accepted = 0

    def run(self) -> Simulated:
        """Until everybody is answered."""
        crowd = self._crowd
        if crowd.rate is None:
            for _ in range(crowd.users):
                self.events.after(0.0, self._come)
        else:
            rng = random.Random(crowd.seed)
            at_s = 0.0
            for _ in range(crowd.num_requests):
                at_s += rng.expovariate(crowd.rate)
                self.events.after(at_s, self._come)
        self.events.run()
        return self._result()

    def wire(self, arrive: Callable[[], None]) -> None:
        """One way of a call."""
        self.events.after(self.devices.wire_s / 2, arrive)

    def count(self, at: Round) -> None:
        """A round after a prompt's own."""
        self._rounds += 1
        self._drafted += at.nodes
        self._accepted += at.accepted

    def ended(self, answer: Answer) -> None:
        """A request has: its user may ask again."""
        self._answers.append(answer)
        if self._crowd.rate is None:
            self._come()

    def _come(self) -> None:
        for number, request in self._requests:  # the next one, if any is left
            _Session(self, number, request)
            return

    def _result(self) -> Simulated:
        answers, seconds = self._answers, self.events.now
        targets, drafts = self.targets.engines, self.drafts.engines
        firsts = [at.first_s for at in answers]
        others = [at.per_token_s for at in answers]
        waited_s = sum(at.spent.totals()[Spending.WAITING] for at in targets)
        num_steps = sum(at.num_steps for at in targets)
        tokens = sum(at.num_tokens for at in answers)
        return Simulated(
            self._fleet,
            Counts(len(answers), tokens, self._rounds, self._drafted, self._accepted),
            seconds,
            tokens_per_s(answers),
            percentile(firsts, 0.5),
            percentile(firsts, 0.95),
            percentile(others, 0.5),
            percentile(others, 0.95),
            sum(at.busy_s for at in targets) / seconds / len(targets),
            sum(at.busy_s for at in drafts) / seconds / max(len(drafts), 1),
            waited_s / seconds / len(targets),
            sum(at.num_rows for at in targets) / num_steps,
            self.events.num_passed,
        )

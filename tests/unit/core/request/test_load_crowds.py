"""At every concurrency `auto` keeps up with the better of plain decoding and always speculating."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import pytest

from slipstream.core.draft.cape import Chain, cape_tree
from slipstream.core.policy.cost_curve import CostCurve
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.policy.planner import Planner
from slipstream.core.policy.profile import DraftFacts, Profile, resolve
from slipstream.core.round import TOO_DEAR
from slipstream.core.row_costs import Offer
from slipstream.core.types import FinishReason, Plan, Proposal, StopPolicy, Verdict
from slipstream.verifying.meter import LoadMeter, StepCost
from support.models.rounds import round_of

SURE, UNSURE = 0.95, 0.1
"""Confidence of a draft in a token, which is also how often it is right."""
RUNNER_UP = 0.4
"""Chance that a runner-up is right where the draft is wrong: half of it is the first's."""
LENGTH = 96
"""Tokens of a request. Another follows at once, with a planner of its own."""
WIDTH = 7
SHARES = [RUNNER_UP * 0.5 ** (1 + rank) for rank in range(WIDTH)]
NOTHING = Proposal()
PROFILE = Profile(stop=StopPolicy.FIXED, max_depth=8, max_nodes=15)
POINTS = sorted({*range(1, 33, 3), *(at + more for at in range(32, 513, 16) for more in (0, 1))})


@dataclass(frozen=True)
class Machine:
    """What steps cost: a forward of the target by rows and sessions, a level of the draft by
    sessions. `is_shared`: one at a time. A step waits for whoever is drafting."""

    target_s: Callable[[int, int], float]
    draft_s: Callable[[int], float]
    is_shared: bool = True


@dataclass(frozen=True)
class Drafted:
    """A proposal under way: the confidence in each token of its chain, and leaves beside each."""

    session: int
    began: float
    proposal: Proposal = NOTHING
    tops: tuple[float, ...] = ()
    num_leaves: tuple[int, ...] = ()
    levels_left: int = 0
    waited_s: float | None = None


class World:
    """So many sessions in one mode. `sure` is the share of slots where the draft is sure."""

    def __init__(
        self, machine: Machine, mode: Mode, *, sessions: int, sure: float, seed: int = 0
    ) -> None:
        self._machine, self._mode, self._sure = machine, mode, sure
        self._random = Random(seed)
        self.meter = LoadMeter(CostCurve([(rows, machine.target_s(rows, 1)) for rows in POINTS]))
        self._planners = [self._planner() for _ in range(sessions)]
        self._left = [1 + self._random.randrange(LENGTH) for _ in range(sessions)]
        self._drafting: list[Drafted] = []
        self._waiting = [Drafted(at, 0.0) for at in range(sessions)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._busy: set[str] = set()
        self.now = 0.0
        self.num_tokens = 0
        self.num_steps = 0

    def speed(self, steps: int) -> float:
        """Tokens a second over so many steps of the target, the first tenth apart."""
        self._run(steps // 10)
        start, before = self.now, self.num_tokens
        self._run(steps)
        return (self.num_tokens - before) / (self.now - start)

    def _run(self, steps: int) -> None:
        while self.num_steps < steps:
            self._start_steps()
            self.now, _, action = heapq.heappop(self._events)
            action()

    def _planner(self) -> Planner:
        options = SpeculationOptions(mode=self._mode)
        facts = DraftFacts("glide", PROFILE, step_s=self._machine.draft_s(1))
        return Planner(resolve(options, facts))

    def _start_steps(self) -> None:
        holds = self._drafting or "draft" in self._busy
        if self._waiting and not holds and self._is_free("target"):
            group, self._waiting = self._waiting, []
            rows = sum(1 + len(drafted.proposal.tree) for drafted in group)
            seconds = self._machine.target_s(rows, len(group))
            self._occupy("target", seconds, lambda: self._verified(group, rows, seconds))
        if self._drafting and self._is_free("draft"):
            level, self._drafting = self._drafting, []
            self._occupy("draft", self._machine.draft_s(len(level)), lambda: self._grown(level))

    def _is_free(self, device: str) -> bool:
        return not self._busy if self._machine.is_shared else device not in self._busy

    def _occupy(self, device: str, seconds: float, then: Callable[[], None]) -> None:
        def done() -> None:
            self._busy.discard(device)
            then()

        self._busy.add(device)
        heapq.heappush(self._events, (self.now + seconds, next(self._order), done))

    def _grown(self, level: list[Drafted]) -> None:
        for drafted in level:
            rest = replace(drafted, levels_left=drafted.levels_left - 1)
            if rest.levels_left:
                self._drafting.append(rest)
                continue
            self._waiting.append(replace(rest, waited_s=self.now - rest.began))

    def _verified(self, group: list[Drafted], rows: int, seconds: float) -> None:
        self.num_steps += 1
        offer = self.meter.offer(len(group))
        for drafted in group:
            self._settle(drafted, offer)
        self.meter.record(StepCost(rows, len(group), 0, seconds))

    def _settle(self, drafted: Drafted, offer: Offer) -> None:
        at, accepted = drafted.session, self._accepted(drafted)
        num_tokens = min(accepted + 1, self._left[at])
        self._left[at] -= num_tokens
        self.num_tokens += num_tokens
        reason = None if self._left[at] else FinishReason.LENGTH
        verdict = Verdict((0,) * num_tokens, min(accepted, num_tokens), reason, offer=offer)
        self._planners[at].record(round_of(drafted.proposal, verdict, drafted.waited_s))
        if reason is not None:
            self._left[at], self._planners[at] = LENGTH, self._planner()
        plan = self._planners[at].plan(self._left[at], verdict)
        if plan.max_depth < 1:
            self._waiting.append(Drafted(at, self.now))
        else:
            self._drafting.append(self._proposed(at, plan))

    def _accepted(self, drafted: Drafted) -> int:
        for depth, (top, leaves) in enumerate(zip(drafted.tops, drafted.num_leaves, strict=True)):
            if self._random.random() >= top:
                return depth + (self._random.random() < RUNNER_UP * (1 - 0.5**leaves))
        return len(drafted.tops)

    def _proposed(self, at: int, plan: Plan) -> Drafted:
        """A chain that goes on while the draft is sure, and CaPE's leaves beside it."""
        worth = plan.worth or 0.0
        tops: list[float] = []
        reach = 1.0
        while len(tops) < min(plan.max_depth, plan.max_nodes):
            tops.append(SURE if self._random.random() < self._sure else UNSURE)
            reach *= tops[-1]
            if tops[-1] == UNSURE or reach < worth:
                break
        chain = Chain(
            range(len(tops)),
            [range(100, 100 + WIDTH)] * len(tops),
            tops,
            tops,
            [[(1 - top) * share for share in SHARES] for top in tops],
        )
        tree = cape_tree(chain, plan.max_nodes, prices=plan.row_prices)
        tops = tops[: max(tree.depths(), default=0)]
        nodes = zip(tree.tokens, tree.parents, strict=True)
        leaves = [parent for token, parent in nodes if token >= 100]
        beside = [leaves.count(depth - 1) for depth in range(len(tops))]
        proposal = Proposal(tree) if len(tree) else Proposal(stopped_by=TOO_DEAR)
        num_levels = max(len(tops), 1)
        return Drafted(at, self.now, proposal, tuple(tops), tuple(beside), num_levels)


ROUND_S = 0.03


def staircase(tile, step):
    """A CPU with tiled products: every further tile adds `step` rounds, every row a hundredth."""

    def seconds(rows, sessions):
        tiles = -(-rows // tile)
        return ROUND_S * (1 + step * (tiles - 1) + 0.01 * (rows - 1) + 0.004 * (sessions - 1))

    return seconds


TARGETS = {
    "cpu": staircase(32, 0.95),
    # Nothing up to the knee, and as many times more as there are rows beyond.
    "gpu": lambda rows, sessions: ROUND_S * max(1.0, rows / 48) + 1e-6 * rows,
    "steep": lambda rows, sessions: ROUND_S * (1 + 0.03 * rows),
}
DRAFTS = {
    "batched": lambda sessions: 0.03 * ROUND_S,
    "one by one": lambda sessions: (0.02 + 0.012 * sessions) * ROUND_S,
}
CHANCES = {"low": 0.0, "medium": 0.35, "high": 0.9}


def speeds(machine, sessions, sure, *, steps):
    worlds = {mode: World(machine, mode, sessions=sessions, sure=sure) for mode in Mode}
    return {mode: world.speed(steps) for mode, world in worlds.items()}


@pytest.mark.parametrize("acceptance", CHANCES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sessions", [1, 4, 8, 32])
def test_auto_is_never_slower_than_the_better_of_plain_and_always(sessions, target, acceptance):
    """Also where the draft has a machine of its own: beside the eight."""
    draft = DRAFTS["one by one" if sessions in (4, 8) else "batched"]
    machine = Machine(TARGETS[target], draft, is_shared=sessions != 8)
    speed = speeds(machine, sessions, CHANCES[acceptance], steps=max(1000 // sessions, 100))
    assert speed[Mode.AUTO] >= 0.95 * max(speed[Mode.OFF], speed[Mode.FORCED])

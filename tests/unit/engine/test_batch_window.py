"""When the next step starts: batches grow together, and nobody waits in vain for long."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from slipstream.engine.batch_window import BatchWindow

STEP_S = 0.040
Think = Callable[[], float]


@dataclass
class Engine:
    """Plays an engine and its sessions: each is answered by a step, thinks, and comes again."""

    thinks: dict[str, Think]
    now: float = 0.0
    idle_s: float = 0.0
    """Time that went by with work waiting."""
    gathering: BatchWindow = field(default_factory=BatchWindow)
    waiting: set[str] = field(default_factory=set)
    coming: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for at, name in enumerate(self.thinks):
            heapq.heappush(self.coming, (0.013 * at, name))

    def step(self) -> set[str]:
        if not self.waiting:
            self.now = max(self.now, self.coming[0][0])
            self._arrive()
        began = self.now
        while (wait_s := self.gathering.wait_s(self.now)) > 0:
            next_s = self.coming[0][0] if self.coming else float("inf")
            self.now = min(self.now + wait_s, next_s) + 1e-9
            self._arrive()
        self.idle_s += self.now - began
        batch, self.waiting = self.waiting, set()
        self.gathering.started()
        self.now += STEP_S
        self._arrive()
        staying = [name for name in batch if name in self.thinks]
        self.gathering.stepped(staying, self.now, seconds=STEP_S)
        for name in staying:
            heapq.heappush(self.coming, (self.now + self.thinks[name](), name))
        return batch

    def _arrive(self) -> None:
        while self.coming and self.coming[0][0] <= self.now:
            _, name = heapq.heappop(self.coming)
            self.gathering.came(name)
            self.waiting.add(name)


def sizes(engine: Engine, num_steps: int) -> list[int]:
    return [len(engine.step()) for _ in range(num_steps)]


@pytest.mark.parametrize("count", [2, 3, 8, 32])
def test_sessions_that_return_after_varying_times_end_up_in_one_batch(count):
    chance = random.Random(count)
    engine = Engine({str(at): lambda: chance.uniform(0.001, 0.015) for at in range(count)})
    sizes(engine, 60)
    assert sum(sizes(engine, 200)) >= 0.97 * 200 * count


def test_a_single_session_never_waits():
    chance = random.Random(0)
    engine = Engine({"a": lambda: chance.uniform(0, 0.5)})
    sizes(engine, 100)
    assert engine.idle_s == 0


def test_a_session_that_left_is_waited_for_once_and_no_more():
    engine = Engine({name: lambda: 0.005 for name in "abc"})
    sizes(engine, 30)
    engine.thinks["c"] = lambda: 1e9
    sizes(engine, 1)
    before = engine.idle_s
    assert sizes(engine, 1) == [2]
    assert engine.idle_s - before == pytest.approx(STEP_S / 2 - 0.005, rel=1e-3)
    before = engine.now
    assert sizes(engine, 20) == [2] * 20
    assert engine.now - before == pytest.approx(20 * (STEP_S + 0.005), rel=1e-3)


def test_a_session_that_has_gone_is_not_waited_for_at_all():
    gathering: BatchWindow = BatchWindow()
    gathering.stepped(["a", "b"], 1.0, seconds=STEP_S)
    gathering.came("a")
    assert gathering.wait_s(1.001) > 0
    gathering.gone("b")
    gathering.gone("unheard of")
    assert gathering.wait_s(1.001) == 0


def test_a_session_that_is_always_late_hardly_costs_the_others_anything():
    engine = Engine({"a": lambda: 0.002, "b": lambda: 0.002, "slow": lambda: 0.9 * STEP_S})
    sizes(engine, 100)
    before = engine.now
    assert sum(sizes(engine, 200)) > 200 * 2
    assert engine.now - before < 1.05 * 200 * (STEP_S + 0.002)


def test_a_session_that_was_slow_for_a_while_is_waited_for_again():
    engine = Engine({name: lambda: 0.005 for name in "abc"})
    sizes(engine, 30)
    engine.thinks["c"] = lambda: 2.0
    sizes(engine, 200)
    engine.thinks["c"] = lambda: 0.005
    sizes(engine, 200)
    assert sizes(engine, 50) == [3] * 50


@pytest.mark.parametrize(("step_s", "num_steps"), [(0.25, 4), (0.02, 50)])
def test_company_is_who_was_here_a_few_steps_or_a_second_ago(step_s, num_steps):
    """A draft, or a router that is busy, takes as long as many short steps."""
    gathering: BatchWindow = BatchWindow()
    assert not gathering.has_company
    gathering.stepped(["a"], 1.0, seconds=step_s)
    for at in range(num_steps):
        assert gathering.has_company
        gathering.stepped([], 2.0 + at, seconds=step_s)
    assert not gathering.has_company
    gathering.stepped(["b"], 9.0, seconds=STEP_S)
    gathering.came("b")
    assert not gathering.has_company

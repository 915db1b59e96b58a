"""The draft that knows the answers, the crowds it drafts for, and the figures that come of them."""

import asyncio
import math
import re
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count

import pytest

import tiny
from slipstream.bench.breakeven.costs import Calls, DraftCost, devices, time_steps
from slipstream.bench.breakeven.crowd import AllOffered
from slipstream.bench.breakeven.figures import break_even_figures, point_figures
from slipstream.bench.breakeven.oracle import (
    Delay,
    Luck,
    OracleDraft,
    tokens_per_round,
    typical,
)
from slipstream.bench.breakeven.plan import BreakEvenPlan, Point, Sweeps
from slipstream.bench.breakeven.run import Tally, Times, run_break_even
from slipstream.bench.breakeven.stand import Stand
from slipstream.core.errors import InvalidRequest
from slipstream.core.inline import finished
from slipstream.core.types import Delta, Plan, Session
from slipstream.engine.thread import EngineThread
from slipstream.sizing.break_even import Setting
from slipstream.sizing.making import expected_tokens
from slipstream.sizing.recording import Devices
from slipstream.target.batcher import BatchedTarget
from slipstream.target.works import Step

PROMPT = (1, 2, 3)
ANSWER = tuple(range(10, 40))
DEVICES = Devices(((1, 0.020), (16, 0.022), (128, 0.090)), 0.004, wire_s=1e-6)


def oracle(acceptance, *, seed=0, delay=None, waited=None):
    async def wait(seconds):
        if waited is not None:
            waited.append(seconds)

    return OracleDraft(
        {PROMPT: ANSWER},
        Luck(acceptance, seed),
        delay or Delay(),
        vocab_size=48,
        wait=wait,
    )


async def no_wait(seconds):
    """Time stands still."""


def proposed(draft, session_id, output=(), *, depth=4):
    session = Session(session_id, len(PROMPT), 30)
    delta = Delta(0, (*PROMPT, *output))
    return finished(draft.propose(session, delta, Plan(depth, depth))).tree.tokens


def num_right(chain, start=0):
    pairs = zip(chain, ANSWER[start:], strict=False)
    return next((at for at, (ours, right) in enumerate(pairs) if ours != right), len(chain))


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.9])
def test_the_oracle_is_right_as_often_as_it_is_told(acceptance):
    draft, trials = oracle(acceptance), 4000
    kept = Counter(num_right(proposed(draft, f"s{number}")) for number in range(trials))
    for length in range(5):
        chance = acceptance**length * (1 if length == 4 else 1 - acceptance)
        deviation = math.sqrt(chance * (1 - chance) / trials)
        assert kept[length] / trials == pytest.approx(chance, abs=4.5 * deviation)
    mean = sum((1 + length) * times for length, times in kept.items()) / trials
    assert mean == pytest.approx(expected_tokens(acceptance, 4), abs=0.1)


def test_behind_a_wrong_token_every_other_one_is_wrong():
    draft = oracle(0.5)
    for number in range(200):
        chain = proposed(draft, f"s{number}", depth=8)
        right = num_right(chain)
        assert all(ours != true for ours, true in zip(chain[right:], ANSWER[right:8], strict=True))


def test_whoever_asks_again_hears_the_same_and_another_seed_says_something_else():
    chains = [
        [proposed(draft, "s", ANSWER[:at]) for at in range(20)]
        for draft in (oracle(0.5), oracle(0.5), oracle(0.5, seed=1))
    ]
    assert chains[0] == chains[1] != chains[2]


def test_tokens_are_right_by_themselves_wherever_a_round_begins():
    draft = oracle(0.5)
    alone = [num_right(proposed(draft, "s", ANSWER[:at], depth=1), at) for at in range(20)]
    chain = proposed(draft, "s", depth=20)
    assert num_right(chain) == next((at for at, right in enumerate(alone) if not right), 20)


@pytest.mark.parametrize(("acceptance", "right"), [(0.0, 0), (1.0, 6)])
def test_an_oracle_may_be_right_never_or_always(acceptance, right):
    assert num_right(proposed(oracle(acceptance), "s", depth=6)) == right


@pytest.mark.parametrize("acceptance", [0.2, 0.7, 0.95])
def test_of_some_draws_the_most_typical_one_is_run(acceptance):
    names, luck = ["a", "b"], Luck(acceptance, 3)
    chosen = typical(luck, names, depth=4, num_tokens=60)
    others = [replace(luck, seed=3 * 16 + number) for number in range(16)]
    expected = expected_tokens(acceptance, 4)
    far = [abs(tokens_per_round(at, names, depth=4, num_tokens=60) - expected) for at in others]
    assert chosen in others
    assert far[others.index(chosen)] == min(far) < 0.05 * expected
    assert chosen == typical(luck, names, depth=4, num_tokens=60)


def test_rounds_are_reckoned_as_the_oracle_makes_them():
    luck, at, rounds = Luck(0.5, 2), 1, 0
    while at <= 20:
        draft = OracleDraft({PROMPT: ANSWER}, luck, Delay(), vocab_size=48, wait=no_wait)
        at += num_right(proposed(draft, "s", ANSWER[:at]), at) + 1
        rounds += 1
    assert tokens_per_round(luck, ["s"], depth=4, num_tokens=20) == (at - 1) / rounds


def test_a_proposal_takes_its_tokens_and_its_way():
    waited = []
    proposed(oracle(0.5, delay=Delay(0.01, 0.005), waited=waited), "s", depth=4)
    assert waited == [pytest.approx(4 * 0.01 + 0.005)]


def test_nothing_is_drafted_behind_the_known_answer():
    assert len(proposed(oracle(1.0), "s", ANSWER[:28], depth=4)) == 2
    with pytest.raises(InvalidRequest, match="no answer is known"):
        finished(oracle(1.0).propose(Session("s", 2, 4), Delta(0, (7, 7)), Plan(1, 1)))


@asynccontextmanager
async def tiny_stand():
    steps: list[Step] = []
    prompts = tuple(tuple(tiny.tokens(12, seed)) for seed in range(3))
    thread = EngineThread("target")
    target = BatchedTarget(tiny.local_target(tiny.causal()), thread, on_step=steps.append)
    try:
        yield Stand(AllOffered(target), prompts, tiny.VOCAB, steps=steps)
    finally:
        await target.close()
        thread.close()


def plan_of(**values):
    base = Point(0.6, Setting(3, 0.0, 0.0, 1))
    sweeps = Sweeps(base, (0.0, 0.3, 1.0), (0.5,), (0.001,), (2,))
    return BreakEvenPlan(sweeps, num_tokens=10, num_pairs=2, cost_rounds=2, **values)


def run(plan):
    """With a clock that ticks: nothing here is about how long anything takes."""
    ticks = count(1)

    async def wait(seconds):
        await asyncio.sleep(0)

    async def measured():
        async with tiny_stand() as stand:
            times = Times(lambda: next(ticks) / 1000, wait)
            return await run_break_even(stand, plan, times, advance=lambda name: None)

    return asyncio.run(measured())


@pytest.fixture(scope="module")
def measured():
    return run(plan_of())


def test_outputs_are_those_of_plain_decoding_whatever_the_oracle_says(measured):
    assert len(measured.points) == 7
    for tally in measured.points.values():
        assert tally.num_same == tally.num_outputs > 0


def test_rounds_make_as_many_tokens_as_the_luck_allows(measured):
    found = {point.acceptance: tally.tokens_per_round for point, tally in measured.points.items()}
    assert found[0.0] == pytest.approx(1)
    assert found[1.0] == pytest.approx(4)
    assert 1 <= found[0.3] <= 4


def test_every_point_is_in_its_sweeps_beside_the_curve(measured):
    figures = break_even_figures(plan_of(), measured)
    assert set(figures["sweeps"]) == {"acceptance", "cost_ratio", "rtt_ms", "sessions"}
    for name, points in figures["sweeps"].items():
        values = [point[name] for point in points]
        assert values == sorted(set(values)) and len(values) >= 2
        for point in points:
            assert point["speedup"]["count"] == 2
            assert point["deviation"] == point["speedup"]["median"] / point["model"] - 1
    assert figures["num_identical"] == figures["num_outputs"]
    assert figures["draft"] == {"acceptance": 0.6, "depth": 3}


def test_steps_of_the_size_that_was_asked_for_are_timed():
    async def timed():
        async with tiny_stand() as stand:
            return await time_steps(stand, [(1, 1), (4, 1), (2, 3)], 2, longest=40)

    assert set(asyncio.run(timed())) == {(1, 1), (4, 1), (2, 3)}


def test_a_step_larger_than_a_target_makes_is_said_to_be_missing():
    async def timed():
        async with tiny_stand() as stand:
            return await time_steps(stand, [(100, 3)], 1, longest=40)

    with pytest.raises(InvalidRequest, match="no step had 100 rows of each of 3 sessions"):
        asyncio.run(timed())


def test_what_sessions_add_to_a_step_is_fitted():
    steps = {(1, 1): 0.02, (5, 1): 0.02, (20, 1): 0.03, (1, 4): 0.026, (5, 4): 0.036}
    found = devices(steps, Calls(0.0005, 0.0001), DraftCost(0.001, 0.0002))
    assert found.verify == ((1, 0.02), (5, 0.02), (20, 0.03))
    assert found.verify_session_s == pytest.approx(0.002)
    assert (found.wire_s, found.router_s) == (0.0005, 0.0001)
    assert (found.level_s, found.level_row_s) == (0.001, 0.0002)


def test_luck_is_out_of_what_a_round_is_said_to_cost():
    point = Point(0.5, Setting(4, 0.1))
    cost = (0.020 + (0.022 - 0.020) * 4 / 15 + 4 * 0.1 * 0.020) / 0.020
    tally = Tally(ratios=[3.0 / cost], tokens=30.0, rounds=10.0)  # luckier than 0.5
    found = point_figures(point, tally, DEVICES)
    assert found["deviation"] > 0.5
    assert found["round_cost_deviation"] == pytest.approx(0, abs=1e-3)
    assert found["model"] == pytest.approx(expected_tokens(0.5, 4) / cost, rel=1e-3)


def test_the_point_in_the_middle_is_of_every_sweep_and_measured_once():
    sweeps = Sweeps()
    points = sweeps.points()
    assert all(sweeps.base in of for of in points.values())
    assert len(sweeps.distinct()) == sum(map(len, points.values())) - 3


def test_all_steps_that_there_will_be_are_timed():
    plan = plan_of()
    assert max(rows * sessions for rows, sessions in plan.sizes()) == 8
    assert plan.num_runs(has_draft=False) == 2 * 2 * 7
    assert plan.num_runs(has_draft=True) == 2 * 2 * 9


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_tokens": 1}, "num_tokens is 1"),
        ({"num_pairs": 0}, "num_pairs is 0"),
        ({"sweeps": Sweeps(Point(0.5, Setting(41)))}, "depth is 41"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(change, reason):
    with pytest.raises(InvalidRequest, match=re.escape(reason)):
        replace(BreakEvenPlan(), **change)

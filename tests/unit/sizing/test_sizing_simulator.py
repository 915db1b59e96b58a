"""Simulated drafts and targets: what can be worked out by hand, and laws of any run."""

from dataclasses import replace

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.recording import (
    DeviceTimes,
    RandomRounds,
    RecordedRequest,
    Recording,
    RoundShape,
)
from slipstream.sizing.simulator import SimFleet, SimLoad, percentile, simulate, tokens_per_s

TIMES = DeviceTimes(
    ((1, 0.04), (32, 0.044), (256, 0.15)), 0.008, 0.001, 0.001, call_s=0.002, router_s=0.001
)
RANDOM = RandomRounds(0.75, 4, 40, 16)


def one(*rounds, times=TIMES, prompt=1):
    return Recording(times, (RecordedRequest(prompt, rounds),))


def test_a_round_alone_takes_its_draft_its_target_and_its_calls():
    run = simulate(one(RoundShape(3, 3, 1), RoundShape(2, 2, 2)), SimFleet(1, 1), SimLoad(1))
    curve, calls_s = TIMES.curve(), 2 * 0.002 + 0.001
    prompt_s = 0.002 + curve.seconds(1)
    # The draft reads the prompt and the first token before its first guess; the second round's
    # last guess would be the last token, which is the target's.
    first_s = (0.008 + 0.001) + 2 * 0.008 + curve.seconds(4) + calls_s
    second_s = 2 * 0.008 + curve.seconds(3) + calls_s
    assert run.seconds == pytest.approx(prompt_s + first_s + second_s)
    assert run.first_p50_s == pytest.approx(prompt_s)
    assert run.tokens == 1 + 2 + 3
    assert run.rounds == 2


def test_a_plain_round_alone_takes_its_target_and_its_call():
    run = simulate(one(RoundShape(3, 3, 1)), SimFleet(0, 1), SimLoad(1))
    step_s = TIMES.curve().seconds(1)
    assert run.seconds == pytest.approx(3 * (step_s + 0.002) + 2 * 0.001)
    assert run.rounds == 2


def test_a_long_prompt_is_read_in_steps_and_passes_of_a_limited_size():
    recording = one(RoundShape(1, 1, 1), RoundShape(0, 0, 0), prompt=600)
    run = simulate(recording, SimFleet(1, 1, max_tokens=256), SimLoad(1))
    curve = TIMES.curve()
    steps_s = 2 * curve.seconds(256) + curve.seconds(88) + curve.seconds(2) + curve.seconds(1)
    passes_s = 2 * TIMES.level(256) + TIMES.level(601 - 512)
    calls_s = 4 * 0.002 + 2 * 0.001
    assert run.seconds == pytest.approx(steps_s + passes_s + calls_s)


def test_sessions_share_steps_and_passes():
    recording = one(*[RoundShape(2, 2, 1)] * 20, RoundShape(0, 0, 0))
    flat = replace(recording, times=replace(TIMES, level_token_s=0, verify_session_s=0))
    alone = simulate(flat, SimFleet(1, 1), SimLoad(1))
    together = simulate(flat, SimFleet(1, 1), SimLoad(8, 8))
    assert together.seconds < 2 * alone.seconds
    assert together.tokens_per_step > 2 * alone.tokens_per_step


def test_all_that_was_recorded_happens_whatever_the_fleet():
    recording = Recording(TIMES, RANDOM.requests(6, 0))
    runs = [
        simulate(recording, SimFleet(*size), SimLoad(24, 5)) for size in ((1, 1), (3, 1), (2, 4))
    ]
    assert len({(run.requests, run.tokens, run.rounds) for run in runs}) == 1
    assert (runs[0].requests, runs[0].tokens) == (24, 24 * 40)


def test_the_same_seed_gives_the_same_run():
    recording = Recording(TIMES, RANDOM.requests(16, 0))
    load = SimLoad(30, rate=4.0, seed=3)
    first, again = (simulate(recording, SimFleet(1, 2), load) for _ in range(2))
    assert first == again
    assert first != simulate(recording, SimFleet(1, 2), replace(load, seed=4))


def test_no_engine_is_busy_for_more_than_all_the_time():
    recording = Recording(replace(TIMES, level_s=0.03), RANDOM.requests(16, 0))
    for size in ((1, 1), (2, 1), (1, 3)):
        run = simulate(recording, SimFleet(*size), SimLoad(40, 10))
        assert 0 < run.target_utilisation <= 1
        assert 0 < run.draft_utilisation <= 1
        assert run.target_utilisation + run.draft_wait <= 1 + 1e-9


def test_drafts_help_where_they_are_short():
    recording = Recording(replace(TIMES, level_s=0.02, level_token_s=0.01), RANDOM.requests(16, 0))
    rates = [simulate(recording, SimFleet(n, 1), SimLoad(48, 12)).tokens_per_s for n in (1, 2, 4)]
    assert rates[0] * 1.2 < rates[1] < rates[2]


def test_requests_that_come_faster_than_they_can_be_answered_wait():
    recording = Recording(TIMES, RANDOM.requests(16, 0))
    slow, fast = (
        simulate(recording, SimFleet(1, 1), SimLoad(40, rate=rate)).first_p95_s
        for rate in (0.5, 50.0)
    )
    assert slow < 0.2 < fast


def test_requests_are_spread_over_replicas():
    recording = Recording(TIMES, RANDOM.requests(16, 0))
    single = simulate(recording, SimFleet(1, 1), SimLoad(12, 3))
    spread = simulate(recording, SimFleet(3, 3), SimLoad(36, 9))
    assert spread.tokens_per_s == pytest.approx(3 * single.tokens_per_s, rel=0.1)


def test_hundreds_of_replicas_are_a_run_like_any_other():
    recording = Recording(TIMES, RandomRounds(0.75, 4, 16, 16).requests(16, 0))
    run = simulate(recording, SimFleet(100, 200), SimLoad(800, 800))
    assert run.tokens == 800 * 16


def test_throughput_is_of_the_middle_of_a_run():
    steady = [(0.0, 0), *((float(at), 2) for at in range(1, 11))]
    assert tokens_per_s([steady]) == pytest.approx(2)
    late = [(0.0, 0), (9.5, 100), (10.0, 1)]
    assert tokens_per_s([late]) == pytest.approx(100 / 9.5)


def test_percentiles_are_values_that_there_are():
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([3, 1, 2], 0.95) == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: SimFleet(-1, 1),
        lambda: SimFleet(1, 0),
        lambda: SimLoad(0),
        lambda: SimLoad(1, users=0),
        lambda: SimLoad(1, rate=0.0),
    ],
)
def test_fleets_without_targets_and_loads_without_requests_are_refused(make):
    with pytest.raises(InvalidRequest):
        make()

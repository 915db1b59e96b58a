"""Simulated drafts and targets: what can be worked out by hand, and laws of any run."""

from dataclasses import replace

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.making import Guess, made
from slipstream.sizing.outcome import Answer, percentile, tokens_per_s
from slipstream.sizing.recording import Devices, RecordedRequest, Recording, Round
from slipstream.sizing.simulator import Crowd, Fleet, simulate

DEVICES = Devices(
    ((1, 0.04), (32, 0.044), (256, 0.15)), 0.008, 0.001, 0.001, wire_s=0.002, router_s=0.001
)
GUESS = Guess(0.75, 4, 40, 16)


def one(*rounds, devices=DEVICES, prompt=1):
    return Recording(devices, (RecordedRequest(prompt, rounds),))


def test_a_round_alone_takes_its_draft_its_target_and_its_calls():
    run = simulate(one(Round(3, 3, 1), Round(2, 2, 2)), Fleet(1, 1), Crowd(1))
    curve, calls_s = DEVICES.curve(), 2 * 0.002 + 0.001
    prompt_s = 0.002 + curve.seconds(1)
    # The draft reads the prompt and the first token before its first guess; the second round's
    # last guess would be the last token, which is the target's.
    first_s = (0.008 + 0.001) + 2 * 0.008 + curve.seconds(4) + calls_s
    second_s = 2 * 0.008 + curve.seconds(3) + calls_s
    assert run.seconds == pytest.approx(prompt_s + first_s + second_s)
    assert run.first_p50_s == pytest.approx(prompt_s)
    assert run.counts.tokens == 1 + 2 + 3
    assert run.counts.rounds == 2


def test_a_plain_round_alone_takes_its_target_and_its_call():
    run = simulate(one(Round(3, 3, 1)), Fleet(0, 1), Crowd(1))
    step_s = DEVICES.curve().seconds(1)
    assert run.seconds == pytest.approx(3 * (step_s + 0.002) + 2 * 0.001)
    assert run.counts.drafted == 0
    assert run.counts.rounds == 2


def test_a_long_prompt_is_read_in_steps_and_passes_of_a_limited_size():
    recording = one(Round(1, 1, 1), Round(0, 0, 0), prompt=600)
    run = simulate(recording, Fleet(1, 1, max_rows=256), Crowd(1))
    curve = DEVICES.curve()
    steps_s = 2 * curve.seconds(256) + curve.seconds(88) + curve.seconds(2) + curve.seconds(1)
    passes_s = 2 * DEVICES.level(256) + DEVICES.level(601 - 512)
    calls_s = 4 * 0.002 + 2 * 0.001
    assert run.seconds == pytest.approx(steps_s + passes_s + calls_s)


def test_sessions_share_steps_and_passes():
    recording = one(*[Round(2, 2, 1)] * 20, Round(0, 0, 0))
    flat = replace(recording, devices=replace(DEVICES, level_row_s=0, verify_session_s=0))
    alone = simulate(flat, Fleet(1, 1), Crowd(1))
    crowd = simulate(flat, Fleet(1, 1), Crowd(8, 8))
    assert crowd.seconds < 2 * alone.seconds
    assert crowd.rows_per_step > 2 * alone.rows_per_step


def test_all_that_was_recorded_happens_whatever_the_fleet():
    recording = made(GUESS, DEVICES, num_requests=6)
    runs = [simulate(recording, Fleet(*size), Crowd(24, 5)) for size in ((1, 1), (3, 1), (2, 4))]
    assert len({run.counts for run in runs}) == 1
    counts = runs[0].counts
    assert (counts.requests, counts.tokens) == (24, 24 * 40)
    assert counts.tokens == counts.requests + counts.rounds + counts.accepted


def test_the_same_seed_gives_the_same_run():
    recording = made(GUESS, DEVICES)
    crowd = Crowd(30, rate=4.0, seed=3)
    first, again = (simulate(recording, Fleet(1, 2), crowd) for _ in range(2))
    assert first == again
    assert first != simulate(recording, Fleet(1, 2), replace(crowd, seed=4))


def test_nobody_works_more_than_all_the_time():
    recording = made(GUESS, replace(DEVICES, level_s=0.03))
    for size in ((1, 1), (2, 1), (1, 3)):
        run = simulate(recording, Fleet(*size), Crowd(40, 10))
        assert 0 < run.target_utilisation <= 1
        assert 0 < run.draft_utilisation <= 1
        assert run.target_utilisation + run.draft_wait <= 1 + 1e-9


def test_drafts_help_where_they_are_short():
    recording = made(GUESS, replace(DEVICES, level_s=0.02, level_row_s=0.01))
    rates = [simulate(recording, Fleet(n, 1), Crowd(48, 12)).tokens_per_s for n in (1, 2, 4)]
    assert rates[0] * 1.2 < rates[1] < rates[2]


def test_requests_that_come_faster_than_they_can_be_answered_wait():
    recording = made(GUESS, DEVICES)
    slow, fast = (
        simulate(recording, Fleet(1, 1), Crowd(40, rate=rate)).first_p95_s for rate in (0.5, 50.0)
    )
    assert slow < 0.2 < fast


def test_requests_are_spread_over_replicas():
    recording = made(GUESS, DEVICES)
    single = simulate(recording, Fleet(1, 1), Crowd(12, 3))
    spread = simulate(recording, Fleet(3, 3), Crowd(36, 9))
    assert spread.tokens_per_s == pytest.approx(3 * single.tokens_per_s, rel=0.1)


def test_hundreds_of_replicas_are_a_run_like_any_other():
    recording = made(Guess(0.75, 4, 16, 16), DEVICES)
    run = simulate(recording, Fleet(100, 200), Crowd(800, 800))
    assert run.counts.tokens == 800 * 16


def test_throughput_is_of_the_middle_of_a_run():
    steady = Answer(0.0, [(float(at), 2) for at in range(1, 11)])
    assert tokens_per_s([steady]) == pytest.approx(2)
    late = Answer(0.0, [(9.5, 100), (10.0, 1)])
    assert tokens_per_s([late]) == pytest.approx(100 / 9.5)


def test_percentiles_are_values_that_there_are():
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([3, 1, 2], 0.95) == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fleet(-1, 1),
        lambda: Fleet(1, 0),
        lambda: Crowd(0),
        lambda: Crowd(1, users=0),
        lambda: Crowd(1, rate=0.0),
    ],
)
def test_fleets_and_crowds_have_somebody_in_them(make):
    with pytest.raises(InvalidRequest):
        make()

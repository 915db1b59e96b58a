"""Replays of recorded replies: planners that know more are no slower, and ours comes close."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from slipstream.bench import replay
from slipstream.bench.replay import CURVES, WIDTH, MachineCosts, Recording, pace, paces, shipped
from slipstream.core.policy.cost_curve import learn
from slipstream.core.policy.profile import Profile
from slipstream.core.row_costs import Offer, RowCosts
from slipstream.core.types import SamplingParams, Session, StopPolicy
from slipstream.models.scorer import Candidates

SHARES = (0.6, 0.15, 0.08, 0.04, 0.02, 0.01, 0.005, 0.005)
PROFILE = Profile(stop=StopPolicy.COST, max_nodes=23)
MACHINES = {
    name: MachineCosts(0.01, rows, step_s=0.0003, start_s=0.0005) for name, rows in CURVES.items()
}


@dataclass(frozen=True)
class Believed(MachineCosts):
    believed: Offer = field(kw_only=True)

    def offer(self):
        return self.believed


DEAR = MachineCosts(0.01, RowCosts.straight(1.0), step_s=0.01)
FREE = MachineCosts(0.01, RowCosts.straight(0.0), step_s=0.0)


def recording_of(draw, *, shares=SHARES, length=128, depth=8, temperature=0.0):
    """A reply without repetitions whose every token is a candidate of each rank as often as
    `shares` say, and of none otherwise."""
    tokens = tuple(range(length))
    positions = [
        tuple(_candidates(draw, token, shares) for token in tokens[place : place + depth])
        for place in range(1, length)
    ]
    session = Session("replay", 4, length, SamplingParams(temperature=temperature))
    prompt = tuple(range(length, length + 4))
    return Recording(session, prompt, tokens, tuple(positions))


def _candidates(draw, token, shares):
    shares = (*shares, *(0.0,) * (WIDTH - len(shares)))
    [rank] = draw.choices(range(WIDTH + 1), (*shares, max(1 - sum(shares), 0.0)))
    wrong = [10**6 + number for number in range(WIDTH)]
    tokens = tuple([*wrong[:rank], token, *wrong[rank:]][:WIDTH])
    return Candidates(tokens, SHARES, SHARES[0], 1.0)


def recordings_of(**changes):
    draw = Random(1)
    return [recording_of(draw, **changes) for _ in range(12)]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ours_comes_within_two_percent_of_a_planner_that_knows_how_often_ranks_are_right(
    machine, temperature
):
    recordings = recordings_of(temperature=temperature)
    ours, ranks, _ = paces(recordings, PROFILE, MACHINES[machine])
    assert ranks > 1.1
    assert ours >= 0.98 * ranks
    ours, ranks, _ = paces(recordings, PROFILE, MACHINES[machine], replay.FIRST_TOKENS)
    assert ours >= 0.95 * ranks


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("start_s", [0.0, 0.2, 0.3])
def test_costs_that_were_taken_beside_a_busy_neighbour_hardly_cost_speed(machine, start_s):
    recordings, costs, now = recordings_of(), MACHINES[machine], [start_s]

    def forward(rows, sessions):
        now[0] += costs.verification(rows - 1) * (2.5 if now[0] % 0.6 < 0.5 else 1.0)

    points = learn(forward, lambda: now[0], seconds=2.0).points
    offer = Offer(33, points[0][1], RowCosts.rising(points))
    known = Believed(costs.round_s, costs.rows, costs.step_s, costs.start_s, believed=offer)
    own, best = (
        pace([shipped(one, PROFILE, of) for one in recordings], of) for of in (known, costs)
    )
    assert own >= 0.98 * best


@pytest.mark.parametrize("costs", [*MACHINES.values(), DEAR, FREE])
def test_no_planner_is_faster_than_one_that_knows_the_reply(costs):
    for shares in (SHARES, (1.0,), (0.0,), (0.2, 0.2)):
        *others, best = paces(recordings_of(shares=shares, length=24), PROFILE, costs)
        assert best >= max(others) - 1e-9 and others[1] >= 1.0
    assert replay.best_shape(recordings_of(shares=(0.0,)), FREE, 23) == (0, set())


def test_rounds_of_a_replay_bring_the_reply_and_take_what_their_nodes_and_steps_cost():
    recording = recording_of(Random(2), shares=(1.0,), length=10)
    rounds = replay.clairvoyant(recording, MACHINES["AMX"])
    assert [tokens for tokens, _ in rounds] == [9]
    seconds = MACHINES["AMX"].verification(8) + MACHINES["AMX"].proposal(8)
    assert pace([rounds], MACHINES["AMX"]) == pytest.approx(9 * 0.01 / seconds)
    ours = shipped(recording_of(Random(2)), PROFILE, MACHINES["AMX"])
    assert sum(tokens for tokens, _ in ours) == 127
    assert pace([ours], MACHINES["AMX"], 1) == pytest.approx(ours[0][0] * 0.01 / ours[0][1])


def test_looking_copies_up_has_a_price_and_text_that_repeats_is_worth_it():
    new = recording_of(Random(3), shares=(0.0,))
    prompt = (*new.tokens, 500)
    old = replace(new, prompt=prompt, session=replace(new.session, num_prompt_tokens=len(prompt)))
    copying, costs = replace(PROFILE, lookup=1), MACHINES["AVX2"]
    without, looked_up = (pace([shipped(new, of, costs)], costs) for of in (PROFILE, copying))
    assert looked_up < without
    assert pace([shipped(old, copying, costs)], costs) > 1.5


def test_outcomes_end_with_the_first_position_whose_best_candidate_is_wrong():
    [*right] = replay.outcomes([recording_of(Random(4), shares=(1.0,), length=4)])
    [*wrong] = replay.outcomes([recording_of(Random(4), shares=(0.0, 1.0), length=4)])
    assert (len(right), len(wrong)) == (3 + 2 + 1, 3)
    assert all(is_right for _, is_right in right) and not any(is_right for _, is_right in wrong)
    assert pace([], FREE) == 1.0

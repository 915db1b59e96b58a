"""Real services over timed engines: what happens is what was recorded, and what is simulated.

How fast is the benchmark's business: nothing is timed here.
"""

import asyncio

from slipstream.bench.timed.scaling import ScalingPlan, as_chains, run_scaling
from slipstream.sizing.making import Guess, made
from slipstream.sizing.recording import Devices, RecordedRequest, Recording, Round

DEVICES = Devices(((1, 0.01), (32, 0.011), (256, 0.03)), 0.003, 0.0002)
LIMIT_S = 300


def test_services_and_simulation_count_the_same_rounds_and_tokens(tmp_path):
    recording = made(Guess(0.7, 3, 16, 8), DEVICES, num_requests=5)
    plan = ScalingPlan((0, 1), (1,), users_per_target=3, requests_per_user=2)

    async def run():
        async with asyncio.timeout(LIMIT_S):
            return await run_scaling(
                plan, recording, tmp_path / "rounds.jsonl", advance=lambda name: None
            )

    devices, points = asyncio.run(run())
    assert [point.simulated.fleet.drafts for point in points] == [0, 1]
    for point in points:
        assert point.counts == point.simulated.counts
        assert point.num_identical == point.counts.requests == 6
        assert point.counts.tokens == 6 * 16
    plain, drafted = points
    assert plain.counts.drafted == 0 < drafted.counts.accepted
    assert devices.wire_s > 0
    assert devices.verify == DEVICES.verify


def test_trees_become_chains_that_keep_as_much():
    rounds = (Round(3, 9, 2), Round(0, 0, 0))
    recording = as_chains(Recording(DEVICES, (RecordedRequest(4, rounds),)))
    assert recording.requests[0].rounds == (Round(3, 3, 2), Round(0, 0, 0))

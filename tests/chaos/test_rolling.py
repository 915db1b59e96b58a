"""A rolling restart of everything under load: nobody notices."""

from dataclasses import replace

import pytest

from chaos.scenario import disturbed

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(1800),
    pytest.mark.asyncio(loop_scope="module"),
]
NUM_STREAMS = 8


@pytest.mark.parametrize("role", ["router", "target", "draft"])
async def test_a_rolling_restart_under_eight_streams_fails_none(cluster, load, report, role):
    name = f"rolling restart of {role}s"
    async with disturbed(cluster, replace(load, num_streams=NUM_STREAMS), report, name) as chaos:
        for name in cluster.names(role):
            await chaos.some_moment()
            member = cluster.members[name]
            fault = chaos.strike(name)
            num_ended = len(member.codes)
            member.terminate()
            assert await member.ended(num_ended + 1) == 0, member.words()
            await chaos.over(fault)
        await chaos.idle()

"""Processes that stop without ending: streams go on elsewhere, and who wakes changes nothing."""

import asyncio

import pytest

from chaos.scenario import alone, disturbed

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
STOPPED_S = 10
TIMES = 3


@pytest.mark.parametrize("role", ["target", "draft", "router", "redis"])
async def test_a_stop_changes_no_token_and_what_wakes_overwrites_nothing(
    cluster, load, report, role
):
    """Stop one of a role for its time and until all streams it came over have ended, and again."""
    # What a session said before is known to Redis alone, so its next turn has to wait.
    load = alone(load) if role == "redis" else load
    async with disturbed(cluster, load, report, f"stop of {role}") as chaos:
        for _ in range(TIMES):
            (name,) = chaos.one_of(role)
            await chaos.some_moment()
            fault = chaos.strike(name)
            chaos.cluster.members[name].freeze()
            try:
                await asyncio.sleep(STOPPED_S)  # the law is of so long a stop
                await chaos.traffic.ended(fault.streams)
            finally:
                chaos.cluster.members[name].thaw()
            await chaos.over(fault)
        await chaos.idle()

"""Processes that stop without ending: streams go on elsewhere, and who wakes changes nothing."""

import asyncio

import pytest

from chaos.scenario import alone, disturbed

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
STOPPED_S = 10
TIMES = 3


async def stop_often(cluster, load, report, role):
    """Stop one of a role for its time and until all streams it came over have ended, and again."""
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


async def test_streams_of_a_stopped_target_go_on_at_the_other_and_it_frees_them_when_it_wakes(
    cluster, load, report
):
    await stop_often(cluster, load, report, "target")


async def test_a_stopped_draft_costs_no_token(cluster, load, report):
    await stop_often(cluster, load, report, "draft")


async def test_streams_of_a_stopped_router_go_on_at_the_other_undisturbed(cluster, load, report):
    await stop_often(cluster, load, report, "router")


async def test_running_and_new_requests_end_while_redis_is_stopped(cluster, load, report):
    # What a session said before is known to Redis alone, so its next turn has to wait.
    await stop_often(cluster, alone(load), report, "redis")

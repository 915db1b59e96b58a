"""Processes that stop without ending: streams go on elsewhere, and who wakes changes nothing."""

import asyncio

import pytest

from chaos.scenario import alone, disturbed

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
]
STOPPED_S = 10
TIMES = 3


async def stop(chaos, role, *, until_over):
    """Stop one of a role for its time, or until all streams it came over have ended."""
    (name,) = chaos.one_of(role)
    member = chaos.cluster.members[name]
    await chaos.some_moment()
    fault = chaos.strike(name)
    member.freeze()
    try:
        await asyncio.sleep(STOPPED_S)  # the law is of so long a stop
        if until_over:
            await chaos.traffic.ended(fault.streams)
    finally:
        member.thaw()
    await chaos.over(fault)


async def test_streams_of_a_stopped_target_go_on_at_the_other_and_it_frees_them_when_it_wakes(
    cluster, load, report
):
    async with disturbed(cluster, load, report, "stop of a target") as chaos:
        for _ in range(TIMES):
            await stop(chaos, "target", until_over=True)
        await chaos.idle()


async def test_a_stopped_draft_costs_no_token(cluster, load, report):
    async with disturbed(cluster, load, report, "stop of a draft") as chaos:
        for _ in range(TIMES):
            await stop(chaos, "draft", until_over=True)
        await chaos.idle()


async def test_streams_of_a_stopped_router_go_on_at_the_other_which_nobody_overwrites(
    cluster, load, report
):
    async with disturbed(cluster, load, report, "stop of a router") as chaos:
        for _ in range(TIMES):
            await stop(chaos, "router", until_over=True)
        await chaos.idle()


async def test_running_and_new_requests_end_while_redis_is_stopped(cluster, load, report):
    # What a session said before is known to Redis alone, so its next turn has to wait.
    async with disturbed(cluster, alone(load), report, "stop of redis") as chaos:
        for _ in range(TIMES):
            await stop(chaos, "redis", until_over=True)
        await chaos.idle()

"""Kills at random moments, of one member or of two at once, and restarts of one after the other:
no token is lost, doubled or wrong.

The next kill comes when all members serve again, so that a long stream survives several.
"""

from dataclasses import replace

import pytest

from chaos.cluster import ROLES
from chaos.scenario import disturbed

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(7200),
    pytest.mark.asyncio(loop_scope="module"),
]
NUM_STREAMS = 8
PAIRS = [("target", "draft"), ("router", "redis"), ("target", "redis"), ("router", "target")]


@pytest.mark.parametrize("role", ROLES)
async def test_kills_of_one_role_change_no_token(cluster, load, report, num_kills, role):
    async with disturbed(cluster, load, report, f"kill of a {role}") as chaos:
        for _ in range(num_kills):
            await chaos.back(await chaos.kill(*chaos.one_of(role)))
        await chaos.idle()


@pytest.mark.parametrize("roles", PAIRS, ids=" and ".join)
async def test_kills_of_two_at_once_change_no_token(cluster, load, report, num_kills, roles):
    name = f"kill of {' and '.join(roles)} at once"
    async with disturbed(cluster, load, report, name) as chaos:
        for _ in range(max(num_kills // 5, 1)):
            await chaos.back(await chaos.kill(*chaos.one_of(*roles)))
        await chaos.idle()


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

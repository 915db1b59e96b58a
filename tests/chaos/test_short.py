"""The short part: one cluster, one kill of each role, over streams that never stop coming."""

import pytest

from chaos.cluster import ROLES
from chaos.scenario import disturbed
from chaos.traffic import SHORT

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def errands():
    return SHORT


@pytest.fixture(scope="module")
def cluster_options():
    return {"sizes": {"router": 2, "target": 2, "draft": 1}}


async def test_a_kill_of_each_role_over_running_streams_changes_no_token(cluster, load, report):
    async with disturbed(cluster, load, report, "one of each") as chaos:
        for role in ROLES:
            fault = await chaos.kill(*chaos.one_of(role), most_tokens=300)
            await chaos.gone_on(fault)
        await chaos.idle()
    assert all(fault.streams for fault in chaos.faults)

"""Ways between processes that are silent, cut, slow or lossy: streams go around, or wait."""

import pytest

from chaos.scenario import alone, disturbed
from support.network.relay import Weather

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
LENGTH_S = 12
"""Longer than it takes to find that a way is silent."""
WAYS = {
    "router and target": [("router-0", "target-0")],
    "router and draft": [("router-0", "draft-0")],
    "router and redis": [("router-0", "redis-0")],
    "drafts and a target": [("draft", "target-0")],
    "routers and redis": [("router-0", "redis-0"), ("router-1", "redis-0")],
}
CASES = [(way, weather) for weather in (Weather.SILENT, Weather.CUT) for way in [*WAYS][:-1]]
CASES += [("routers and redis", Weather.SLOW)]


@pytest.fixture(scope="module")
def cluster_options():
    return {"proxied": True}


@pytest.mark.parametrize(("way", "weather"), CASES)
async def test_a_bad_way_between_two_changes_no_token(cluster, load, report, way, weather):
    # A session that one router could not keep is unknown to the other, so its next turn fails.
    asked = alone(load) if way == "router and redis" else load
    async with disturbed(cluster, asked, report, f"{way} {weather.value}") as chaos:
        await chaos.lasting(
            [name for ends in WAYS[way] for name in ends],
            lambda: cluster.weather(weather, *WAYS[way]),
            lambda: cluster.weather(Weather.FAIR, *WAYS[way]),
            s=LENGTH_S,
        )
        await chaos.idle()


async def test_a_network_that_loses_packets_everywhere_changes_no_token(cluster, load, report):
    async with disturbed(cluster, load, report, "loss everywhere") as chaos:
        await chaos.some_moment()
        fault = chaos.strike("all")
        cluster.weather(Weather.LOSSY)
        try:
            await chaos.traffic.after(3000)
            await chaos.traffic.ended(fault.streams)
        finally:
            cluster.weather(Weather.FAIR)
        await chaos.over(fault)
        await chaos.idle()
    assert sum(link.num_lost for link in cluster.links.values()) > 0

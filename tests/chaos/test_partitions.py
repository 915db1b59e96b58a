"""Ways between processes that are silent, cut or lossy: streams go around, or wait, or both."""

import asyncio

import pytest

from chaos.scenario import alone, disturbed
from support.network.relay import Weather

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
LENGTH_S = 12
"""Longer than it takes to find that nobody answers."""
WAYS = {
    "router and target": ("router-0", "target-0"),
    "router and draft": ("router-0", "draft-0"),
    "router and redis": ("router-0", "redis-0"),
    "drafts and a target": ("draft", "target-0"),
}


@pytest.fixture(scope="module")
def cluster_options():
    return {"proxied": True}


@pytest.mark.parametrize("weather", [Weather.SILENT, Weather.CUT], ids=lambda at: at.value)
@pytest.mark.parametrize("way", WAYS)
async def test_a_partition_between_two_changes_no_token(cluster, load, report, way, weather):
    # A session that one router could not keep is unknown to the other, so its next turn fails.
    asked = alone(load) if way == "router and redis" else load
    async with disturbed(cluster, asked, report, f"{way} {weather.value}") as chaos:
        await chaos.some_moment()
        fault = chaos.strike(*WAYS[way])
        cluster.weather(weather, WAYS[way])
        try:
            await asyncio.sleep(LENGTH_S)  # the law is of so long a partition
            await chaos.traffic.ended(fault.streams)
        finally:
            cluster.weather(Weather.FAIR, WAYS[way])
        await chaos.over(fault)
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


async def test_a_slow_store_changes_no_token(cluster, load, report):
    ways = [(router, "redis-0") for router in cluster.names("router")]
    async with disturbed(cluster, load, report, "slow store") as chaos:
        await chaos.some_moment()
        fault = chaos.strike("redis-0")
        cluster.weather(Weather.SLOW, *ways)
        try:
            await asyncio.sleep(LENGTH_S)  # the rule is for so long
            await chaos.traffic.ended(fault.streams)
        finally:
            cluster.weather(Weather.FAIR, *ways)
        await chaos.over(fault)
        await chaos.idle()

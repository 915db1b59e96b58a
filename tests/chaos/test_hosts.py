"""Services on hosts of their own: wires that are slow, lose packets, pass them one way only or not
at all, and hosts that vanish. No token is lost, doubled or wrong; no stream is silent for longer
than promised; in the end no service holds anything."""

from functools import partial

import pytest

from chaos.cluster import ROLES
from chaos.scenario import asked_of, disturbed
from hosts.cluster import HostCluster
from hosts.network import EVERY, require_hosts

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
LENGTH_S = 12
"""Longer than it takes to find that a way is silent."""
BUSY_S = 5.0
"""Time that a busy machine adds to what is promised."""
PROMISED_S = {"router": 15, "target": 6, "draft": 2, "redis": 1}
"""Longest silence of a stream when a host vanishes, as the page of the services has it."""
WAYS = {
    "router and target": [("router-0", "target-0")],
    "router and draft": [("router-0", "draft-0")],
    "router and redis": [("router-0", "redis-0")],
    "drafts and a target": [("draft-0", "target-0"), ("draft-1", "target-0")],
}
WIRES = [(f"delay * {ms / 4}", f"rate * {gbit}000") for ms in (0.2, 1, 5, 20) for gbit in (1, 10)]
WIRES += [("loss * 0.01",), ("delay redis-0 150",)]
WIRES += [(f"rate {host} 1",) for host in ("target-0", "draft-0", "router-0")]


@pytest.fixture(scope="module")
def cluster_options(tmp_path_factory):
    require_hosts(tmp_path_factory.mktemp("hosts"))
    return {"kind": HostCluster}


@pytest.fixture
def wires(cluster):
    """Wires of 1 ms there and back, which lose a packet of a thousand, while a test runs."""
    yield cluster.network.say("delay * 0.25", "loss * 0.0005")
    cluster.network.say("delay * 0", "loss * 0", "rate * 0")


async def vanished(chaos, role, *, is_killed):
    """Drop all frames of the host of a role that has most to do, until the streams have ended."""
    await chaos.some_moment(300)
    held = await chaos.cluster.held()
    name = max(chaos.cluster.names(role), key=lambda name: held.get(name, 0))

    def begin():
        chaos.cluster.ways("cut", (name, EVERY))
        if is_killed:
            chaos.cluster.members[name].kill()

    end = partial(chaos.cluster.ways, "mend", (name, EVERY))
    fault = await chaos.lasting([name], begin, end, most_tokens=1)
    assert fault.silence_s < PROMISED_S[role] + BUSY_S, name


async def test_hosts_that_vanish_one_after_the_other_change_no_token(cluster, load, report, wires):
    for role in ROLES:
        async with disturbed(cluster, asked_of([role], load), report, f"{role} vanishes") as chaos:
            await vanished(chaos, role, is_killed=False)
            await chaos.idle()
    frames = cluster.network.say()
    assert all(now > then for now, then in zip(frames, wires, strict=True))
    assert all(load.kv_streamed_bytes for load in (await cluster.loads("target")).values())


@pytest.mark.chaos
@pytest.mark.parametrize("role", ROLES)
async def test_a_host_that_dies_without_a_word_changes_no_token(cluster, load, report, wires, role):
    async with disturbed(cluster, asked_of([role], load), report, f"{role} dies") as chaos:
        await vanished(chaos, role, is_killed=True)
        await chaos.idle()


@pytest.mark.chaos
@pytest.mark.parametrize("what", ["cut", "refuse", "half-open", "half-open back"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_bad_way_between_two_changes_no_token(cluster, load, report, wires, way, what):
    is_back = what.endswith("back")
    pairs = [pair[::-1] if is_back else pair for pair in WAYS[way]]
    act, both = what.partition("-")[0].replace("half", "cut"), "half" not in what
    names = [name for pair in pairs for name in pair]
    async with disturbed(cluster, asked_of(names, load), report, f"{way} {what}") as chaos:
        begin = partial(cluster.ways, act, *pairs, both=both)
        end = partial(cluster.ways, "mend", *pairs)
        fault = await chaos.lasting(names, begin, end, s=LENGTH_S)
        await chaos.idle()
    roles = {name.partition("-")[0] for name in names} - {"router"}
    promised_s = 1 if act == "refuse" else max(PROMISED_S[role] for role in roles)
    assert fault.silence_s < promised_s + BUSY_S


@pytest.mark.chaos
@pytest.mark.parametrize("wire", WIRES, ids=" and ".join)
async def test_other_wires_under_streams_change_no_token(cluster, load, report, wires, wire):
    async with disturbed(cluster, asked_of(wire, load), report, " and ".join(wire)) as chaos:
        await chaos.some_moment()
        cluster.network.say(*wire)
        await chaos.traffic.after(1000)
        await chaos.idle()
    assert not any("loss" in line for line in wire) or cluster.network.say().lost > wires.lost

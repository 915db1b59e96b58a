"""What a machine does to processes: CPU taken away, clocks set, a full disk. No token changes."""

import asyncio
import os
import sys
import time

import pytest

from chaos import clocks
from chaos.neighbours import busy_neighbours
from chaos.nursery import Forked
from chaos.scenario import alone, disturbed

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
LENGTH_S = 5
TIMES = 3
JUMP_S = 3600
CLOCKED = ("router", "target", "draft", "redis")


async def test_busy_neighbours_change_no_token(cluster, load, report):
    async with disturbed(cluster, load, report, "CPU taken by neighbours") as chaos:
        for _ in range(TIMES):
            await chaos.some_moment()
            fault = chaos.strike("all")
            with busy_neighbours(4 * (os.cpu_count() or 1)):
                await asyncio.sleep(LENGTH_S)  # the rule is for so long
            await chaos.over(fault)
        await chaos.idle()


async def test_a_clock_that_is_set_shows_in_its_process(cluster, tmp_path):
    if not cluster.has_clocks:
        pytest.skip("clocks are set by a library that needs a C compiler, and there is none")
    clock, out = tmp_path / "clock", tmp_path / "out"
    clocks.set_clock(clock, JUMP_S)
    words = [sys.executable, "-c", "import time; print(time.time(), flush=True)"]
    assert await Forked(words, out, tmp_path / "err", clock=clock).wait() == 0
    assert JUMP_S - 60 < float(out.read_text()) - time.time() < JUMP_S + 60


@pytest.mark.parametrize("seconds", [JUMP_S, -JUMP_S], ids=["forward", "back"])
@pytest.mark.parametrize("role", CLOCKED)
async def test_a_clock_that_is_set_changes_no_token(cluster, load, report, role, seconds):
    if not cluster.has_clocks:
        pytest.skip("clocks are set by a library that needs a C compiler, and there is none")
    # A server that lost its sessions to a later clock can't continue them.
    load = alone(load) if role == "redis" else load
    async with disturbed(cluster, load, report, f"clock of a {role} set {seconds} s") as chaos:
        (name,) = chaos.one_of(role)
        await chaos.some_moment()
        fault = chaos.strike(name)
        cluster.members[name].set_clock(seconds)
        try:
            await chaos.gone_on(fault)
            await asyncio.sleep(LENGTH_S)  # the rule is for so long
            await chaos.over(fault)
        finally:
            cluster.members[name].set_clock(0)
        await chaos.some_moment()
        await chaos.over(chaos.strike(name))
        await chaos.idle()


async def test_running_and_new_requests_end_while_the_disk_of_redis_is_full(cluster, load, report):
    # The server takes no write then, so the other router may not know what a session said last.
    async with disturbed(cluster, alone(load), report, "full disk of redis") as chaos:
        for _ in range(TIMES):
            await chaos.some_moment()
            fault = chaos.strike("redis-0")
            cluster.members["redis-0"].fill_disk()
            try:
                await asyncio.sleep(LENGTH_S)  # the rule is for so long
                await chaos.traffic.ended(fault.streams)
            finally:
                cluster.members["redis-0"].free_disk()
            await chaos.over(fault)
        await chaos.idle()


async def test_a_disk_that_is_full_for_logs_and_traces_changes_no_token(cluster, load, report):
    async with disturbed(cluster, load, report, "full disk of services") as chaos:
        services = [name for name in cluster.members if not name.startswith("redis")]
        await chaos.some_moment()
        fault = chaos.strike(*services)
        for name in services:
            cluster.members[name].fill_disk()
        try:
            await asyncio.sleep(LENGTH_S)  # the rule is for so long
            await chaos.traffic.ended(fault.streams)
        finally:
            for name in services:
                cluster.members[name].free_disk()
        await chaos.over(fault)
        await chaos.idle()

"""What a machine does to processes: stops, little CPU, set clocks, full disks. No token changes."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from chaos import clocks
from chaos.nursery import Forked
from chaos.scenario import asked_of, disturbed

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
LENGTH_S = 5
STOPPED_S = 10
TIMES = 3
JUMP_S = 3600
ROLES = ("router", "target", "draft", "redis")


@pytest.mark.parametrize("role", ROLES)
async def test_a_stop_changes_no_token_and_what_wakes_overwrites_nothing(
    cluster, load, report, role
):
    async with disturbed(cluster, asked_of([role], load), report, f"stop of {role}") as chaos:
        for _ in range(TIMES):
            (name,) = chaos.one_of(role)
            member = cluster.members[name]
            await chaos.lasting([name], member.freeze, member.thaw, s=STOPPED_S)
        await chaos.idle()


async def test_busy_neighbours_change_no_token(cluster, load, report):
    words = [sys.executable, "-c", "while True: pass"]
    stack = ExitStack()

    def begin():
        for _ in range(4 * (os.cpu_count() or 1)):
            neighbour = subprocess.Popen(words)
            stack.callback(neighbour.wait)
            stack.callback(neighbour.kill)

    async with disturbed(cluster, load, report, "CPU taken by neighbours") as chaos:
        for _ in range(TIMES):
            await chaos.lasting(["all"], begin, stack.close, s=LENGTH_S)
        await chaos.idle()


@pytest.fixture
def clocked(cluster):
    """The cluster, whose clocks can be set."""
    if not cluster.has_clocks:
        pytest.skip("clocks are set by a library that needs a C compiler, and there is none")
    return cluster


async def test_a_clock_that_is_set_shows_in_its_process(clocked, tmp_path):
    clock, out = tmp_path / "clock", tmp_path / "out"
    clocks.set_clock(clock, JUMP_S)
    words = [sys.executable, "-c", "import time; print(time.time(), flush=True)"]
    assert await Forked(words, out, tmp_path / "err", clock=clock).wait() == 0
    assert JUMP_S - 60 < float(out.read_text()) - time.time() < JUMP_S + 60


@pytest.mark.parametrize("seconds", [JUMP_S, -JUMP_S], ids=["forward", "back"])
@pytest.mark.parametrize("role", ROLES)
async def test_a_clock_that_is_set_changes_no_token(clocked, load, report, role, seconds):
    name = f"clock of a {role} set {seconds} s"
    async with disturbed(clocked, asked_of([role], load), report, name) as chaos:
        (name,) = chaos.one_of(role)
        set_clock = clocked.members[name].set_clock
        await chaos.lasting([name], lambda: set_clock(seconds), lambda: set_clock(0), s=LENGTH_S)
        await chaos.some_moment()
        await chaos.over(chaos.strike(name))
        await chaos.idle()


@pytest.mark.parametrize("role", ["redis", "all services"])
async def test_a_full_disk_changes_no_token_and_ends_no_request(cluster, load, report, role):
    is_redis = role == "redis"
    members = {name: at for name, at in cluster.members.items() if ("redis" in name) == is_redis}

    def each(act):
        return lambda: [getattr(member, act)() for member in members.values()]

    async with disturbed(cluster, asked_of([role], load), report, f"full disk of {role}") as chaos:
        for _ in range(TIMES if is_redis else 1):
            await chaos.lasting([*members], each("fill_disk"), each("free_disk"), s=LENGTH_S)
        await chaos.idle()

"""Laws of discovery: every change is told once, and what can't be read changes nothing."""

import asyncio
import logging
import socket

import pytest

from slipstream.core.errors import InvalidRequest, Unavailable
from slipstream_router.replicas.pool import LINGER_S, LingeringSource, parse_source


class Steps:
    """A pause that ends when it is told to, once for every step."""

    def __init__(self):
        self.reached = asyncio.Semaphore(0)
        self.may_go = asyncio.Semaphore(0)

    async def pause(self, seconds):
        assert seconds > 0
        self.reached.release()
        await self.may_go.acquire()

    async def step(self):
        """Let the source ask once more, and wait until it has."""
        await asyncio.wait_for(self.reached.acquire(), 60)
        self.may_go.release()


async def following(source):
    """Everything the source says, in a list that grows, and the task that makes it grow."""
    said = []

    async def listen():
        async for addresses in source():
            said.append(sorted(addresses))

    return said, asyncio.get_running_loop().create_task(listen())


async def ended(task):
    task.cancel()
    await asyncio.wait({task})


async def test_a_list_of_addresses_is_said_once():
    source = parse_source(["10.0.0.2:7", "10.0.0.1:7", "10.0.0.2:7"])
    said = [sorted(addresses) async for addresses in source()]
    assert said == [["10.0.0.1:7", "10.0.0.2:7"]]


NO_SOURCES = ["nohost", "host:0", "host:65536", "http://host:1", "dns:///name", "dns:///:5"]
NO_SOURCES += ["dns:///name:x", "registry:", "registry:here"]
NOT_ALONE = [["file:here", "10.0.0.1:7"], ["10.0.0.1:7", "dns:///name:5"]]


@pytest.mark.parametrize("items", [*([item] for item in NO_SOURCES), *NOT_ALONE])
def test_what_names_no_replicas_is_refused(items):
    with pytest.raises(InvalidRequest):
        parse_source(items)


@pytest.mark.parametrize("broken", [b"10.0.0.1:7\nnonsense\n", b"\xff\xfe"])
async def test_a_broken_or_lost_file_leaves_the_last_list_and_warns_once(tmp_path, caplog, broken):
    listing = tmp_path / "targets"
    listing.write_text("10.0.0.1:7\n")
    steps = Steps()
    said, task = await following(parse_source([f"file:{listing}"], pause=steps.pause))
    with caplog.at_level(logging.WARNING, "slipstream.router"):
        await steps.step()
        listing.write_bytes(broken)
        await steps.step()
        await steps.step()
        listing.unlink()
        await steps.step()
        listing.write_text("10.0.0.1:7\n10.0.0.3:7\n")
        await steps.step()
        await steps.step()
    await ended(task)
    assert said == [["10.0.0.1:7"], ["10.0.0.1:7", "10.0.0.3:7"]]
    assert len(caplog.records) == 2  # broken, then lost


FIRST, LATER = ["10.0.0.1:7", "[fd00::1]:7"], ["10.0.0.2:7"]
NAMED = [["10.0.0.1", "fd00::1"], *[socket.gaierror("no such name")] * 2, ["10.0.0.2"]]
REGISTERED = [frozenset(FIRST), *[Unavailable("Redis is away")] * 2, frozenset(LATER)]


@pytest.mark.parametrize(
    ("listed", "answers", "how", "after"),
    [
        ("dns:///targets.svc:7", NAMED, "resolve", LATER),
        ("registry:", REGISTERED, "registered", sorted(FIRST + LATER)),  # who was listed lingers
    ],
)
async def test_who_is_asked_again_and_fails_changes_nothing_and_says_so_once(
    listed, answers, how, after, caplog
):
    left, steps = list(answers), Steps()

    async def ask(*where):
        assert where in ((), ("targets.svc", 7))
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    source = parse_source([listed], pause=steps.pause, **{how: ask})
    said, task = await following(source)
    with caplog.at_level(logging.WARNING, "slipstream.router"):
        for _ in range(3):
            await steps.step()
        await asyncio.wait_for(steps.reached.acquire(), 60)
    await ended(task)
    assert said == [FIRST, after]
    assert len(caplog.records) == 1


async def test_a_replica_that_is_not_registered_for_a_moment_stays_and_goes_after_a_while():
    now, found = [0.0], {"10.0.0.1:7", "10.0.0.2:7"}

    async def registered():
        return frozenset(found)

    lingering = LingeringSource(registered, lambda: now[0])
    await lingering()
    found.discard("10.0.0.1:7")
    now[0] += LINGER_S
    assert await lingering() == {"10.0.0.1:7", "10.0.0.2:7"}
    now[0] += 0.1
    assert await lingering() == {"10.0.0.2:7"}

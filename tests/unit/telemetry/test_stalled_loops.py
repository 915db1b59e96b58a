"""The strict reader of stalls, on which the integration tests rely: it sees services' steps."""

import asyncio
import time

import pytest

from slipstream_router.request_runner import one_ahead
from support.services.stalls import LoggedStall, check_stalls, stalls_in, watching


async def burning(cpu_s):
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass
    yield cpu_s


def stalls_of(make):
    async def main():
        await make()

    with watching() as stalls:
        asyncio.run(main())
    return stalls


def test_a_callback_of_the_package_that_takes_long_is_named_and_fails():
    async def held():
        assert [item async for item in one_ahead(burning(0.2))] == [0.2]

    (stall,) = stalls_of(held)
    assert stall.cpu_ms >= 200
    with pytest.raises(AssertionError, match="ms of CPU by"):
        check_stalls([stall])


def test_a_step_of_a_test_or_a_short_one_is_none():
    assert stalls_of(lambda: anext(burning(0.2))) == []
    check_stalls([LoggedStall(149.0, "router/app.py:1 in start")])


def test_what_a_service_writes_of_a_stall_is_read_from_its_log():
    stall = LoggedStall(149.0, "router/app.py:1 in start")
    assert stalls_in(f"ready\n{stall}\n") == [stall]

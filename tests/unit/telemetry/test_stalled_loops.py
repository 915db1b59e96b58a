"""The strict reader of stalls, on which the integration tests rely: it sees services' steps."""

import asyncio
import time

import pytest

from slipstream_router.request_runner import one_ahead
from support.services.stalls import check_stalls, watching


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

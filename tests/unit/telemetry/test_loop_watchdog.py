"""The watchdog of the event loop: what holds the loop is named, and nothing else is."""

import asyncio
import time
from dataclasses import dataclass

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.core.inline import finished
from slipstream.rpc.process import run_service
from slipstream.telemetry.config import TelemetryConfig
from slipstream.telemetry.loop_watchdog import watched

LIMIT_MS = 40.0


def burn(cpu_s):
    """Take CPU time of this thread."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


async def burning(cpu_s):
    burn(cpu_s)


def stalls_of(make, limit_ms=LIMIT_MS):
    """What is reported while a coroutine runs, which is given that."""
    stalls = []

    async def begun():
        await asyncio.sleep(0)  # what comes before is the start, which is not watched
        await make(stalls)

    asyncio.run(watched(begun(), limit_ms, report=stalls.append))
    return stalls


def test_a_callback_above_the_limit_is_reported_with_the_innermost_frame_of_the_package():
    async def hold(_):
        finished(burning(0.2))

    (stall,) = stalls_of(hold)
    assert 0.2 <= stall.cpu_s < 2
    assert stall.place.startswith("core/inline.py:")
    assert "in finished (telemetry/test_loop_watchdog.py:" in stall.place
    assert "the event loop was held for 2" in str(stall)


def test_a_callback_without_a_frame_of_the_package_is_named_by_its_task():
    (stall,) = stalls_of(lambda _: asyncio.create_task(burning(0.2)))
    assert stall.place == "task burning"


def test_many_callbacks_below_the_limit_are_no_stall():
    async def often(_):
        for _ in range(20):
            burn(0.005)
            await asyncio.sleep(0)

    assert stalls_of(often, limit_ms=1000.0) == []


def test_a_loop_without_a_watchdog_runs_callbacks_as_ever():
    unwatched = asyncio.Handle._run

    async def see():
        assert asyncio.Handle._run is unwatched

    asyncio.run(watched(see(), 0.0))
    assert stalls_of(lambda _: asyncio.sleep(0)) == []
    assert asyncio.Handle._run is unwatched


@dataclass(frozen=True, slots=True)
class Options:
    """A service without options of its own."""


def test_a_service_with_the_option_logs_what_holds_its_loop(caplog):
    async def serve(options, telemetry):
        await asyncio.sleep(0)
        burn(0.1)
        await asyncio.sleep(0)

    flags = ["--loop-watchdog-ms", "50"]
    with caplog.at_level("INFO", "slipstream.loop"):
        assert run_service("router", Options, serve, argv=flags, doc="A service.") == 0
    stalled, longest = (record.getMessage() for record in caplog.records[-2:])
    assert stalled.startswith("the event loop was held for 1")
    assert longest == f"the longest of all callbacks: {stalled}"


@pytest.mark.parametrize("limit_ms", [-1.0, 0.5, 60_001.0, float("nan")])
def test_a_limit_that_means_nothing_is_refused(limit_ms):
    with pytest.raises(InvalidRequest, match="but must be 0 for no watchdog"):
        TelemetryConfig(loop_watchdog_ms=limit_ms)

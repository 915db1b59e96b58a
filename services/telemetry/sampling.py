"""Gauges and totals, looked at once in a while on the event loop that owns what they tell."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from slipstream.telemetry.metric import Instruments

SAMPLE_S = 1.0
_LOG = logging.getLogger("slipstream.telemetry")

Sample = Callable[[Instruments], None]


@asynccontextmanager
async def sampled(instruments: Instruments, sample: Sample) -> AsyncIterator[None]:
    """Have `sample` tell the instruments how things are: now, every second and at the end."""
    if not instruments.are_exported:
        yield
        return
    sampling = asyncio.get_running_loop().create_task(_keep_sampling(instruments, sample))
    try:
        yield
    finally:
        sampling.cancel()
        await asyncio.wait({sampling})
        _sample(instruments, sample)


async def _keep_sampling(instruments: Instruments, sample: Sample) -> None:
    while True:
        _sample(instruments, sample)
        await asyncio.sleep(SAMPLE_S)


def _sample(instruments: Instruments, sample: Sample) -> None:
    try:
        sample(instruments)
    except Exception:  # a service must not fall over what it says of itself
        _LOG.exception("metrics could not be sampled")

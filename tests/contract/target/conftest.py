"""The tiny model, and a target that serves it and records its telemetry."""

import pytest

from slipstream.core.types import Session
from support.models import tiny
from support.services.served_target import served_target


@pytest.fixture(scope="module")
def model():
    return tiny.causal()


@pytest.fixture
async def served(model, listener):
    async with served_target(model, telemetry=listener.telemetry) as at:
        yield at


@pytest.fixture
async def stream(served):
    """The stream of a request, which ends with the test."""
    stream = await served.open(Session("s", 20, 50))
    yield stream
    await stream.end()

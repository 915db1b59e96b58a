"""A target and a draft that tests start behind their routers, and a router that they share."""

from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from slipstream.client import AsyncClient
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.v1 import generation_pb2_grpc
from support.services import fleet
from support.services.background import LoopThread
from support.services.fleet import draft_worker, glide_of, target_worker


@pytest.fixture
def target(folder):
    return target_worker(folder)


@pytest.fixture
def draft(folder):
    return draft_worker(str(glide_of(folder)), folder)


@pytest.fixture(scope="module")
def shared_router(served):
    """The address of a router with the defaults over `served`."""
    thread, stack = LoopThread(), AsyncExitStack()

    async def start():
        client = await stack.enter_async_context(fleet.routed([served]))
        return client.address

    yield thread.run(start)
    thread.run(stack.aclose)
    thread.close()


@pytest.fixture(scope="module")
def trio(folder):
    """A target, a GliDe draft and a plain draft of its, and the address of a router to them."""
    workers = [
        target_worker(folder),
        draft_worker(str(glide_of(folder)), folder),
        draft_worker(f"vanilla:{folder}", folder),
    ]
    thread, stack = LoopThread(), AsyncExitStack()

    async def start():
        await stack.enter_async_context(fleet.running(*workers))
        client = await stack.enter_async_context(fleet.routed(workers[:1], workers[1:]))
        return client.address

    yield Trio(thread.run(start), *workers)
    thread.run(stack.aclose)
    thread.close()


@dataclass(frozen=True)
class Trio:
    """Services that run for all tests of a file; no test may stop them."""

    address: str
    target: fleet.Worker
    glide: fleet.Worker
    vanilla: fleet.Worker

    def client(self):
        """Return a client of the router."""
        return AsyncClient(self.address, retries=False)


@pytest.fixture
async def client(shared_router):
    async with AsyncClient(shared_router, retries=False) as client:
        yield client


@pytest.fixture
async def stub(shared_router):
    """The public API without the SDK, which refuses much by itself."""
    async with connect(shared_router, ChannelOptions()) as channel:
        yield generation_pb2_grpc.GenerationServiceStub(channel)

"""Laws of scaling, of real processes under load: who comes gets work, and who goes loses none."""

import asyncio
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from chaos.cluster import GRACE_S, Cluster, Pair
from chaos.traffic import FORCED, Errand, Traffic, sampled
from slipstream.client import AsyncClient
from slipstream.core.request.server_info import ReplicaRole
from slipstream.state.factory import open_registry
from slipstream.state.options import StoreOptions
from support.network.dns_server import NameServer, name_server
from support.network.ports import free_port
from support.services import fleet

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs more than one loopback address"),
]
LIMIT_S = 60.0
NUM_STREAMS = 6
NUM_TOKENS = 80
ERRANDS = (
    Errand("greedy", ("the quick brown fox",), speculation=FORCED, max_tokens=NUM_TOKENS),
    Errand("sampled", ("a slow red hen",), sampled(0.8, 7), FORCED, NUM_TOKENS),
    Errand("session", ("hello", "go on"), sampled(0.7, 3, top_p=0.9), FORCED, NUM_TOKENS),
)


class Growing(Cluster):
    """One of each to begin with, found by the registry; `add` and `drain` others in any order.

    Routers have a loopback address each and one port, so that one name of the DNS stands for all.
    """

    _names: NameServer

    def __init__(self, pair: Pair, folder: Path) -> None:
        self._counts = dict.fromkeys(("router", "target", "draft"), 1)
        super().__init__(pair, folder, sizes=self._counts)
        self._stack = AsyncExitStack()

    @property
    def address(self) -> str:
        """Address of all routers that the name server tells of, now and later."""
        return self._names.target(self.ports["router-0"])

    async def start(self) -> None:
        self._names = await self._stack.enter_async_context(name_server())
        self._names.addresses.append(self._host("router-0"))
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        await self._stack.aclose()

    async def add(self, role: str) -> None:
        """Start one more, and wait until it serves. Clients may learn of it if a router."""
        name = f"{role}-{self._counts[role]}"
        self._counts[role] += 1
        self.ports[name] = self.ports["router-0"] if role == "router" else free_port()
        member = self.members[name] = self._member(name)
        member.start()
        await member.ready()
        if role == "router":
            self._names.addresses.append(self._host(name))

    async def drain(self, name: str, traffic: Traffic) -> list[Any]:
        """Ask it to end, and wait until it has, all well; the streams that ran until then."""
        running, member = traffic.running(time.monotonic()), self.members[name]
        if name.startswith("router"):
            self._names.addresses.remove(self._host(name))
        await asyncio.wait_for(member.stop(signal.SIGTERM), LIMIT_S + GRACE_S)
        assert member.codes == [0], member.words()
        return running

    async def listed(self, role: str) -> list[str]:
        """Names of those in the registry."""
        registry = open_registry(StoreOptions(url=self._store))
        try:
            live = await registry.live(ReplicaRole(role))
        finally:
            await registry.aclose()
        return [name for name in self.names(role) if self._at(name) in live]

    async def shared_by_all(self, role: str) -> None:
        """Wait until each engine of a role holds a session with a request, all at one time."""
        is_shared = lambda loads: all(load.num_sessions for load in loads.values())  # noqa: E731
        await fleet.eventually(lambda: self.loads(role), is_shared, LIMIT_S)

    async def reached(self, router: str) -> None:
        """Wait until clients that know only the name have a request at this router."""
        async with AsyncClient(self._at(router)) as client:
            await fleet.eventually(client.server_info, lambda info: info.num_requests > 0, LIMIT_S)

    @property
    def _store(self) -> str:
        return f"redis://{self._at('redis-0')}"

    def _host(self, name: str) -> str:
        role, _, number = name.partition("-")
        return f"127.0.0.{2 + int(number)}" if role == "router" else super()._host(name)

    def _router(self, name: str) -> Iterable[str]:
        found = ["--targets", "registry:", "--drafts", "registry:", "--store-url", self._store]
        return [*found, "--max-connection-age-s", "1"]

    def _target(self, name: str) -> Iterable[str]:
        return [*super()._target(name), "--store-url", self._store]

    def _draft(self, name: str) -> Iterable[str]:
        return [*super()._draft(name), "--store-url", self._store]


@pytest.fixture(scope="module")
def errands():
    return ERRANDS


@pytest.fixture(scope="module")
def cluster_options():
    return {"kind": Growing}


def assert_nobody_noticed(traffic, running):
    """Streams say what plain decoding says; those that ran when a process was told to end, did so
    without being moved."""
    assert traffic.faults == []
    assert running
    assert not any(stream.num_losses for stream in running)
    assert not any(stream.num_resumed for stream in traffic.streams)


async def test_engines_added_under_load_get_sessions_and_those_that_end_lose_none(cluster, load):
    traffic = Traffic(load.answers, load.errands)
    async with traffic.flowing(cluster.address, NUM_STREAMS):
        await traffic.after(NUM_TOKENS)
        await cluster.add("target")
        await cluster.shared_by_all("target")
        assert await cluster.listed("draft") == ["draft-0"]
        for _ in range(2):
            await cluster.add("draft")
        await cluster.shared_by_all("draft")
        assert await cluster.listed("target") == ["target-0", "target-1"]
        running = [
            *await cluster.drain("draft-0", traffic),
            *await cluster.drain("draft-1", traffic),
        ]
        assert await cluster.listed("draft") == ["draft-2"]
        running += await cluster.drain("target-0", traffic)
        assert await cluster.listed("target") == ["target-1"]
        await traffic.after(NUM_TOKENS)
    assert_nobody_noticed(traffic, running)


async def test_clients_that_know_a_name_reach_a_router_that_came_later_and_leave_one_that_goes(
    cluster, load
):
    traffic = Traffic(load.answers, load.errands)
    async with traffic.flowing(cluster.address, NUM_STREAMS):
        await traffic.after(NUM_TOKENS)
        await cluster.add("router")
        await cluster.reached("router-1")
        running = await cluster.drain("router-0", traffic)
        await traffic.after(NUM_TOKENS)
    assert_nobody_noticed(traffic, running)

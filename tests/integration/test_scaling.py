"""Laws of scaling, of real processes under load: who comes gets work, and who goes loses none."""

import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from chaos import nursery
from chaos.nursery import Forked
from chaos.traffic import FORCED, Errand, Traffic, plain_answers, sampled
from slipstream.client import AsyncClient
from slipstream.core.request.server_info import ReplicaRole
from slipstream.local.child import READY
from slipstream.state.factory import open_registry
from slipstream.state.options import StoreOptions
from support.network.dns_server import NameServer, name_server
from support.network.ports import free_port
from support.services import fleet
from support.state.redis_server import running_redis, valkey_binary

LIMIT_S = 60.0
GRACE_S = 60
_GLANCE_S = 0.01
_SERVICES = {"target": fleet.TARGET, "draft": fleet.DRAFT}


class Growing:
    """Members by name, such as target-0. `add` and `drain` them in any order; then `stop`.

    Routers have a loopback address each and one port, so that one name of the DNS stands for all.
    """

    def __init__(self, model: Path, folder: Path, store_url: str, names: NameServer) -> None:
        self._model, self._folder, self._store_url = model, folder, store_url
        self._names = names
        self._router_port = free_port()
        self._numbers: Counter[str] = Counter()
        self._members: dict[str, Forked] = {}
        self._addresses: dict[str, str] = {}

    @property
    def address(self) -> str:
        """Address of all routers that the name server tells of, now and later."""
        return self._names.target(self._router_port)

    async def add(self, role: str) -> str:
        """Start one more; its name, as soon as it serves. Clients may learn of it if a router."""
        name = f"{role}-{self._numbers[role]}"
        self._numbers[role] += 1
        at = self._folder / name
        words = [role, *self._flags(role, name), "--grace-s", str(GRACE_S)]
        member = Forked(words, at.with_suffix(".out"), at.with_suffix(".log"))
        self._members[name] = member
        async with asyncio.timeout(LIMIT_S):
            while not (said := member.out.read_text()).endswith("\n"):
                assert member.is_there, self.words(name)
                await asyncio.sleep(_GLANCE_S)
        self._addresses[name] = said.strip().removeprefix(READY).strip()
        if role == "router":
            self._names.addresses.append(_host(self._addresses[name]))
        return name

    async def drain(self, name: str) -> None:
        """Ask it to end, and wait until it has: by itself, and all well."""
        if name.startswith("router"):
            self._names.addresses.remove(_host(self._addresses[name]))
        member = self._members[name]
        member.signal(signal.SIGTERM)
        code = await asyncio.wait_for(member.wait(), LIMIT_S + GRACE_S)
        assert code == 0, self.words(name)

    async def listed(self, role: str) -> set[str]:
        """Names of those in the registry."""
        registry = open_registry(StoreOptions(url=self._store_url))
        try:
            live = await registry.live(ReplicaRole(role))
        finally:
            await registry.aclose()
        return {name for name, address in self._addresses.items() if address in live}

    async def sessions(self, *names: str) -> list[int]:
        """How many sessions with a running request each engine holds."""
        loads = [
            fleet.load_of(_SERVICES[name.partition("-")[0]], self._addresses[name])
            for name in names
        ]
        return [int(load.num_sessions) for load in await asyncio.gather(*loads)]

    async def shared_by(self, *names: str) -> None:
        """Wait until each of these engines holds a session, all at one time."""
        await fleet.eventually(lambda: self.sessions(*names), all, LIMIT_S)

    async def reached(self, router: str) -> None:
        """Wait until clients that know only the name have a request at this router."""
        async with AsyncClient(self._addresses[router]) as client:
            await fleet.eventually(client.server_info, lambda info: info.num_requests > 0, LIMIT_S)

    async def stop(self) -> None:
        """End all of it."""
        for member in self._members.values():
            member.signal(signal.SIGKILL)
        await asyncio.gather(*(member.wait() for member in self._members.values()))

    def words(self, name: str) -> str:
        """What a member has logged."""
        return (self._folder / name).with_suffix(".log").read_text(errors="replace")

    def _flags(self, role: str, name: str) -> list[str]:
        store = ["--store-url", self._store_url]
        if role == "router":
            number = int(name.rpartition("-")[2])
            address = f"127.0.0.{2 + number}:{self._router_port}"
            found = ["--targets", "registry:", "--drafts", "registry:"]
            return ["--address", address, *found, *store, "--max-connection-age-s", "1"]
        engine = [*store, "--address", "127.0.0.1:0", "--dtype", "float32", "--threads", "1"]
        if role == "target":
            return [*engine, "--model", str(self._model)]
        return [
            *engine,
            "--draft",
            str(fleet.glide_of(self._model)),
            "--target-model",
            str(self._model),
        ]


@asynccontextmanager
async def growing(model: Path, folder: Path) -> AsyncIterator[Growing]:
    """One of each, to begin with."""
    async with name_server() as names:
        with running_redis() as store_url:
            cluster = Growing(model, folder, store_url, names)
            try:
                await asyncio.gather(*map(cluster.add, ("target", "draft", "router")))
                yield cluster
            finally:
                await cluster.stop()


def _host(address: str) -> str:
    return address.rpartition(":")[0]


pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs more than one loopback address"),
]
NUM_STREAMS = 6
NUM_TOKENS = 80
ERRANDS = (
    Errand("greedy", ("the quick brown fox",), speculation=FORCED, max_tokens=NUM_TOKENS),
    Errand("sampled", ("a slow red hen",), sampled(0.8, 7), FORCED, NUM_TOKENS),
    Errand("session", ("hello", "go on"), sampled(0.7, 3, top_p=0.9), FORCED, NUM_TOKENS),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    valkey_binary()  # or skip before anything is made
    nursery.begin(tmp_path_factory.mktemp("nursery"))
    return fleet.save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def answers(model):
    return plain_answers(str(model), ERRANDS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(model, answers, tmp_path_factory):
    """One of each service, found by the registry, and a name for all routers."""
    assert all(len(tokens) == NUM_TOKENS for said in answers.values() for tokens in said)
    nursery.finish()
    async with growing(model, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


async def drained(cluster, traffic, name):
    """End a process under load; the streams that ran then."""
    running = traffic.running(time.monotonic())
    await cluster.drain(name)
    return running


def assert_nobody_noticed(traffic, running):
    """Streams say what plain decoding says; those that ran when a process was told to end, did so
    without being moved."""
    assert traffic.faults == []
    assert running
    assert not any(stream.num_losses for stream in running)
    assert not any(stream.num_resumed for stream in traffic.streams)


async def test_engines_added_under_load_get_sessions_and_those_that_end_lose_none(cluster, answers):
    traffic = Traffic(answers, ERRANDS)
    async with traffic.flowing(cluster.address, NUM_STREAMS):
        await traffic.after(NUM_TOKENS)
        (old,), (guide,) = await cluster.listed("target"), await cluster.listed("draft")
        target = await cluster.add("target")
        await cluster.shared_by(old, target)
        assert await cluster.listed("draft") == {guide}
        drafts = [await cluster.add("draft") for _ in range(2)]
        await cluster.shared_by(guide, *drafts)
        assert await cluster.listed("target") == {old, target}
        running = await drained(cluster, traffic, guide)
        running += await drained(cluster, traffic, drafts[0])
        assert await cluster.listed("draft") == {drafts[1]}
        running += await drained(cluster, traffic, old)
        assert await cluster.listed("target") == {target}
        await traffic.after(NUM_TOKENS)
    assert_nobody_noticed(traffic, running)


async def test_clients_that_know_a_name_reach_a_router_that_came_later_and_leave_one_that_goes(
    cluster, answers
):
    traffic = Traffic(answers, ERRANDS)
    async with traffic.flowing(cluster.address, NUM_STREAMS):
        await traffic.after(NUM_TOKENS)
        later = await cluster.add("router")
        await cluster.reached(later)
        running = await drained(cluster, traffic, "router-0")
        await traffic.after(NUM_TOKENS)
    assert_nobody_noticed(traffic, running)

"""Two routers, two targets, two drafts and Redis as processes on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chaos import clocks
from chaos.member import Command, Member, says_ready
from chaos.nursery import Forked
from chaos.traffic import Errand
from slipstream.client import AsyncClient
from slipstream.core.errors import SlipstreamError
from slipstream.rpc.security import ClientTls
from support.network.ports import free_ports
from support.services import fleet
from support.services.stalls import LoggedStall, stalls_in
from support.state.redis_server import ACCEPTS, valkey_binary

ROLES = ("router", "target", "draft", "redis")
TWO = {"router": 2, "target": 2, "draft": 2}
SETTLE_LIMIT_S = 300.0
GRACE_S = 60
"""What a process that is asked to end gives its streams."""
REAL = "real"
_REAL_MODEL = "smollm2-135m"
_REAL_SHARE = 8
"""The real model decodes about so many times slower."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and the weights of its draft, each a name or a directory."""

    target: str
    draft: str
    share: int = 1
    """Requests ask for this part of the usual number of tokens."""
    dtype: str = "float32"

    def shortened(self, errands: Sequence[Errand]) -> list[Errand]:
        """The errands, as long as this target can answer in a few seconds."""
        return [replace(each, max_tokens=each.max_tokens // self.share) for each in errands]


def tiny_pair(folder: Path) -> Pair:
    target = fleet.save_models(folder)
    return Pair(str(target), str(fleet.glide_of(target)))


def real_pair() -> Pair:
    """The real model, which must be in the cache, with its trained draft."""
    return Pair(_REAL_MODEL, "glide", _REAL_SHARE)


class Cluster:
    """The processes by name, such as target-0. `start`, then anything, then `stop`."""

    tls: ClientTls | None = None
    """What clients of the services trust and show."""

    def __init__(
        self, pair: Pair, folder: Path, *, sizes: Mapping[str, int] = TWO, kept: Sequence[str] = ()
    ) -> None:
        """`kept` are the router's flags for how long it keeps what has ended."""
        self._pair, self._folder, self._sizes = pair, folder, sizes
        names = [name for role in dict.fromkeys((*sizes, "redis")) for name in self.names(role)]
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.members: dict[str, Member] = {}
        self._kept = kept
        self._watchers: dict[str, AsyncClient] = {}

    @property
    def has_clocks(self) -> bool:
        return clocks.compiler() is not None

    @property
    def address(self) -> str:
        """Addresses of all routers, for a client that takes turns."""
        return ",".join(map(self._at, self.names("router")))

    def names(self, role: str) -> list[str]:
        return [f"{role}-{n}" for n in range(self._sizes.get(role, 1))]

    async def start(self) -> None:
        """Start all, and wait until each router knows all."""
        (self._folder / "redis").mkdir()
        for name in self.ports:
            self.members[name] = self._member(name)
        for member in self.members.values():
            member.start()
        for name in self.names("router"):
            self._watchers[name] = AsyncClient(self._at(name), tls=self.tls)
        await self.settled()

    async def settled(self) -> None:
        """Wait until every process serves and each router has every replica."""
        await asyncio.gather(*(member.ready() for member in self.members.values()))
        await asyncio.gather(*map(self._knows_all, self._watchers.values()))

    async def stop(self) -> None:
        for client in self._watchers.values():
            await client.aclose()
        await asyncio.gather(*(member.stop() for member in self.members.values()))

    async def loads(self, role: str) -> dict[str, Any]:
        """What each engine of a role reports."""
        service = fleet.TARGET if role == "target" else fleet.DRAFT
        loads = (fleet.load_of(service, self._at(name), self.tls) for name in self.names(role))
        return dict(zip(self.names(role), await asyncio.gather(*loads), strict=True))

    async def held(self) -> dict[str, int]:
        """How many sessions, streams and requests each service holds for callers."""
        held = {}
        for name, load in (await self.loads("target") | await self.loads("draft")).items():
            held[name] = load.num_sessions + load.num_kv_streams + load.num_waiting
        for name, router in self._watchers.items():
            held[name] = (await router.server_info()).num_requests
        return held

    def stalls(self) -> dict[str, list[LoggedStall]]:
        """What has held event loops, by role, over all processes of its members."""
        return {
            role: [
                stall
                for name in self.names(role)
                for stall in stalls_in(self.members[name].log.read_text(errors="replace"))
            ]
            for role in self._sizes
        }

    async def _knows_all(self, router: AsyncClient) -> None:
        async def num_ready() -> dict[str, int]:
            try:
                info = await router.server_info()
            except SlipstreamError:
                return {}
            return {role: fleet.num_ready(info, role) for role in ("target", "draft")}

        everybody = {role: self._sizes[role] for role in ("target", "draft")}
        await fleet.eventually(num_ready, lambda found: found == everybody, SETTLE_LIMIT_S)

    def _host(self, name: str) -> str:
        return "127.0.0.1"

    def _entering(self, name: str) -> Callable[[], None] | None:
        """What moves a member to its host; None for this machine."""
        return None

    def _at(self, name: str) -> str:
        return f"{self._host(name)}:{self.ports[name]}"

    def _named(self, name: str) -> str:
        """Where other services reach it."""
        return self._at(name)

    def _all(self, role: str) -> str:
        return ",".join(map(self._at, self.names(role)))

    def _member(self, name: str) -> Member:
        role = name.partition("-")[0]
        if role == "redis":
            words = _redis(self._folder / "redis", self._host(name), self.ports[name])
            command = Command(words, _accepts, self._entering(name))
            return Member(name, command, self._folder)
        if role == "gateway":
            words = [role, "--router", self.address, "--listen-address", self._at(name)]
            return Member(name, Command(words, says_ready), self._folder)
        flags = {"router": self._router, "target": self._target, "draft": self._draft}[role](name)
        words = [role, "--address", self._at(name), "--grace-s", str(GRACE_S), *flags]
        return Member(name, Command(words, says_ready, self._entering(name)), self._folder)

    def _router(self, name: str) -> Iterable[str]:
        engines = [part for role in ("target", "draft") for part in (f"--{role}s", self._all(role))]
        stores = [f"redis://{self._named(name)}" for name in self.names("redis")]
        return [*engines, *(word for url in stores for word in ("--store-url", url)), *self._kept]

    def _target(self, name: str) -> Iterable[str]:
        named = ["--model", self._pair.target, "--dtype", self._pair.dtype, "--threads", "1"]
        return [*named, "--advertised-address", self._named(name)]

    def _draft(self, _: str) -> Iterable[str]:
        named = ["--draft", self._pair.draft, "--target-model", self._pair.target]
        return [*named, "--dtype", self._pair.dtype, "--threads", "1"]


@asynccontextmanager
async def running(
    pair: Pair, folder: Path, *, kind: type[Cluster] = Cluster, **how: Any
) -> AsyncIterator[Cluster]:
    """A cluster that is all there. It leaves its logs in the folder."""
    cluster = kind(pair, folder, **how)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


def _redis(folder: Path, host: str, port: int) -> list[str]:
    """A server at a port. What it answers is written to its file before: a kill loses nothing."""
    words = [str(valkey_binary()), "--port", str(port), "--bind", host, "--dir", str(folder)]
    words += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    return [*words, "--protected-mode", "no"]


async def _accepts(process: Forked) -> bool:
    return ACCEPTS in process.out.read_text()

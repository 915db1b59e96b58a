"""Two routers, two targets, two drafts and Redis as processes on loopback, and the ways between."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
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
from support.network.ports import free_ports
from support.network.relay import Relay, Weather
from support.services import fleet
from support.services.stalls import LoggedStall, stalls_in
from support.state.redis_server import valkey_binary

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

    def __init__(
        self,
        pair: Pair,
        folder: Path,
        *,
        sizes: Mapping[str, int] = TWO,
        proxied: bool = False,
        kept: Sequence[str] = (),
    ) -> None:
        """`kept` are the router's flags for how long it keeps what has ended."""
        self._pair, self._folder, self._sizes = pair, folder, sizes
        names = [name for role in sizes for name in self.names(role)]
        self.ports = dict(zip([*names, "redis-0"], free_ports(len(names) + 1), strict=True))
        self.members: dict[str, Member] = {}
        self.links: dict[tuple[str, str], Relay] = {}
        self._proxied, self._kept = proxied, kept
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
        if self._proxied:
            await self._lay_links()
        (self._folder / "redis").mkdir()
        for name in self.ports:
            self.members[name] = self._member(name)
        for member in self.members.values():
            member.start()
        for name in self.names("router"):
            self._watchers[name] = AsyncClient(self._at(name))
        await self.settled()

    async def settled(self) -> None:
        """Wait until every process serves and each router has every replica."""
        await asyncio.gather(*(member.ready() for member in self.members.values()))
        await asyncio.gather(*map(self._knows_all, self._watchers.values()))

    async def stop(self) -> None:
        for client in self._watchers.values():
            await client.aclose()
        await asyncio.gather(*(member.stop() for member in self.members.values()))
        for link in self.links.values():
            await link.stop()

    def weather(self, weather: Weather, *ends: tuple[str, str]) -> None:
        """On the ways between, given as (who dials, who is dialled); on all by default."""
        for link in ends or self.links:
            self.links[link].become(weather)

    async def num_sessions(self, target: str) -> int:
        return int((await fleet.load_of(fleet.TARGET, self._at(target))).num_sessions)

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

    async def _lay_links(self) -> None:
        engines = [name for name in self.ports if not name.startswith("router")]
        ways = [(router, end) for router in self.names("router") for end in engines]
        ways += [("draft", target) for target in self.names("target")]
        for way in ways:
            self.links[way] = Relay(f"127.0.0.1:{self.ports[way[1]]}", seed=len(self.links))
            await self.links[way].start()

    def _at(self, to: str, *, by: str = "") -> str:
        link = self.links.get((by, to))
        return f"127.0.0.1:{self.ports[to]}" if link is None else link.address

    def _all(self, role: str, *, by: str) -> str:
        return ",".join(self._at(name, by=by) for name in self.names(role))

    def _member(self, name: str) -> Member:
        role = name.partition("-")[0]
        if role == "redis":
            command = _redis(self._folder / "redis", self.ports[name])
            return Member(name, command, self._folder)
        if role == "gateway":
            words = [role, "--router", self.address, "--listen-address", self._at(name)]
            return Member(name, Command(words, says_ready), self._folder)
        flags = {"router": self._router, "target": self._target, "draft": self._draft}[role](name)
        words = [role, "--address", self._at(name), "--grace-s", str(GRACE_S), *flags]
        return Member(name, Command(words, says_ready), self._folder)

    def _router(self, name: str) -> Iterable[str]:
        redis = f"redis://{self._at('redis-0', by=name)}"
        engines = [part for role in ("target", "draft") for part in self._engines(role, name)]
        return [*engines, "--store-url", redis, *self._kept]

    def _engines(self, role: str, router: str) -> tuple[str, str]:
        return f"--{role}s", self._all(role, by=router)

    def _target(self, name: str) -> Iterable[str]:
        named = ["--model", self._pair.target, "--dtype", "float32", "--threads", "1"]
        return [*named, "--advertised-address", self._at(name, by="draft")]

    def _draft(self, _: str) -> Iterable[str]:
        named = ["--draft", self._pair.draft, "--target-model", self._pair.target]
        return [*named, "--dtype", "float32", "--threads", "1"]


@asynccontextmanager
async def running(pair: Pair, folder: Path, **how: Any) -> AsyncIterator[Cluster]:
    """A cluster that is all there. It leaves its logs in the folder."""
    cluster = Cluster(pair, folder, **how)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


def _redis(folder: Path, port: int) -> Command:
    """A server at a port. What it answers is written to its file before: a kill loses nothing."""
    words = [str(valkey_binary()), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    words += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]

    async def serves(_: Forked) -> bool:
        return await _answers(port)

    return Command(words, serves)


async def _answers(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        return await reader.readline() == b"+PONG\r\n"
    except OSError:
        return False
    finally:
        writer.close()

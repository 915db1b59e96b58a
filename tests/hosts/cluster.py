"""The services on hosts of their own, found by name, with TLS on every hop but that to Redis."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from chaos.cluster import TWO, Cluster, Pair
from hosts.network import CLIENT, network
from support.network.certificates import certificates
from support.network.dns_server import name_server

DOMAIN = "slip.test"
PORTS = {"router": 50051, "target": 50061, "draft": 50062, "redis": 6379}
NARROW, NARROW_MTU = "target-1", 1400
"""The host behind a tunnel, as of an overlay network: its packets are smaller than others'."""


class HostCluster(Cluster):
    """One host for each process, and the client's, which is this machine. See `Cluster`."""

    def __init__(self, pair: Pair, folder: Path, *, sizes: Mapping[str, int] = TWO) -> None:
        super().__init__(pair, folder, sizes=sizes)
        self.ports = {name: PORTS[_role(name)] for name in self.ports}
        self._stack = AsyncExitStack()

    @property
    def address(self) -> str:
        """The name of all routers, as this machine resolves it."""
        return f"dns://{self.network.hosts[CLIENT].address}:53/{self._named('router')}"

    async def start(self) -> None:
        mtus = {name: NARROW_MTU if name == NARROW else 1500 for name in self.ports}
        self.network = self._stack.enter_context(network(self._folder, mtus))
        hosts = self.network.hosts
        server = await self._stack.enter_async_context(name_server(hosts[CLIENT].address, 53))
        for name in self.ports:
            for known in (name, _role(name)):
                server.named.setdefault(f"{known}.{DOMAIN}", []).append(hosts[name].address)
        names = (f"DNS:{name}" for name in server.named)
        addresses = (f"IP:{hosts[name].address}" for name in self.ports)
        self._certificates = certificates(self._folder, *names, *addresses)
        self.tls = self._certificates.client("client")
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        await self._stack.aclose()

    def ways(self, what: str, *pairs: tuple[str, str], both: bool = True) -> None:
        """Cut, refuse or mend the way from the first to the second of each pair, and back."""
        back = [pair[::-1] for pair in pairs] if both else []
        self.network.say(*(f"{what} {one} {other}" for one, other in (*pairs, *back)))

    def _host(self, name: str) -> str:
        return self.network.hosts[name].address

    def _entering(self, name: str) -> Callable[[], None]:
        return self.network.hosts[name].enter

    def _named(self, name: str) -> str:
        return f"{name}.{DOMAIN}:{PORTS[_role(name)]}"

    def _all(self, role: str) -> str:
        return f"dns:///{self._named(role)}"

    def _serving(self, role: str) -> list[str]:
        of = self._certificates
        flags = ["--tls-cert", of.cert(role), "--tls-key", of.key(role), "--tls-client-ca", of.ca]
        if role != "router":
            flags += ["--tls-client-names", "router,client"]
        if role != "target":
            flags += ["--peer-ca", of.ca, "--peer-cert", of.cert(role), "--peer-key", of.key(role)]
        return [*map(str, flags)]

    def _router(self, name: str) -> Iterable[str]:
        names = ["--peer-target-name", "target", "--peer-draft-name", "draft"]
        return [*super()._router(name), *self._serving("router"), *names]

    def _target(self, name: str) -> Iterable[str]:
        return [*super()._target(name), *self._serving("target"), "--tls-draft-names", "draft"]

    def _draft(self, name: str) -> Iterable[str]:
        allowed = f"*.{DOMAIN}:{PORTS['target']}"
        return [*super()._draft(name), *self._serving("draft"), "--kv-sources", allowed]


def _role(name: str) -> str:
    return name.partition("-")[0]

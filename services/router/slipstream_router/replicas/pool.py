"""All replicas of one role, as a source lists them, and the choice among them.

A source is a fixed list, a DNS name, a file, or the registry that replicas announce themselves to.
What can't be read for a moment changes nothing: the last list stays, and the log has the reason.

Least loaded first; among equals the one whose last request began longest ago, so that even one
request at a time is spread, and one that came late gets its share and no more. A replica that
still holds a session's keys comes before all others, unless it is crowded.
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic

from slipstream.core.errors import InvalidRequest, check, host_and_port
from slipstream.core.request.server_info import ReplicaRole, ReplicaState
from slipstream.core.round import Clock
from slipstream.files import path_of, read_text
from slipstream.rpc.channel import Dialer, check_address
from slipstream.state.factory import open_registry
from slipstream.state.options import StoreOptions
from slipstream_router.replicas.probes import D, Probe
from slipstream_router.replicas.replica import Heartbeat, Hooks, Replica

POLL_S = 1.0
DNS_POLL_S = 5.0
DNS_LIMIT_S = 5.0
LINGER_S = 10.0
REGISTRY = "registry:"
_DNS, _FILE = "dns:///", "file:"
_LOG = logging.getLogger("slipstream.router")

Addresses = frozenset[str]
Pause = Callable[[float], Awaitable[None]]
Ask = Callable[[], Awaitable[Addresses]]
AskRegistry = Callable[[], Awaitable[Collection[str]]]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Source = Callable[[], AsyncIterator[Addresses]]
"""Yields the first list of a role's addresses, and each that differs. May end, as a fixed list."""
CROWD, CROWD_FACTOR = 8, 2
"""A replica is crowded that has so many requests more than so many times those of the idlest.

Then reading a session's tokens anew elsewhere beats waiting for so many others at every round, and
replicas that were added get sessions that go on, not only those that begin. A request that runs
leaves a crowded draft by the same rule.
"""


def fixed(*addresses: str) -> Source:
    """Return a source of addresses that never change."""

    async def changes() -> AsyncIterator[Addresses]:
        yield frozenset(addresses)

    return changes


def polled(ask: Ask, *, poll_s: float, pause: Pause) -> Source:
    """Return a source that asks again and again. `ask` may raise anything: nothing changes."""

    async def changes() -> AsyncIterator[Addresses]:
        last: Addresses | None = None
        found, problem = last, ""
        while True:
            try:
                found, problem = await ask(), ""
            except Exception as error:  # a list that can't be read is not the end of its replicas
                if str(error) != problem:
                    _LOG.warning("replicas can't be listed, so the last list stays: %s", error)
                found, problem = last, str(error)
            if found is not None and found != last:
                last = found
                yield found
            await pause(poll_s)

    return changes


class LingeringSource:
    """A source whose addresses stay named for a while: a lost list is soon whole again."""

    def __init__(self, ask: AskRegistry, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._seen: dict[str, float] = {}

    async def __call__(self) -> Addresses:
        """Return the addresses that were named within `LINGER_S`."""
        found = await self._ask()
        now = self._clock()
        self._seen |= dict.fromkeys(found, now)
        self._seen = {
            address: seen for address, seen in self._seen.items() if now - seen <= LINGER_S
        }
        return frozenset(self._seen)


def parse_source(
    items: Sequence[str],
    *,
    registered: AskRegistry | None = None,
    pause: Pause = asyncio.sleep,
    resolve: Resolve | None = None,
) -> Source:
    """The source that a configuration names: addresses, or one of the other forms.

    These are `dns:///NAME:PORT`, `file:PATH`, and `registry:` for those that `registered` names.
    Raises `InvalidRequest` for anything else.
    """
    special = [item for item in items if item.startswith((_DNS, _FILE, REGISTRY))]
    if not special:
        return fixed(*map(_checked, items))
    if len(items) > 1:
        raise InvalidRequest(
            f"{special[0]} names all replicas, so nothing else can stand beside it"
        )
    if items[0] == REGISTRY and registered is not None:
        return polled(LingeringSource(registered, time.monotonic), poll_s=POLL_S, pause=pause)
    if items[0].startswith(REGISTRY):
        raise InvalidRequest(f"{items[0]!r} must be registry: alone, and needs a store_url")
    if items[0].startswith(_FILE):
        path = path_of(items[0].removeprefix(_FILE))
        return polled(lambda: _read(path), poll_s=POLL_S, pause=pause)
    host, port = host_and_port("the name behind dns:///", items[0].removeprefix(_DNS))
    ask = resolve or _resolve
    return polled(lambda: _named(ask, host, port), poll_s=DNS_POLL_S, pause=pause)


async def _read(path: Path) -> Addresses:
    """One address per line; what follows a # is a comment."""
    text = await asyncio.to_thread(read_text, path)
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return frozenset(_checked(line) for line in lines if line)


async def _named(resolve: Resolve, host: str, port: int) -> Addresses:
    try:
        async with asyncio.timeout(DNS_LIMIT_S):
            found = await resolve(host, port)
    except TimeoutError:
        raise InvalidRequest(f"{host} was not resolved within {DNS_LIMIT_S:g} s") from None
    return frozenset(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in found)


async def _resolve(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _checked(address: str) -> str:
    check("://" not in address, "the address", address, "HOST:PORT")
    return check_address(address)


class Sources:
    """The sources of both roles. `aclose` it."""

    def __init__(self, targets: Sequence[str], drafts: Sequence[str], store: StoreOptions) -> None:
        """Raises `InvalidRequest` for what names no source, or a registry without a store."""
        needs_registry = REGISTRY in (*targets, *drafts) and store.url is not None
        self._registry = open_registry(store) if needs_registry else None
        self.targets = self._source(targets, ReplicaRole.TARGET)
        self.drafts = self._source(drafts, ReplicaRole.DRAFT)

    async def aclose(self) -> None:
        """End connections. Again is fine."""
        if self._registry is not None:
            await self._registry.aclose()

    def _source(self, items: Sequence[str], role: ReplicaRole) -> Source:
        registry = self._registry
        registered = None if registry is None else partial(registry.live, role)
        return parse_source(items, registered=registered)


@dataclass(eq=False)
class Pool(Generic[D]):
    """Keeps a connection to every replica that there is. The task that awaits `run` owns it."""

    source: Source
    probe: Probe[D]
    dial: Dialer
    heartbeat: Heartbeat
    hooks: Hooks
    _listed: dict[str, tuple[Replica[D], asyncio.Task[None]]] = field(default_factory=dict)
    _retired: list[Replica[D]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Replica[D]]:
        """Yield the listed replicas by address, and those that were and still run requests."""
        listed = [replica for _, (replica, _) in sorted(self._listed.items())]
        return iter([*listed, *self._retired])

    def ready(self) -> list[Replica[D]]:
        return [replica for replica in self if replica.state is ReplicaState.READY]

    async def run(self) -> None:
        """Follow the source and every replica it lists, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                async for addresses in self.source():
                    self._update(addresses, group)
        finally:
            for replica in self:
                await replica.close()

    def _update(self, addresses: Addresses, group: asyncio.TaskGroup) -> None:
        for address in sorted(self._listed.keys() - addresses):
            replica, following = self._listed.pop(address)
            replica.retire()
            self._retired.append(replica)
            group.create_task(self._retire(replica, following))
        for address in sorted(addresses - self._listed.keys()):
            replica = Replica(
                address, self.dial, self.probe, heartbeat=self.heartbeat, hooks=self.hooks
            )
            self._listed[address] = (replica, group.create_task(replica.follow()))

    async def _retire(self, replica: Replica[D], following: asyncio.Task[None]) -> None:
        """Let its requests finish before the connection is closed; they learn when it is lost."""
        await replica.idle.wait()
        following.cancel()
        await asyncio.wait({following})
        await replica.close()
        self._retired.remove(replica)
        if replica.address not in self._listed:
            self.hooks.forget(replica.address)


def chosen(replicas: Sequence[Replica[D]], sticky: str | None) -> Replica[D] | None:
    """Return the one for a request; `sticky` is the address that may hold its keys and values."""
    idlest = min(
        replicas, key=lambda one: (one.num_busy, one.last_began, one.address), default=None
    )
    for replica in replicas:
        if replica.address == sticky and idlest is not None:
            is_crowded = replica.num_busy > CROWD_FACTOR * idlest.num_busy + CROWD
            return idlest if is_crowded else replica
    return idlest

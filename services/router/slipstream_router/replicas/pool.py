"""All replicas of one role, as a source lists them, and the choice among them.

Least loaded first; among equals the one whose last request began longest ago, so that even one
request at a time is spread, and one that came late gets its share and no more. A replica that
still holds a session's keys comes before all others, unless it is crowded.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Generic

from slipstream.core.request.server_info import ReplicaState
from slipstream.rpc.channel import Dialer
from slipstream_router.replicas.discovery import Addresses, Source
from slipstream_router.replicas.heartbeat import Heartbeat
from slipstream_router.replicas.probes import Probe
from slipstream_router.replicas.replica import D, Hooks, Replica

CROWD, CROWD_FACTOR = 8, 2
"""A replica is crowded that has so many requests more than so many times those of the idlest.

Then reading a session's tokens anew elsewhere beats waiting for so many others at every round, and
replicas that were added get sessions that go on, not only those that begin. A request that runs
leaves a crowded draft by the same rule.
"""
_USUAL, _NOBODY = Heartbeat(), Hooks()


class Pool(Generic[D]):
    """Keeps a connection to every replica that there is. The task that awaits `run` owns it."""

    def __init__(
        self,
        source: Source,
        probe: Probe[D],
        dial: Dialer,
        *,
        heartbeat: Heartbeat = _USUAL,
        hooks: Hooks = _NOBODY,
    ) -> None:
        """`hooks` receive the changes of every replica."""
        self._source = source
        self._probe = probe
        self._dial = dial
        self._heartbeat = heartbeat
        self._hooks = hooks
        self._listed: dict[str, tuple[Replica[D], asyncio.Task[None]]] = {}
        self._retired: list[Replica[D]] = []

    def __iter__(self) -> Iterator[Replica[D]]:
        """Yield the listed replicas by address, and those that were and still run requests."""
        listed = [replica for _, (replica, _) in sorted(self._listed.items())]
        return iter([*listed, *self._retired])

    def ready(self) -> list[Replica[D]]:
        """Return the replicas that take requests."""
        return [replica for replica in self if replica.state is ReplicaState.READY]

    async def run(self) -> None:
        """Follow the source and every replica it lists, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                async for addresses in self._source():
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
                address, self._dial, self._probe, heartbeat=self._heartbeat, hooks=self._hooks
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
            self._hooks.forget(replica.address)


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

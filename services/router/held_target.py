"""A target replica that a request has for itself. It lets go as soon as the replica is lost."""

import asyncio
from contextlib import ExitStack

from slipstream.core.types import Delta, Proposal, Session, Verdict
from slipstream.router.fleet import Placed
from slipstream.rpc.exchange import Peer, Terms
from slipstream.rpc.remote_target import RemoteTarget
from slipstream.rpc.v1 import draft_pb2


class HeldTargetReplica:
    """See `target_seat.HeldTarget`. It counts the request for as long as it is held."""

    def __init__(self, placed: Placed, terms: Terms) -> None:
        self.placed = placed
        self.name = placed.replica.address
        identity = placed.model.description.identity
        peer = Peer(placed.replica.name, placed.replica.channel)
        self._target = RemoteTarget(peer, identity, terms)
        self._use = ExitStack()
        self._use.enter_context(placed.replica.used())
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def verify(self, session: Session, delta: Delta, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`. Raises `Unavailable` as soon as the replica is lost."""
        return await self._target.verify(session, delta, proposal)

    def feed(self) -> draft_pb2.KvFeed | None:
        """Where a draft reads the session's keys and values; None before the first verdict."""
        description = self.placed.model.description
        return self._target.feed(description.advertised_address or self.name)

    async def park(self, ttl_s: float) -> None:
        """Have the session kept for its next turn."""
        await self._target.park(ttl_s)

    async def drop(self) -> None:
        """End the stream, which frees the session. Again, or after parking, is fine."""
        self._watching.cancel()
        self._target.end()
        self._use.close()

    async def _watch(self) -> None:
        self._target.give_up(await self.placed.epoch.lost())

"""Live replicas in Redis: one that announces itself is listed until it leaves or falls silent."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.core.errors import InvalidRequest, Unavailable
from slipstream.core.inline import beside
from slipstream.core.request.server_info import ReplicaRole
from slipstream.state.redis_store import script

if TYPE_CHECKING:
    from slipstream.state.redis_client import RedisClient

EVERY_S = 1.0
TTL_S = 5.0
"""Time for which a replica is listed after it has announced itself."""
_FORGET_S = 3600
"""Time after which a hash without announcements is forgotten as a whole."""
MAX_ADDRESS = 300
_LOG = logging.getLogger("slipstream.state")

_ANNOUNCE, _LEAVE, _LIVE = map(script, ("announce", "leave", "live"))


@dataclass(frozen=True, slots=True)
class Announcement:
    """One replica that runs."""

    role: ReplicaRole
    address: str
    incarnation: str

    def __post_init__(self) -> None:
        if not _is_word(self.incarnation):
            raise InvalidRequest(f"a replica's incarnation is {self.incarnation[:80]!r}, no word")
        if not _is_address(self.address):
            raise InvalidRequest(f"a replica's address is {self.address[:80]!r}, not HOST:PORT")


def _is_word(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    is_port = len(port) < 6 and port.isdecimal() and 0 < int(port) < 65536
    return _is_word(text) and len(text) <= MAX_ADDRESS and bool(host) and is_port


class Registry:
    """The replicas of all that share a Redis and a prefix."""

    def __init__(self, redis: "RedisClient", *, prefix: str) -> None:
        """`redis` is closed with this."""
        self._redis = redis
        self._prefix = prefix
        self._refused: set[str] = set()

    async def announce(self, replica: Announcement) -> None:
        """List the replica, or renew that. Raises `Unavailable`."""
        await self._run(_ANNOUNCE, replica.role, replica.address, replica.incarnation, _FORGET_S)

    async def leave(self, replica: Announcement) -> None:
        """List it no more, unless another process has taken its address. Raises `Unavailable`."""
        await self._run(_LEAVE, replica.role, replica.address, replica.incarnation)

    async def live(self, role: ReplicaRole) -> tuple[str, ...]:
        """Return the addresses of those that announced themselves lately, in order.

        One that is no address is logged once, and hides no other. Raises `Unavailable`.
        """
        listed = await self._run(_LIVE, role, round(TTL_S * 1000))
        texts = {data.decode(errors="replace") for data in listed}
        found = {text for text in texts if _is_address(text)}
        for text in sorted(texts - found - self._refused):
            _LOG.warning("a replica is not listed: its address is %r, not HOST:PORT", text[:80])
        self._refused = texts - found
        return tuple(sorted(found))

    async def aclose(self) -> None:
        await self._redis.aclose()

    async def _run(self, script: str, role: ReplicaRole, *words: Any) -> Any:
        key = f"{self._prefix}:replicas:{{{role.value}}}"
        return await self._redis.run(script, [key], words)


@asynccontextmanager
async def announced(
    registry: Registry, replica: Announcement, *, every_s: float = EVERY_S
) -> AsyncIterator[None]:
    """Announce the replica while the block runs, then leave.

    A store that does not answer does not end the replica: routers that know it still use it.
    """
    try:
        async with beside(_announce(registry, replica, every_s)):
            yield
    finally:
        try:
            await registry.leave(replica)
        except Unavailable as error:
            _LOG.warning("the replica is listed until it is missed: %s", error)


async def _announce(registry: Registry, replica: Announcement, every_s: float) -> None:
    problem = ""
    while True:
        try:
            await registry.announce(replica)
        except Unavailable as error:
            if not problem:
                _LOG.warning("the replica can't announce itself: %s", error)
            problem = str(error)
        else:
            if problem:
                _LOG.info("the replica announces itself again")
            problem = ""
        await asyncio.sleep(every_s)

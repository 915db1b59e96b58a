"""Live replicas in Redis: one that announces itself is listed until it leaves or falls silent.

One hash per role; each script is atomic, and times are those of Redis.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from slipstream.core.errors import InvalidRequest, Unavailable
from slipstream.core.request.server_info import ReplicaRole
from slipstream.state.scripts import Script

if TYPE_CHECKING:
    from slipstream.state.redis_client import RedisClient

EVERY_S = 1.0
TTL_S = 5.0
"""Time for which a replica is listed after it has announced itself."""
_FORGET_S = 3600
"""Time after which a hash without announcements is forgotten as a whole."""
MAX_TEXT_BYTES = 4096
_LOG = logging.getLogger("slipstream.state")

# Values are "TIME INCARNATION TEXT", by address; times in milliseconds.
_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_ANNOUNCE = Script(
    f"""{_NOW}
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d %s %s', now, ARGV[2], ARGV[3]))
redis.call('EXPIRE', KEYS[1], ARGV[4])
"""
)
_LEAVE = Script(
    """
local kept = redis.call('HGET', KEYS[1], ARGV[1])
if kept and string.match(kept, '^%d+ (%S+) ') == ARGV[2] then
  redis.call('HDEL', KEYS[1], ARGV[1])
end
"""
)
_LIVE = Script(
    f"""{_NOW}
local all, live = redis.call('HGETALL', KEYS[1]), {{}}
for at = 1, #all, 2 do
  local said, text = string.match(all[at + 1], '^(%d+) %S+ (.*)$')
  if said and now - tonumber(said) <= tonumber(ARGV[1]) then
    table.insert(live, text)
  else
    redis.call('HDEL', KEYS[1], all[at])
  end
end
return live
"""
)


@dataclass(frozen=True, slots=True)
class Announcement:
    """One replica, and what it holds at the moment."""

    role: ReplicaRole
    address: str
    """Address at which routers reach it."""
    incarnation: str
    """Incarnation of the replica's process."""
    model: str = ""
    """Model of a target; of a draft the one that it is for, empty for any."""
    kind: str = ""
    """Kind of drafter; empty for a target."""
    version: str = ""
    """Version of the package."""
    num_sessions: int = 0
    num_waiting: int = 0
    kv_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("address", "incarnation"):
            value = getattr(self, name)
            if not value or not value.isascii() or not value.isprintable() or " " in value:
                raise InvalidRequest(f"a replica's {name} is {value[:80]!r}, but must be one word")
        host, _, port = self.address.rpartition(":")
        if not (host and port.isdigit() and 0 < int(port) < 65536):
            raise InvalidRequest(f"a replica's address is {self.address[:80]!r}, not HOST:PORT")
        for name in ("num_sessions", "num_waiting", "kv_bytes"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be 0 or more")

    def text(self) -> str:
        """Return the text that is stored."""
        return json.dumps(asdict(self), separators=(",", ":"))


def announcement_from(text: str) -> Announcement:
    """Return the replica of a text, without fields of later versions. Raises `InvalidRequest`."""
    try:
        values = json.loads(text) if len(text) <= MAX_TEXT_BYTES else None
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise InvalidRequest(f"{text[:80]!r} is no announcement")
    names = (field.name for field in fields(Announcement))
    known: dict[str, Any] = {name: values[name] for name in names if name in values}
    for name, value in known.items():
        kind = int if name.startswith(("num_", "kv_")) else str
        if type(value) is not kind:
            raise InvalidRequest(f"an announcement's {name} is {str(value)[:80]!r}")
    try:
        return Announcement(**known | {"role": ReplicaRole(known.get("role", ""))})
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"an announcement that can't be used: {error}") from None


class Registry:
    """The replicas of all that share a Redis and a prefix."""

    def __init__(self, redis: "RedisClient", *, prefix: str, ttl_s: float = TTL_S) -> None:
        """`redis` is closed with this."""
        self._redis = redis
        self._prefix = prefix
        self._ttl_ms = round(ttl_s * 1000)
        self._refused: frozenset[str] = frozenset()

    async def announce(self, replica: Announcement) -> None:
        """List the replica, or renew that. Raises `Unavailable`."""
        words = (replica.address, replica.incarnation, replica.text(), _FORGET_S)
        await self._run(_ANNOUNCE, replica.role, *words)

    async def leave(self, replica: Announcement) -> None:
        """List it no more, unless another process has taken its address. Raises `Unavailable`."""
        await self._run(_LEAVE, replica.role, replica.address, replica.incarnation)

    async def live(self, role: ReplicaRole) -> tuple[Announcement, ...]:
        """Return those that announced themselves lately, by address. Raises `Unavailable`."""
        texts = await self._run(_LIVE, role, self._ttl_ms)
        return tuple(sorted(self._parsed(texts), key=lambda replica: replica.address))

    async def aclose(self) -> None:
        """End connections. May be repeated."""
        await self._redis.aclose()

    def _parsed(self, texts: Iterable[Any]) -> list[Announcement]:
        """Return the replicas; one that can't be read is logged once, and hides no other."""
        found, refused = [], set()
        for data in texts:
            text = data.decode(errors="replace") if isinstance(data, bytes) else str(data)
            try:
                found.append(announcement_from(text))
            except InvalidRequest as error:
                refused.add(text)
                if text not in self._refused:
                    _LOG.warning("a replica is not listed: %s", error)
        self._refused = frozenset(refused)
        return found

    async def _run(self, script: Script, role: ReplicaRole, *words: Any) -> Any:
        key = f"{self._prefix}:replicas:{{{role.value}}}"
        return await self._redis.run(script, [key], words)


@asynccontextmanager
async def announced(
    registry: Registry, about: Callable[[], Announcement], *, every_s: float = EVERY_S
) -> AsyncIterator[None]:
    """Announce the replica that `about` returns while the block runs, then leave.

    A store that does not answer does not end the replica: routers that know it still use it.
    """
    announcing = asyncio.get_running_loop().create_task(_announce(registry, about, every_s))
    try:
        yield
    finally:
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)
        try:
            await registry.leave(about())
        except Unavailable as error:
            _LOG.warning("the replica is listed until it is missed: %s", error)


async def _announce(registry: Registry, about: Callable[[], Announcement], every_s: float) -> None:
    problem = ""
    while True:
        try:
            await registry.announce(about())
        except Unavailable as error:
            if not problem:
                _LOG.warning("the replica can't announce itself: %s", error)
            problem = str(error)
        else:
            if problem:
                _LOG.info("the replica announces itself again")
            problem = ""
        await asyncio.sleep(every_s)

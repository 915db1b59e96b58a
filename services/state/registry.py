"""Live replicas in Redis: who announces itself is listed, until it leaves or falls silent.

One hash per role; each script is atomic, and times are those of Redis. Imports `redis`: to be
imported itself only where one is configured.
"""

import logging
from collections.abc import Iterable
from typing import Any

from slipstream.core.errors import InvalidRequest
from slipstream.core.server_info import ReplicaRole
from slipstream.state.announcement import Announcement, announcement_from
from slipstream.state.calls import Calls, Script

TTL_S = 5.0
"""How long a replica is listed after it has announced itself."""
_FORGET_S = 3600
"""What nobody announces anything in is forgotten as a whole."""
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


class Registry:
    """The replicas of all that share a Redis and a prefix."""

    def __init__(self, calls: Calls, *, prefix: str, ttl_s: float = TTL_S) -> None:
        """`calls` are closed with this."""
        self._calls = calls
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
        """Those that announced themselves lately, by address. Raises `Unavailable`."""
        texts = await self._run(_LIVE, role, self._ttl_ms)
        return tuple(sorted(self._understood(texts), key=lambda at: at.address))

    async def aclose(self) -> None:
        """End connections. Again is fine."""
        await self._calls.aclose()

    def _understood(self, texts: Iterable[Any]) -> list[Announcement]:
        """One that can't be read must not hide the others. The log says so once."""
        found, refused = [], set()
        for text in map(_text, texts):
            try:
                found.append(announcement_from(text))
            except InvalidRequest as error:
                refused.add(text)
                if text not in self._refused:
                    _LOG.warning("a replica is not listed: %s", error)
        self._refused = frozenset(refused)
        return found

    async def _run(self, script: Script, role: ReplicaRole, *words: Any) -> Any:
        # What stands in braces decides the place in a cluster.
        key = f"{self._prefix}:replicas:{{{role.value}}}"
        return await self._calls.run(script, [key], words)


def _text(answer: Any) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)

"""Exchange of learned texts between routers through Redis, in the background of requests.

One stream for each scope, with its newest texts only. Each script is atomic, and times are those of
Redis. What is read is checked: any client of that Redis could have written it.
"""

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.core.draft.ngram import MAX_TOKEN_ID
from slipstream.core.errors import Unavailable
from slipstream.state.scripts import TOKEN_BYTES, Script, packed, unpacked

if TYPE_CHECKING:
    from slipstream.state.redis_client import RedisClient

MAX_TEXT_TOKENS = 4096
"""Tokens of a text; of a longer one the last."""
EVERY_S = 1.0
IN_USE_S = 60.0
"""How long a scope is read after it was last used."""
MAX_WAITING = 256
"""Texts that wait to be published."""
MAX_SCOPES = 10_000
_PAGES = 4
"""Pages of one scope that are read in a row."""
Text = tuple[int, ...]
_LOG = logging.getLogger("slipstream.state")
PAGE = 32
"""Texts that are read at once."""
_MAX_BYTES = 2 * TOKEN_BYTES * MAX_TEXT_TOKENS
"""Bytes of a kept text at most: compressed ones are smaller, and none is larger by much."""

# ARGV: TTL in milliseconds. Both scripts begin with this.
_FORGET = """
local time = redis.call('TIME')
local oldest = time[1] * 1000 + math.floor(time[2] / 1000) - tonumber(ARGV[1])
redis.call('XTRIM', KEYS[1], 'MINID', string.format('%.0f', math.max(oldest, 0)))
"""
# ARGV: TTL, texts to keep, replica, text
_PUBLISH = Script(
    f"""{_FORGET}
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'by', ARGV[3], 'tokens', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
"""
)
# ARGV: TTL, texts to begin with, replica to leave out, bytes of a text, texts to read, position or
# nothing. Answers with the new position, texts found, those left out for their form, the others.
_READ = Script(
    f"""{_FORGET}
local from, last = '(' .. ARGV[6], ARGV[6]
if last == '' then
  local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', ARGV[2])
  if #newest == 0 then return {{'', 0, 0}} end
  from = newest[#newest][1]
end
local found = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', ARGV[5])
local answer = {{last, #found, 0}}
for _, entry in ipairs(found) do
  local fields = entry[2]
  answer[1] = entry[1]
  if #fields ~= 4 or #fields[4] > tonumber(ARGV[4]) then
    answer[3] = answer[3] + 1
  elseif fields[2] ~= ARGV[3] then
    table.insert(answer, fields[4])
  end
end
return answer
"""
)


@dataclass(frozen=True, slots=True)
class TextPage:
    """Texts of a scope that follow a position, oldest first."""

    texts: tuple[Text, ...]
    position: str
    """Position to read on from."""
    has_more: bool
    num_invalid: int
    """Entries that can't be texts, and are left out."""


class RedisTexts:
    """Texts of all routers that share a Redis and a prefix. `replica` names this one."""

    def __init__(
        self, redis: "RedisClient", *, prefix: str, replica: str, num_kept: int, ttl_s: float
    ) -> None:
        """`redis` is closed with this. A scope keeps about `num_kept` texts. None is read beyond
        `ttl_s`; a scope that gets no text for so long is forgotten."""
        self._redis = redis
        self._prefix = prefix
        self._replica = replica
        self._num_kept = num_kept
        self._ttl_ms = max(round(ttl_s * 1000), 1)

    async def publish(self, scope: str, text: Sequence[int]) -> None:
        """Add a text. Raises `Unavailable`."""
        data = zlib.compress(packed(tuple(text[-MAX_TEXT_TOKENS:])), 1)
        words = (self._ttl_ms, self._num_kept, self._replica, data)
        await self._redis.run(_PUBLISH, [self._key(scope)], words)

    async def read(self, scope: str, position: str) -> TextPage:
        """Return texts of other replicas behind a position; an empty one stands before the newest
        texts that are kept. Raises `Unavailable`."""
        words = (self._ttl_ms, self._num_kept, self._replica, _MAX_BYTES, PAGE, position)
        answer = await self._redis.run(_READ, [self._key(scope)], words)
        try:
            last, num_found, num_misshapen, *entries = answer
            texts = [_text(data) for data in entries]
            known = tuple(text for text in texts if text is not None)
            num_invalid = num_misshapen + len(texts) - len(known)
            return TextPage(known, last.decode(), num_found >= PAGE, num_invalid)
        except (AttributeError, TypeError, ValueError):
            raise Unavailable("the store's answer holds no texts") from None

    async def aclose(self) -> None:
        """End connections. May be repeated."""
        await self._redis.aclose()

    def _key(self, scope: str) -> str:
        return f"{self._prefix}:texts:{scope}"


def _text(data: Any) -> tuple[int, ...] | None:
    """Return the tokens of an entry; None where it holds anything else."""
    inflater, limit = zlib.decompressobj(), TOKEN_BYTES * MAX_TEXT_TOKENS
    try:
        plain = inflater.decompress(data, limit + 1)
    except zlib.error:
        return None
    if not inflater.eof or len(plain) > limit or not plain or len(plain) % TOKEN_BYTES:
        return None
    tokens = unpacked(plain)
    return None if max(tokens) > MAX_TOKEN_ID else tokens


@dataclass(slots=True)
class _Followed:
    """Position up to which a scope was read, the tokens below it, and its last use."""

    vocab_size: int
    used_s: float = 0.0
    position: str = ""


class TextExchange:
    """Publishes texts of this router and reads those of others, while `run` runs."""

    def __init__(
        self,
        texts: RedisTexts,
        learn: Callable[[str, Sequence[int]], None],
        *,
        clock: Callable[[], float],
        every_s: float = EVERY_S,
    ) -> None:
        """`learn` is called with the scope and the tokens of each text that another router has
        published. `texts` are closed with this."""
        self._texts = texts
        self._learn = learn
        self._clock = clock
        self._every_s = every_s
        self._waiting: deque[tuple[str, Sequence[int]]] = deque()
        self._followed: dict[str, _Followed] = {}  # least recently used first
        self._wake = asyncio.Event()
        self._problem = ""
        self.num_dropped = 0
        """Texts of this router that others do not get, as the store did not keep up."""
        self.num_invalid = 0
        """Entries of the store that hold no text."""

    def publish(self, scope: str, text: Sequence[int]) -> None:
        """Have a text published soon. Returns at once."""
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self.num_dropped += 1
        self._waiting.append((scope, text))

    def follow(self, scope: str, vocab_size: int) -> None:
        """Have a scope read for a while: what is there of it at once, then what comes.

        Texts with ids from `vocab_size` on are left out: a target would refuse them.
        """
        followed = self._followed.pop(scope, None)
        if followed is None:
            followed = _Followed(vocab_size)
            self._wake.set()
        followed.used_s = self._clock()
        self._followed[scope] = followed
        if len(self._followed) > MAX_SCOPES:
            del self._followed[next(iter(self._followed))]

    async def run(self) -> None:
        """Publish and read, until cancelled."""
        while True:
            try:
                await self._publish_all()
                await self._read_all()
            except Unavailable as error:
                if not self._problem:
                    _LOG.warning("routers do not share what they learn: %s", error)
                self._problem = str(error)
            else:
                if self._problem:
                    _LOG.info("routers share what they learn again")
                self._problem = ""
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._wake.wait()
            self._wake.clear()

    async def aclose(self) -> None:
        """Publish what waits, if the store answers, and end connections."""
        with suppress(Unavailable):
            await self._publish_all()
        await self._texts.aclose()

    async def _publish_all(self) -> None:
        while self._waiting:
            text = self._waiting.popleft()
            try:
                await self._texts.publish(*text)
            except BaseException:
                self._waiting.appendleft(text)
                raise

    async def _read_all(self) -> None:
        now_s = self._clock()
        in_use = [at for at in self._followed.items() if now_s - at[1].used_s < IN_USE_S]
        for scope, followed in in_use:
            for _ in range(_PAGES):
                page = await self._texts.read(scope, followed.position)
                followed.position = page.position
                self.num_invalid += page.num_invalid
                await self._learn_all(scope, page.texts, followed.vocab_size)
                if not page.has_more:
                    break

    async def _learn_all(self, scope: str, texts: Iterable[Text], vocab_size: int) -> None:
        for text in texts:
            if max(text, default=0) >= vocab_size:
                self.num_invalid += 1
                continue
            self._learn(scope, text)
            await asyncio.sleep(0)  # requests come first

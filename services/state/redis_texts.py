"""Texts that routers learned from, in Redis: one stream for each scope, its newest texts only.

Each script is atomic, and times are those of Redis. What is read is checked: anybody who may write
there could have written it. Imports `redis`: to be imported itself only where one is configured.
"""

import zlib
from collections.abc import Sequence
from typing import Any

from slipstream.core.errors import Unavailable
from slipstream.core.ngram import MAX_TOKEN_ID
from slipstream.state.calls import Calls, Script
from slipstream.state.packing import TOKEN_BYTES, packed, unpacked
from slipstream.state.text_exchange import MAX_TEXT_TOKENS, TextPage

PAGE = 32
"""Texts that are read at once."""
_MAX_BYTES = 2 * TOKEN_BYTES * MAX_TEXT_TOKENS
"""Of a text as it is kept: compressed ones are smaller, and none is larger by much."""

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


class RedisTexts:
    """Texts of all routers that share a Redis and a prefix. `replica` names this one."""

    def __init__(
        self, calls: Calls, *, prefix: str, replica: str, num_kept: int, ttl_s: float
    ) -> None:
        """`calls` are closed with this. A scope keeps about `num_kept` texts. None is read beyond
        `ttl_s`; a scope that gets no text for so long is forgotten."""
        self._calls = calls
        self._prefix = prefix
        self._replica = replica
        self._num_kept = num_kept
        self._ttl_ms = max(round(ttl_s * 1000), 1)

    async def publish(self, scope: str, text: Sequence[int]) -> None:
        """Add a text. Raises `Unavailable`."""
        data = zlib.compress(packed(tuple(text[-MAX_TEXT_TOKENS:])), 1)
        words = (self._ttl_ms, self._num_kept, self._replica, data)
        await self._calls.run(_PUBLISH, [self._key(scope)], words)

    async def read(self, scope: str, position: str) -> TextPage:
        """Return texts of other replicas behind a position; an empty one stands before the newest
        texts that are kept. Raises `Unavailable`."""
        words = (self._ttl_ms, self._num_kept, self._replica, _MAX_BYTES, PAGE, position)
        answer = await self._calls.run(_READ, [self._key(scope)], words)
        try:
            last, num_found, num_misshapen, *entries = answer
            texts = [_text(data) for data in entries]
            known = tuple(text for text in texts if text is not None)
            num_invalid = num_misshapen + len(texts) - len(known)
            return TextPage(known, last.decode(), num_found >= PAGE, num_invalid)
        except (AttributeError, TypeError, ValueError):
            raise Unavailable("the store answers nonsense where texts are asked for") from None

    async def aclose(self) -> None:
        """End connections. Again is fine."""
        await self._calls.aclose()

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

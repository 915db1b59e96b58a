"""Scripts of Redis, and those that change a session there. `MemoryStore` is their model.

A session is a hash and its tokens, a string of four bytes each, little-endian. Both
expire together. The hash's `count` is the number of tokens: where it differs,
the server has evicted one of the two, and the session is not there. A session that was
deleted leaves its fence behind for a while, so that the next one's is above it.

Servers from Redis 6.2 on run these: each script is atomic, and its effects are logged as one.
"""

import hashlib
import struct
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Script:
    """A script of Redis, known to servers by its digest."""

    text: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)


TOKEN_BYTES = 4
"""Bytes of a token in a store, little-endian."""


def packed(tokens: tuple[int, ...]) -> bytes:
    """Return the bytes of tokens, each from 0 to 2**32 - 1."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


def unpacked(data: bytes) -> tuple[int, ...]:
    """Return the tokens of bytes."""
    return struct.unpack(f"<{len(data) // TOKEN_BYTES}I", data)


# KEYS: the hash, the tokens. Every script begins with this.
_BEGIN = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local session, tokens = KEYS[1], KEYS[2]

local function whole(number) return string.format('%.0f', number) end

-- Read fields; whether there is a session comes first.
local function read(...)
  local kept = redis.call('HMGET', session, 'count', 'fence', ...)
  local is_there = kept[1] and redis.call('STRLEN', tokens) == 4 * tonumber(kept[1])
  return is_there, tonumber(kept[1] or 0), tonumber(kept[2] or 0), kept
end

local function remember(count, ttl_ms, leased_until)
  local last = leased_until
  if count > 0 then last = math.max(leased_until, now + ttl_ms) end
  redis.call('PEXPIREAT', session, whole(last))
  redis.call('PEXPIREAT', tokens, whole(last))
end

-- A full server refuses a script's first write, if that may need memory, and no later one.
local function forget(fence)
  redis.call('DEL', session, tokens)
  redis.call('HSET', session, 'fence', whole(fence))
  redis.call('PEXPIREAT', session, whole(math.max(now, fence) + 60000))
end

local function record(fence, leased)
  local fields = redis.call('HMGET', session, 'owner', 'model', 'request', 'digest', 'prompt',
                            'params', 'ending', 'tokenizer', 'target', 'draft', 'arithmetic')
  return {'', whole(fence), leased, fields, redis.call('GET', tokens) or ''}
end
"""

# ARGV: request, digest, owner, holder, model, create, TTL, lease, ids to remember, takes over,
# the request that must be the newest
ACQUIRE = Script(
    _BEGIN
    + """
local request, digest, owner, holder, model = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local creates, ttl_ms = ARGV[6] ~= '', tonumber(ARGV[7])
local leased_until, max_past = now + tonumber(ARGV[8]), tonumber(ARGV[9])
local after = ARGV[11]
local is_there, count, fence, kept =
  read('owner', 'model', 'request', 'digest', 'ending', 'lease', 'past', 'holder', 'prompt',
       'before')
local past = kept[9] or ''
-- Whether the newest request has tokens, and the newest one before it that has an answer.
local has_tokens, last = kept[11] ~= '0', string.match(past, '[^\\n]*\\n$') or ''
-- Whether this request follows that one, and the newest never ended.
local drops = has_tokens and not kept[7] and kept[12] and after ~= '' and after .. '\\n' == last

local function refusal()
  if kept[3] ~= owner then return 'owner' end
  if kept[5] == request or string.find('\\n' .. past, '\\n' .. request .. '\\n', 1, true) then
    return 'request'
  end
  if creates then return 'exists' end
  if model ~= '' and model ~= kept[4] then return 'model' end
  local newest = has_tokens and kept[5] .. '\\n' or last
  if after ~= '' and after .. '\\n' ~= newest and not drops then return 'moved' end
  if tonumber(kept[8]) > now and not kept[7] then return 'busy' end
end

-- Whether another attempt at the request has not given its lease back, and is not to lose it.
local function is_held()
  local other = kept[10]
  if kept[8] == '0' or other == holder then return false end
  local process = string.match(holder, '^(.*-)[^-]*$')
  local is_newer = process and string.sub(other, 1, #process) == process and other > holder
  return ARGV[10] == '' or is_newer
end

if not is_there then
  if not creates or model == '' then return {'absent'} end
  redis.call('HSET', session, 'owner', owner, 'model', model, 'count', 0, 'prompt', 0,
             'params', '', 'request', request, 'digest', digest, 'before', 0)
  redis.call('HDEL', session, 'ending', 'past', 'tokenizer', 'target', 'draft', 'arithmetic')
  redis.call('DEL', tokens)
  count = 0
elseif kept[3] == owner and kept[5] == request and kept[6] == digest then
  if kept[7] then
    remember(count, ttl_ms, tonumber(kept[8]))
    return record(fence, '')
  end
  if is_held() then return {'taken'} end
else
  local why = refusal()
  if why then return {why, kept[4]} end
  if drops then
    count = tonumber(kept[12])
    local before = count > 0 and redis.call('GETRANGE', tokens, 0, 4 * count - 1) or ''
    redis.call('DEL', tokens)
    redis.call('APPEND', tokens, before)
  end
  if not has_tokens or drops then
    past = string.sub(past, 1, #past - #last)
  else
    last = ''
  end
  if kept[5] ~= '' then past = past .. kept[5] .. '\\n' end
  past = past .. last
  local _, num_past = string.gsub(past, '\\n', '')
  for _ = 1, num_past - max_past do past = string.gsub(past, '^[^\\n]*\\n', '') end
  redis.call('HSET', session, 'request', request, 'digest', digest, 'past', past, 'prompt', 0,
             'params', '', 'count', whole(count), 'before', whole(count))
  redis.call('HDEL', session, 'ending')
end
fence = math.max(fence + 1, now)
redis.call('HSET', session, 'fence', whole(fence), 'lease', whole(leased_until), 'holder', holder)
remember(count, ttl_ms, leased_until)
return record(fence, '1')
"""
)

# ARGV: fence, TTL, lease, then those of the script
_HELD = (
    _BEGIN
    + """
local ttl_ms, leased_until = tonumber(ARGV[2]), now + tonumber(ARGV[3])
local is_there, count, fence, kept = read('prompt', 'ending')
local function refusal()
  if not is_there or fence < tonumber(ARGV[1]) then return 'lost' end
  if fence > tonumber(ARGV[1]) then return 'taken' end
end
local why = refusal()
"""
)

# ARGV: start, tokens, whether it opens, prompt, parameters, tokenizer, arithmetic, whether it ends,
# ending
APPEND = Script(
    _HELD
    + """
if why then return why end
local start, new, opens, ends = tonumber(ARGV[4]), ARGV[5], ARGV[6] ~= '', ARGV[11] ~= ''
if start > count then return 'gap' end
local num_known = math.min(count - start, #new / 4)
local num_new = #new / 4 - num_known
if num_known > 0 and redis.call('GETRANGE', tokens, 4 * start, 4 * (start + num_known) - 1)
    ~= string.sub(new, 1, 4 * num_known) then
  return 'differs'
end
if opens and kept[3] ~= '0' and kept[3] ~= ARGV[7] then return 'differs' end
if kept[4] and (num_new > 0 or (ends and kept[4] ~= ARGV[12])) then return 'differs' end

if num_new > 0 then redis.call('APPEND', tokens, string.sub(new, 4 * num_known + 1)) end
count = count + num_new
redis.call('HSET', session, 'count', whole(count), 'lease', whole(leased_until))
if opens then
  redis.call('HSET', session, 'prompt', ARGV[7], 'params', ARGV[8], 'tokenizer', ARGV[9],
             'arithmetic', ARGV[10])
end
if ends then redis.call('HSET', session, 'ending', ARGV[12]) end
remember(count, ttl_ms, leased_until)
return ''
"""
)

RENEW = Script(
    _HELD
    + """
if why then return why end
redis.call('HSET', session, 'lease', whole(leased_until))
remember(count, ttl_ms, leased_until)
return ''
"""
)

# ARGV: target and draft, empty for none
RELEASE = Script(
    _HELD
    + """
if why then return '' end
if count == 0 then
  forget(fence)
  return ''
end
redis.call('HSET', session, 'lease', 0)
-- A request that never opened was refused: it may be corrected under its id.
if kept[3] == '0' then redis.call('HSET', session, 'request', '', 'digest', '') end
for name, address in pairs({target = ARGV[4], draft = ARGV[5]}) do
  if address == '' then
    redis.call('HDEL', session, name)
  else
    redis.call('HSET', session, name, address)
  end
end
remember(count, ttl_ms, 0)
return ''
"""
)

# ARGV: owner
DELETE = Script(
    _BEGIN
    + """
local is_there, count, fence, kept = read('owner', 'lease', 'ending')
if not is_there then return {'absent'} end
if kept[3] ~= ARGV[1] then return {'owner'} end
if tonumber(kept[4]) > now and not kept[5] then return {'busy'} end
fence = math.max(fence + 1, now)
local last = record(fence, '')
forget(fence)
return last
"""
)

-- Beginning of every script of a session. KEYS: the hash, the tokens.
--
-- The tokens are a string of four bytes each, little-endian. Both keys expire together. The hash's
-- `count` is the number of tokens: where it differs, the server has evicted one of the two, and the
-- session is not there. A session that was deleted leaves its fence behind for a while, so that the
-- next one's is above it.

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
                            'ending', 'tokenizer', 'target', 'draft', 'arithmetic')
  return {'', whole(fence), leased, fields, redis.call('GET', tokens) or ''}
end

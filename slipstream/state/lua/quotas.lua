-- KEYS: buckets (a hash), requests that run (a sorted set, by when they count no more), and their
-- attempts (a hash). The rules are those of `MemoryQuotas`; what has expired is full, or over.

local op, id, attempt = ARGV[1], ARGV[2], ARGV[3]
local ttl, amount = tonumber(ARGV[4]), tonumber(ARGV[5])
local limits = {r = tonumber(ARGV[6]), t = tonumber(ARGV[7]), c = tonumber(ARGV[8])}
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local levels, waits = {}, {}

for _, name in ipairs({'r', 't'}) do
  local limit = limits[name]
  if limit > 0 then
    local kept = redis.call('HMGET', KEYS[1], name, name .. '_at')
    local level = tonumber(kept[1] or limit)
    local passed = math.max(0, now - tonumber(kept[2] or now))
    levels[name] = math.min(limit, level + passed * limit / 60000)
  end
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  redis.call('ZREM', KEYS[2], gone)
  redis.call('HDEL', KEYS[3], gone)
end
local runs = redis.call('HGET', KEYS[3], id)

local function keep()
  local longest = 0
  for name, level in pairs(levels) do
    redis.call('HSET', KEYS[1], name, string.format('%.17g', level),
               name .. '_at', string.format('%.17g', now))
    longest = math.max(longest, (limits[name] - level) * 60000 / limits[name])
  end
  redis.call('PEXPIRE', KEYS[1], math.ceil(longest) + 1000)
end
local function run()
  redis.call('ZADD', KEYS[2], string.format('%.17g', now + ttl), id)
  redis.call('HSET', KEYS[3], id, attempt)
  local last = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  local left = math.ceil(tonumber(last[2]) - now) + 1000
  redis.call('PEXPIRE', KEYS[2], left)
  redis.call('PEXPIRE', KEYS[3], left)
end

if op == 'take' then
  local needed = 1 - 1e-9
  if runs then needed = needed - limits.r end
  if levels.r and levels.r < needed then
    waits.requests_per_minute = (needed - levels.r) * 60000 / limits.r
  end
  if not runs and levels.t and levels.t <= 0 then
    waits.tokens_per_minute = (1 - levels.t) * 60000 / limits.t
  end
  if not runs and limits.c > 0 and redis.call('ZCARD', KEYS[2]) >= limits.c then
    waits.max_concurrent = tonumber(ARGV[9])
  end
  local worst
  for name, wait in pairs(waits) do
    if not worst or wait > waits[worst] then worst = name end
  end
  if worst then return {worst, math.ceil(waits[worst])} end
  if levels.r then levels.r = levels.r - 1 end
  keep()
  run()
  return {}
end

if levels.t then levels.t = levels.t - amount end
keep()
if op == 'charge' and (not runs or runs == attempt) then run() end
if op == 'give back' and runs == attempt then
  redis.call('ZREM', KEYS[2], id)
  redis.call('HDEL', KEYS[3], id)
end
return {}

-- Values are "TIME INCARNATION TEXT", by address; times in milliseconds. Earlier routers read the
-- text.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

redis.call('HSET', KEYS[1], ARGV[1], string.format('%d %s %s', now, ARGV[2], ARGV[3]))
redis.call('EXPIRE', KEYS[1], ARGV[4])

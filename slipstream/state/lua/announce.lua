-- Values are "TIME INCARNATION", by address; times in milliseconds.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

redis.call('HSET', KEYS[1], ARGV[1], string.format('%d %s', now, ARGV[2]))
redis.call('EXPIRE', KEYS[1], ARGV[3])

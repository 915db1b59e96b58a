local kept = redis.call('HGET', KEYS[1], ARGV[1])
if kept and string.match(kept, '^%d+ (%S+)$') == ARGV[2] then
  redis.call('HDEL', KEYS[1], ARGV[1])
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local all, live = redis.call('HGETALL', KEYS[1]), {}
for at = 1, #all, 2 do
  local said = string.match(all[at + 1], '^(%d+) ')
  if said and now - tonumber(said) <= tonumber(ARGV[1]) then
    table.insert(live, all[at])
  else
    redis.call('HDEL', KEYS[1], all[at])
  end
end
return live

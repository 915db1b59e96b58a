-- ARGV behind those of held.lua: target and draft, empty for none

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

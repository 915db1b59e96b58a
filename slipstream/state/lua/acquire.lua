-- ARGV: request, digest, owner, holder, model, create, TTL, lease, ids to remember, takes over, the
-- request that must be the newest

local request, digest, owner, holder, model = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local creates, ttl_ms = ARGV[6] ~= '', tonumber(ARGV[7])
local leased_until, max_past = now + tonumber(ARGV[8]), tonumber(ARGV[9])
local after = ARGV[11]
local is_there, count, fence, kept =
  read('owner', 'model', 'request', 'digest', 'ending', 'lease', 'past', 'holder', 'prompt',
       'before')
local past = kept[9] or ''
-- Whether the newest request has tokens, and the newest one before it that has an answer.
local has_tokens, last = kept[11] ~= '0', string.match(past, '[^\n]*\n$') or ''
-- Whether this request follows that one, and the newest never ended.
local drops = has_tokens and not kept[7] and kept[12] and after ~= '' and after .. '\n' == last

local function refusal()
  if kept[3] ~= owner then return 'owner' end
  if kept[5] == request or string.find('\n' .. past, '\n' .. request .. '\n', 1, true) then
    return 'request'
  end
  if creates then return 'exists' end
  if model ~= '' and model ~= kept[4] then return 'model' end
  local newest = has_tokens and kept[5] .. '\n' or last
  if after ~= '' and after .. '\n' ~= newest and not drops then return 'moved' end
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
             'request', request, 'digest', digest, 'before', 0)
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
  if kept[5] ~= '' then past = past .. kept[5] .. '\n' end
  past = past .. last
  local _, num_past = string.gsub(past, '\n', '')
  for _ = 1, num_past - max_past do past = string.gsub(past, '^[^\n]*\n', '') end
  redis.call('HSET', session, 'request', request, 'digest', digest, 'past', past, 'prompt', 0,
             'count', whole(count), 'before', whole(count))
  redis.call('HDEL', session, 'ending')
end
fence = math.max(fence + 1, now)
redis.call('HSET', session, 'fence', whole(fence), 'lease', whole(leased_until), 'holder', holder)
remember(count, ttl_ms, leased_until)
return record(fence, '1')

-- ARGV: owner

local is_there, count, fence, kept = read('owner', 'lease', 'ending')
if not is_there then return {'absent'} end
if kept[3] ~= ARGV[1] then return {'owner'} end
if tonumber(kept[4]) > now and not kept[5] then return {'busy'} end
fence = math.max(fence + 1, now)
local last = record(fence, '')
forget(fence)
return last

-- Beginning of the scripts of a lease, behind session.lua. ARGV: fence, TTL, lease, then those of the
-- script.

local ttl_ms, leased_until = tonumber(ARGV[2]), now + tonumber(ARGV[3])
local is_there, count, fence, kept = read('prompt', 'ending')
local function refusal()
  if not is_there or fence < tonumber(ARGV[1]) then return 'lost' end
  if fence > tonumber(ARGV[1]) then return 'taken' end
end
local why = refusal()

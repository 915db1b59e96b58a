-- ARGV behind those of held.lua: start, tokens, whether it opens, prompt, tokenizer, arithmetic,
-- whether it ends, ending

if why then return why end
local start, new, opens, ends = tonumber(ARGV[4]), ARGV[5], ARGV[6] ~= '', ARGV[10] ~= ''
if start > count then return 'gap' end
local num_known = math.min(count - start, #new / 4)
local num_new = #new / 4 - num_known
if num_known > 0 and redis.call('GETRANGE', tokens, 4 * start, 4 * (start + num_known) - 1)
    ~= string.sub(new, 1, 4 * num_known) then
  return 'differs'
end
if opens and kept[3] ~= '0' and kept[3] ~= ARGV[7] then return 'differs' end
if kept[4] and (num_new > 0 or (ends and kept[4] ~= ARGV[11])) then return 'differs' end

if num_new > 0 then redis.call('APPEND', tokens, string.sub(new, 4 * num_known + 1)) end
count = count + num_new
redis.call('HSET', session, 'count', whole(count), 'lease', whole(leased_until))
if opens then
  redis.call('HSET', session, 'prompt', ARGV[7], 'tokenizer', ARGV[8], 'arithmetic', ARGV[9])
end
if ends then redis.call('HSET', session, 'ending', ARGV[11]) end
remember(count, ttl_ms, leased_until)
return ''

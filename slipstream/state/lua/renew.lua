if why then return why end
redis.call('HSET', session, 'lease', whole(leased_until))
remember(count, ttl_ms, leased_until)
return ''

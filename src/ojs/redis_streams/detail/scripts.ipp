// scripts: what is atomic, in Lua. KEYS: the stream, .retry, .dead and .meta.
//
// An entry is pending until it is settled, for a worker, for "ojs:requeued" (handed back) or for "ojs:retry" (failed;
// due at its score in KEYS[2]). Its delivery count tells one claim from the next. In KEYS[4]: "lease:CONSUMER", a
// visibility timeout in ms, and "requeued:ENTRY", how many deliveries were handed back.
#pragma once

#include <string>

namespace ojs::detail {
namespace redis {
inline constexpr const char* common_source = R"lua(
local function field(fields, name)
  for i = 1, #fields, 2 do if fields[i] == name then return fields[i + 1] end end
end
local function attempt_of(id, count)
  return math.max(1, count - tonumber(redis.call('HGET', KEYS[4], 'requeued:' .. id) or '0'))
end
local function max_attempts_of(fields, default)
  local max = tonumber(field(fields, 'max_attempts') or '')
  return math.min(max and max >= 1 and max or tonumber(default), 1e9)
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function remove(group, id, keeps)
  redis.call('XACK', KEYS[1], group, id)
  if keeps ~= '1' then redis.call('XDEL', KEYS[1], id) end
  redis.call('HDEL', KEYS[4], 'requeued:' .. id)
end
local function bury(group, id, keeps, fields, attempt, code, message)
  if #fields > 7000 then fields = {'fields', cjson.encode(fields)} end  -- more than Lua can unpack
  if not field(fields, 'id') then fields = {'id', id, unpack(fields)} end
  redis.call('XADD', KEYS[3], '*', 'error_code', code, 'error_message', message, 'attempts', attempt, unpack(fields))
  remove(group, id, keeps)
end
)lua";

// ARGV: group, consumer, count, lease, default max_attempts, keeps, max_consumer_idle, whether handed-back entries
// come first, whether to recover, what this consumer holds. Returns jobs, buried entries, the last delivered entry.
inline constexpr const char* claim_source = R"lua(
local group, me, left, keeps = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[6]
local jobs, buried, last = {}, {}, '0-0'
local function take(entry, count)
  local id, fields = entry[1], entry[2]
  local attempt, max = attempt_of(id, count), max_attempts_of(fields, ARGV[5])
  if attempt > max then
    bury(group, id, keeps, fields, max, 'attempts_used_up', 'the last attempt did not end')
    buried[#buried + 1] = id
  else
    jobs[#jobs + 1] = {id, count, attempt, max, fields}
    left = left - 1
  end
end
local function claim(id)
  local entry = redis.call('XCLAIM', KEYS[1], group, me, 0, id)[1]
  if not entry then return remove(group, id, keeps) end  -- it was deleted
  take(entry, redis.call('XPENDING', KEYS[1], group, id, id, 1)[1][4])
end
local function claim_pending(consumer, count, min_idle, held)
  for _, pending in ipairs(redis.call('XPENDING', KEYS[1], group, '-', '+', count, consumer)) do
    if left > 0 and pending[3] >= min_idle and not held[pending[1]] then claim(pending[1]) end
  end
end
local is_known = not redis.pcall('XPENDING', KEYS[1], group).err
if not is_known then redis.call('XGROUP', 'CREATE', KEYS[1], group, '0', 'MKSTREAM') end
local is_same = redis.call('HGET', KEYS[4], 'lease:' .. me) == ARGV[4]
if not is_same then redis.pcall('HSET', KEYS[4], 'lease:' .. me, ARGV[4]) end  -- claims go on when the memory is full
if ARGV[9] == '1' then
  local held = {}  -- the rest is of a lost response, or of an earlier process of that name
  for i = 10, #ARGV do held[ARGV[i]] = true end
  claim_pending(me, left + #ARGV - 9, 0, held)
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], group)) do
    local name, pending, idle = consumer[2], consumer[4], consumer[8] or consumer[6]  -- Redis 7.2: 8
    local lease = tonumber(redis.call('HGET', KEYS[4], 'lease:' .. name) or ARGV[4])
    if name == 'ojs:retry' then lease = redis.call('ZCARD', KEYS[2]) == 0 and 0 or math.huge end
    if name ~= me and pending > 0 and idle >= lease then claim_pending(name, 1000, lease, {}) end
    if pending == 0 and idle >= tonumber(ARGV[7]) then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[1], group, name)
      redis.call('HDEL', KEYS[4], 'lease:' .. name)
    end
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, left)) do
  redis.call('ZREM', KEYS[2], id)  -- if its group was destroyed meanwhile, a worker may have it, or none yet
  if redis.call('XPENDING', KEYS[1], group, id, id, 1, 'ojs:retry')[1] then claim(id) end
end
if ARGV[8] == '1' then claim_pending('ojs:requeued', left, 0, {}) end
if left > 0 then
  local new = redis.call('XREADGROUP', 'GROUP', group, me, 'COUNT', left, 'STREAMS', KEYS[1], '>')
  for _, entry in ipairs(new and new[1][2] or {}) do take(entry, 1) end
end
if left > 0 then claim_pending('ojs:requeued', left, 0, {}) end
for _, g in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do if g[2] == group then last = g[8] end end
return {jobs, buried, last}
)lua";

// ARGV: group, entry, delivery count, consumer, keeps, action; of a FAIL also code, message, max_attempts, delays.
inline constexpr const char* settle_source = R"lua(
local group, id, keeps, action = ARGV[1], ARGV[2], ARGV[5], ARGV[6]
local pending = redis.call('XPENDING', KEYS[1], group, id, id, 1)[1]
if not pending or pending[2] ~= ARGV[4] or pending[4] ~= tonumber(ARGV[3]) then return 'gone' end
if action == 'requeue' then
  redis.call('HINCRBY', KEYS[4], 'requeued:' .. id, 1)
  redis.call('XCLAIM', KEYS[1], group, 'ojs:requeued', 0, id, 'IDLE', 999999999, 'JUSTID')
  return 'accepted'
end
local entry = action ~= 'ack' and redis.call('XRANGE', KEYS[1], id, id)[1]
if not entry then return remove(group, id, keeps) or 'accepted' end
local attempt = attempt_of(id, pending[4])
if action == 'discard' or attempt >= max_attempts_of(entry[2], ARGV[9]) then
  bury(group, id, keeps, entry[2], attempt, ARGV[7], ARGV[8])
  return 'accepted'
end
redis.call('ZADD', KEYS[2], now + (ARGV[10] and ARGV[math.min(9 + attempt, #ARGV)] or 0), id)
redis.call('XCLAIM', KEYS[1], group, 'ojs:retry', 0, id, 'JUSTID')
return 'accepted'
)lua";

// ARGV: group, consumer, then pairs of an entry and its delivery count. Returns which pairs it renewed, from 0.
inline constexpr const char* renew_source = R"lua(
local renewed = {}
for i = 3, #ARGV, 2 do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  if pending and pending[2] == ARGV[2] and pending[4] == tonumber(ARGV[i + 1])
    and redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')[1] then
    renewed[#renewed + 1] = (i - 3) / 2
  end
end
return renewed
)lua";

// ARGV: group, consumer. Others still claim what is pending.
inline constexpr const char* leave_source = R"lua(
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('HDEL', KEYS[4], 'lease:' .. ARGV[2])
return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
)lua";
}  // namespace redis
}  // namespace ojs::detail

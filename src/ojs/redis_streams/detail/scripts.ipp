// scripts: what is atomic, in Lua. KEYS: the stream, .retry, .dead and .meta.
//
// An entry is pending until it is settled, for a worker, for "ojs:requeued" (handed back) or for "ojs:retry" (failed;
// due at its score in KEYS[2]). Its delivery count tells one claim from the next. In KEYS[4]: "lease:CONSUMER", a
// visibility timeout in ms, and "requeued:ENTRY", how many deliveries were handed back.
#pragma once

#include <string>

namespace ojs::detail {
namespace redis {
// Around each of the others. What is refused ends the script, with the command and the key, or one try(); Redis undoes
// nothing.
inline constexpr const char* common_source = R"lua(
local refused = ''
local function call(command, ...)
  local out = redis.pcall(command, ...)
  if type(out) ~= 'table' or not out.err then return out end
  local text = out.err:gsub('%.$', '') .. ' (' .. command
  for _, word in ipairs({...}) do
    for _, key in ipairs(KEYS) do if word == key then text = text .. ' ' .. key end end
  end
  error(text .. ')', 0)
end
local function try(run, ...)
  local done, problem = pcall(run, ...)
  if not done and refused == '' then refused = tostring(problem) end
  return done
end
local function field(fields, name)
  for i = 1, #fields, 2 do if fields[i] == name then return fields[i + 1] end end
end
local function attempt_of(id, count)
  return math.max(1, count - tonumber(call('HGET', KEYS[4], 'requeued:' .. id) or '0'))
end
local function max_attempts_of(fields, default)
  local max = tonumber(field(fields, 'max_attempts') or '')
  return math.min(max and max >= 1 and max or tonumber(default), 1e9)
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function remove(group, id, keeps)
  if keeps ~= '1' then call('XDEL', KEYS[1], id) end
  call('XACK', KEYS[1], group, id)
  redis.pcall('HDEL', KEYS[4], 'requeued:' .. id)
end
local function bury(group, id, keeps, fields, attempt, code, message)
  if #fields > 7000 then fields = {'fields', cjson.encode(fields)} end  -- more than Lua can unpack
  if not field(fields, 'id') then fields = {'id', id, unpack(fields)} end
  remove(group, '0-0', keeps)  -- whether it may: else each try would leave a dead letter
  call('XADD', KEYS[3], '*', 'error_code', code, 'error_message', message, 'attempts', attempt, unpack(fields))
  remove(group, id, keeps)
end
local function main()
)lua";
inline constexpr const char* common_end = R"lua(
end
local done, out = pcall(main)
if done then return out end
return string.find(out, '^[^(]*NOGROUP') and {} or redis.error_reply(out)
)lua";

// ARGV: group, consumer, count, lease, default max_attempts, keeps, max_consumer_idle, whether handed-back entries
// come first, whether to recover, what this consumer holds. Returns the last delivered entry, what was refused, the
// number of buried and of recovered entries; of each job its entry, deliveries, attempt, max_attempts, fields.
inline constexpr const char* claim_source = R"lua(
local group, me, left, keeps = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[6]
local jobs, buried, recovered, last = {}, 0, 0, '$'
local function take(id, count, attempt, fields)
  jobs[#jobs + 1] = {id, count, attempt, max_attempts_of(fields, ARGV[5]), #fields, fields}
  left = left - 1
end
local function claim(id)
  local entry = call('XRANGE', KEYS[1], id, id)[1]
  if not entry then return remove(group, id, keeps) end  -- it was deleted
  local count, fields = call('XPENDING', KEYS[1], group, id, id, 1)[1][4] + 1, entry[2]
  local attempt, max = attempt_of(id, count), max_attempts_of(fields, ARGV[5])
  if attempt <= max then
    call('XCLAIM', KEYS[1], group, me, 0, id, 'RETRYCOUNT', count, 'JUSTID')
    return take(id, count, attempt, fields)
  end
  bury(group, id, keeps, fields, max, 'attempts_used_up', 'the last attempt did not end')
  buried = buried + 1
end
local function claim_pending(consumer, count, min_idle, held)
  for _, pending in ipairs(call('XPENDING', KEYS[1], group, '-', '+', count, consumer)) do
    if left > 0 and pending[3] >= min_idle and not held[pending[1]] then try(claim, pending[1]) end
  end
end
local function recover_from(name, pending, idle)
  local lease = tonumber(call('HGET', KEYS[4], 'lease:' .. name) or ARGV[4])
  if name == 'ojs:retry' then lease = call('ZCARD', KEYS[2]) == 0 and 0 or math.huge end
  if name ~= me and pending > 0 and idle >= lease then claim_pending(name, 1000, lease, {}) end
  if pending == 0 and idle >= tonumber(ARGV[7]) then
    call('XGROUP', 'DELCONSUMER', KEYS[1], group, name)
    call('HDEL', KEYS[4], 'lease:' .. name)
  end
end
local function recover()
  local held = {}  -- the rest is of a lost response, or of an earlier process of that name
  for i = 10, #ARGV do held[ARGV[i]] = true end
  try(claim_pending, me, left + #ARGV - 9, 0, held)
  for _, consumer in ipairs(call('XINFO', 'CONSUMERS', KEYS[1], group)) do  -- Redis 7.2: 8
    try(recover_from, consumer[2], consumer[4], consumer[8] or consumer[6])
  end
  recovered = #jobs
end
local function claim_due()
  for _, id in ipairs(call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1000)) do
    if left == 0 then return end
    -- If its group was destroyed meanwhile, a worker may have it, or none yet.
    local is_ours = call('XPENDING', KEYS[1], group, id, id, 1, 'ojs:retry')[1]
    if not is_ours or try(claim, id) then call('ZREM', KEYS[2], id) end
  end
end
local function claim_requeued() claim_pending('ojs:requeued', left, 0, {}) end
local function claim_new()
  local new = left > 0 and call('XREADGROUP', 'GROUP', group, me, 'COUNT', left, 'STREAMS', KEYS[1], '>')
  for _, entry in ipairs(new and new[1][2] or {}) do take(entry[1], 1, 1, entry[2]) end
end
local function find_last()
  for _, g in ipairs(call('XINFO', 'GROUPS', KEYS[1])) do if g[2] == group then last = g[8] end end
end
local is_known = not redis.pcall('XPENDING', KEYS[1], group).err
if not is_known then call('XGROUP', 'CREATE', KEYS[1], group, '0', 'MKSTREAM') end
local is_same = redis.pcall('HGET', KEYS[4], 'lease:' .. me) == ARGV[4]
if not is_same then redis.pcall('HSET', KEYS[4], 'lease:' .. me, ARGV[4]) end  -- claims go on when the memory is full
if ARGV[9] == '1' then try(recover) end
try(claim_due)
if ARGV[8] == '1' and left > 0 then try(claim_requeued) end
local reads = try(claim_new)
if left > 0 then try(claim_requeued) end
if not reads and #jobs == 0 then error(refused, 0) end
try(find_last)
return {last, refused, buried, recovered, jobs}
)lua";

// ARGV: group, entry, delivery count, consumer, keeps, action; of a FAIL also code, message, max_attempts, delays.
inline constexpr const char* settle_source = R"lua(
local group, id, keeps, action = ARGV[1], ARGV[2], ARGV[5], ARGV[6]
local pending = call('XPENDING', KEYS[1], group, id, id, 1)[1]
if not pending or pending[2] ~= ARGV[4] or pending[4] ~= tonumber(ARGV[3]) then return 'gone' end
if action == 'ack' then return remove(group, id, keeps) or 'accepted' end
local entry = call('XRANGE', KEYS[1], id, id)[1]
if not entry then return remove(group, id, keeps) or 'gone' end
if action == 'requeue' then
  call('HINCRBY', KEYS[4], 'requeued:' .. id, 0)  -- whether it may
  call('XCLAIM', KEYS[1], group, 'ojs:requeued', 0, id, 'IDLE', 999999999, 'JUSTID')
  call('HINCRBY', KEYS[4], 'requeued:' .. id, 1)
  return 'accepted'
end
local attempt = attempt_of(id, pending[4])
if action == 'discard' or attempt >= max_attempts_of(entry[2], ARGV[9]) then
  return bury(group, id, keeps, entry[2], attempt, ARGV[7], ARGV[8]) or 'accepted'
end
call('ZADD', KEYS[2], now + (ARGV[10] and ARGV[math.min(9 + attempt, #ARGV)] or 0), id)
call('XCLAIM', KEYS[1], group, 'ojs:retry', 0, id, 'JUSTID')
return 'accepted'
)lua";

// ARGV: group, consumer, then pairs of an entry and its delivery count. Returns which pairs it renewed, from 0.
inline constexpr const char* renew_source = R"lua(
local renewed = {}
for i = 3, #ARGV, 2 do
  local pending = call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  if pending and pending[2] == ARGV[2] and pending[4] == tonumber(ARGV[i + 1])
    and call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')[1] then
    renewed[#renewed + 1] = (i - 3) / 2
  end
end
return renewed
)lua";

// ARGV: group, consumer. Others still claim what is pending.
inline constexpr const char* leave_source = R"lua(
if #call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
call('HDEL', KEYS[4], 'lease:' .. ARGV[2])
return call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
)lua";
}  // namespace redis
}  // namespace ojs::detail

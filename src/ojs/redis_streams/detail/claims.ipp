// claims: what is atomic, in Lua, and what this process holds. KEYS: the stream, .retry, .dead and .meta.
// An entry is pending until it is settled, for a worker, for "ojs:requeued" or for "ojs:retry" (failed;
// due at its score in KEYS[2]). Its delivery count tells one claim from the next. In KEYS[4]: "lease:CONSUMER", a
// visibility timeout in ms, and "requeued:ENTRY", how many deliveries were requeued.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "connection.ipp"

namespace ojs::detail {
namespace redis {
// Redis undoes nothing of what comes before a refusal, which ends the action or one try().
inline constexpr const char* script_source = R"lua(
local actions, action, group, me, refused = {}, table.remove(ARGV, 1), ARGV[1], ARGV[2], ''
local function call(command, ...)
  local out = redis.pcall(command, ...)
  if type(out) ~= 'table' or not out.err then return out end
  local text = (out.err:match('%u%u+ .*') or out.err):gsub('%.$', '') .. ' (' .. command  -- Redis 6: behind other text
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
local function remove(id)
  if ARGV[3] ~= '1' then call('XDEL', KEYS[1], id) end
  call('XACK', KEYS[1], group, id)
  redis.pcall('HDEL', KEYS[4], 'requeued:' .. id)
end
local function bury(id, fields, attempt, code, message)
  if #fields > 7000 then fields = {'fields', cjson.encode(fields)} end  -- more than Lua can unpack
  if fields[1] == 'error_code' and fields[5] == 'attempts' then fields = {unpack(fields, 7)} end  -- it was dead before
  if not field(fields, 'id') then fields = {'id', id, unpack(fields)} end
  remove('0-0')  -- whether it may: else each try would leave a dead letter
  call('XADD', KEYS[3], '*', 'error_code', code, 'error_message', message, 'attempts', attempt, unpack(fields))
  remove(id)
end
-- Keeps, count, lease, default max_attempts, max_consumer_idle, whether handed-back entries come first, whether to
-- recover, what this consumer holds. Returns the last delivered entry, what was refused, the number of buried
-- and of recovered entries; of each job its entry, deliveries, attempt, max_attempts, the number of its fields, these.
function actions.claim()
  local left, my_lease, held = tonumber(ARGV[4]), tonumber(ARGV[5]), {}
  local jobs, buried, recovered, last = {}, 0, 0, '$'
  local function take(id, count, attempt, fields)
    jobs[#jobs + 1] = {id, count, attempt, max_attempts_of(fields, ARGV[6]), #fields, fields}
    left = left - 1
  end
  local function claim(pending)
    local id, count = pending[1], pending[4] + 1
    local entry = call('XRANGE', KEYS[1], id, id)[1]
    if not entry then return remove(id) end  -- it was deleted
    local fields, attempt, max = entry[2], attempt_of(id, count), max_attempts_of(entry[2], ARGV[6])
    if attempt <= max then
      call('XCLAIM', KEYS[1], group, me, 0, id, 'RETRYCOUNT', count, 'JUSTID')
      return take(id, count, attempt, fields)
    end
    bury(id, fields, max, 'attempts_used_up', 'the last attempt did not end')
    buried = buried + 1
  end
  local function claim_pending(consumer, count, min_idle)
    for _, pending in ipairs(call('XPENDING', KEYS[1], group, '-', '+', count, consumer)) do
      if left > 0 and pending[3] >= (held[pending[1]] and my_lease or min_idle) then try(claim, pending) end
    end
  end
  local function recover_from(name, pending, idle)
    local lease = tonumber(call('HGET', KEYS[4], 'lease:' .. name) or ARGV[5])
    if name == 'ojs:retry' then lease = call('ZCARD', KEYS[2]) == 0 and 0 or math.huge end
    if name ~= me and pending > 0 and idle >= lease then claim_pending(name, 1000, lease) end
    if pending == 0 and idle >= tonumber(ARGV[7]) then
      call('XGROUP', 'DELCONSUMER', KEYS[1], group, name)
      call('HDEL', KEYS[4], 'lease:' .. name)
    end
  end
  local function recover()
    for i = 10, #ARGV do held[ARGV[i]] = true end
    try(claim_pending, me, left + #ARGV - 9, 0)  -- of a lost response, an earlier process of that name, a failed report
    for _, consumer in ipairs(call('XINFO', 'CONSUMERS', KEYS[1], group)) do  -- Redis 7.2: 8
      try(recover_from, consumer[2], consumer[4], consumer[8] or consumer[6])
    end
    recovered = #jobs
  end
  local function claim_due()
    for _, id in ipairs(call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1000)) do
      if left == 0 then return end
      -- If its group was destroyed meanwhile, a worker may have it, or none yet.
      local pending = call('XPENDING', KEYS[1], group, id, id, 1, 'ojs:retry')[1]
      if not pending or try(claim, pending) then call('ZREM', KEYS[2], id) end
    end
  end
  local function claim_new()
    local new = left > 0 and call('XREADGROUP', 'GROUP', group, me, 'COUNT', left, 'STREAMS', KEYS[1], '>')
    for _, entry in ipairs(new and new[1][2] or {}) do take(entry[1], 1, 1, entry[2]) end
  end
  local lease = 'lease:' .. me
  if redis.pcall('XPENDING', KEYS[1], group).err then call('XGROUP', 'CREATE', KEYS[1], group, '0', 'MKSTREAM') end
  if redis.pcall('HGET', KEYS[4], lease) ~= ARGV[5] then redis.pcall('HSET', KEYS[4], lease, ARGV[5]) end
  if ARGV[9] == '1' then try(recover) end
  try(claim_due)
  if ARGV[8] == '1' and left > 0 then try(claim_pending, 'ojs:requeued', left, 0) end
  local reads = try(claim_new)
  if left > 0 then try(claim_pending, 'ojs:requeued', left, 0) end
  if not reads and #jobs == 0 then error(refused, 0) end
  try(function()
    for _, g in ipairs(call('XINFO', 'GROUPS', KEYS[1])) do if g[2] == group then last = g[8] end end
  end)
  return {last, refused, buried, recovered, jobs}
end
-- Keeps, entry, delivery count, how; of a FAIL also code, message, max_attempts, delays.
function actions.settle()
  local id, how = ARGV[4], ARGV[6]
  local pending = call('XPENDING', KEYS[1], group, id, id, 1)[1]
  if not pending or pending[2] ~= me or pending[4] ~= tonumber(ARGV[5]) then return 'gone' end
  if how == 'ack' then return remove(id) or 'accepted' end
  local entry = call('XRANGE', KEYS[1], id, id)[1]
  if not entry then return remove(id) or 'gone' end
  if how == 'requeue' then
    call('HINCRBY', KEYS[4], 'requeued:' .. id, 0)  -- whether it may
    call('XCLAIM', KEYS[1], group, 'ojs:requeued', 0, id, 'IDLE', 999999999, 'JUSTID')
    call('HINCRBY', KEYS[4], 'requeued:' .. id, 1)
    return 'accepted'
  end
  local attempt = attempt_of(id, pending[4])
  if how == 'discard' or attempt >= max_attempts_of(entry[2], ARGV[9]) then
    return bury(id, entry[2], attempt, ARGV[7], ARGV[8]) or 'accepted'
  end
  call('ZADD', KEYS[2], now + (ARGV[10] and ARGV[math.min(9 + attempt, #ARGV)] or 0), id)
  call('XCLAIM', KEYS[1], group, 'ojs:retry', 0, id, 'JUSTID')
  return 'accepted'
end
-- Entry, delivery count and job of each claim. Returns the jobs whose claims hold.
function actions.renew()
  local renewed = {}
  for i = 3, #ARGV, 3 do
    local pending = call('XPENDING', KEYS[1], group, ARGV[i], ARGV[i], 1)[1]
    if pending and pending[2] == me and pending[4] == tonumber(ARGV[i + 1])
      and call('XCLAIM', KEYS[1], group, me, 0, ARGV[i], 'JUSTID')[1] then
      renewed[#renewed + 1] = ARGV[i + 2]
    end
  end
  return renewed
end
-- Others still claim what is pending.
function actions.leave()
  if #call('XPENDING', KEYS[1], group, '-', '+', 1, me) > 0 then return 0 end
  call('HDEL', KEYS[4], 'lease:' .. me)
  return call('XGROUP', 'DELCONSUMER', KEYS[1], group, me)
end
local done, out = pcall(actions[action])
if done then return out end
return out:find('^NOGROUP') and {} or redis.error_reply(out)
)lua";

// One delivery of an entry; as text, job::claim.
struct claim {
    explicit claim(std::string_view text) : entry(next_part(text, " ")), count(next_part(text, " ")), key(text) {}
    std::string text() const { return cat({entry, " ", count, " ", key}); }

    std::string entry, count, key;  // an earlier claim of the same consumer has another count of deliveries
};

// Takes apart what actions.claim() returns.
class claim_reader {
  public:
    explicit claim_reader(words texts) : texts_(std::move(texts)) {}
    bool has_more() const noexcept { return next_ < texts_.size(); }
    std::string text() {
        is_valid = is_valid && has_more();
        return has_more() ? std::move(texts_[next_++]) : std::string();
    }
    std::int64_t number() {
        std::uint64_t out = 0;
        is_valid = parse_number(text(), INT64_MAX, out) && is_valid;
        return static_cast<std::int64_t>(out);
    }
    bool is_valid = true;  // so far

  private:
    words texts_;
    std::size_t next_ = 0;
};

// The claims of the jobs that the worker has not settled. Thread-safe.
class held_claims {
  public:
    // Returns the job's id: not `id` if another entry has it, or had it just now: the worker would take both for one.
    std::string add(const std::string& id, const claim& added) {
        const std::lock_guard<std::mutex> held(mutex_);
        for (auto& [known, other] : claims_) {
            if (other.entry != added.entry || other.key != added.key) continue;
            other = added;
            return known;
        }
        const bool is_free = claims_.count(id) + ended_.count(id) + ended_before_.count(id) == 0;
        const std::string name = is_free ? id : cat({added.entry, " ", added.key});
        claims_.emplace(name, added);
        return name;
    }
    // Settled or lost. A later claim of the job stays.
    void remove(const std::string& id, const claim& ended, bool is_done) {
        const std::lock_guard<std::mutex> held(mutex_);
        const auto found = claims_.find(id);
        if (found == claims_.end() || found->second.text() != ended.text()) return;
        if (steady_clock::now() >= next_swap_) {
            ended_before_ = std::exchange(ended_, {});
            next_swap_ = deadline_after(std::chrono::seconds(5));
        }
        if (is_done) ended_.insert(id);
        claims_.erase(found);
    }
    words entries_of(const std::string& key) {
        const std::lock_guard<std::mutex> held(mutex_);
        words out;
        for (const auto& [id, each] : claims_)
            if (each.key == key) out.push_back(each.entry);
        return out;
    }

  private:
    std::mutex mutex_;
    std::map<std::string, claim> claims_;         // by job::id
    std::set<std::string> ended_, ended_before_;  // ids of the last 5 to 10 s
    time_point next_swap_ = time_point::min();
};
}  // namespace redis
}  // namespace ojs::detail

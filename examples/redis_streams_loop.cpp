// A loop of your own on Redis Streams: plain hiredis, and the stop of a worker. Link with -lhiredis.
//     build/redis_streams_loop HOST:PORT STREAM [GROUP]
//     redis-cli XADD work '*' body 'm1 200'
// A message "ID MS" takes MS milliseconds, then prints "done ID". "ID fail" goes to STREAM.dead the fifth time.
#include <hiredis/hiredis.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ojs_shutdown.hpp"  // or ojs_shutdown_loop.hpp

namespace {
using namespace std::chrono_literals;

// A script is atomic: what a crash between two commands would lose or leave behind, it cannot.
const char* const script = R"lua(
local group, consumer, action, id = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local function read(from)
  local got = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', KEYS[1], from)
  return got and got[1][2] or {}
end
if action == 'take' then
  local found = read('0')  -- claimed, but the response was lost, or it has failed
  if #found == 0 then found = redis.call('XAUTOCLAIM', KEYS[1], group, consumer, 5000, 0, 'COUNT', 1)[2] end
  if #found == 0 then found = read('>') end
  local fields = found[1] and found[1][2] or {}
  for i = 1, #fields, 2 do if fields[i] == 'body' then return {found[1][1], fields[i + 1]} end end
  return found[1] and {found[1][1], ''} or false
end
local pending = redis.call('XPENDING', KEYS[1], group, id, id, 1)[1]
if not pending or pending[2] ~= consumer then return 0 end  -- another consumer has it
local function claim(...) return #redis.call('XCLAIM', KEYS[1], group, consumer, 0, id, 'JUSTID', ...) end
if action == 'renew' then return claim() end
if action == 'hand_back' then return claim('IDLE', 1e9, 'RETRYCOUNT', pending[4] - 1) end
if action == 'fail' and pending[4] < 5 then return 1 end
local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
if action == 'fail' and entry then redis.call('XADD', KEYS[1] .. '.dead', '*', unpack(entry[2])) end
redis.call('XACK', KEYS[1], group, id)
redis.call('XDEL', KEYS[1], id)
return 1)lua";

using reply = std::shared_ptr<redisReply>;

struct redis_queue {
    std::string host, key, group, consumer;
    int port = 6379;
    std::shared_ptr<redisContext> to = nullptr;

    // Null: no connection, or an error. The next call connects again.
    reply call(const char* action, const std::string& id = "") {
        if (!to || to->err != 0) to.reset(redisConnectWithTimeout(host.c_str(), port, {1, 0}), redisFree);
        if (!to || to->err != 0) return nullptr;
        redisSetTimeout(to.get(), {2, 0});
        const reply got(static_cast<redisReply*>(redisCommand(to.get(), "EVAL %s 1 %s %s %s %s %s", script, key.c_str(),
                                                              group.c_str(), consumer.c_str(), action, id.c_str())),
                        freeReplyObject);
        if (!got || got->type != REDIS_REPLY_ERROR) return got;
        ojs::write_log_line(STDERR_FILENO, std::string("redis: ") + got->str);
        freeReplyObject(redisCommand(to.get(), "XGROUP CREATE %s %s 0 MKSTREAM", key.c_str(), group.c_str()));
        return nullptr;
    }
    // Repeated while Redis restarts: else the message is processed twice.
    void settle(const std::string& id, const char* action) {
        const auto deadline = ojs::deadline_after(5s);
        while (!call(action, id) && ojs::steady_clock::now() < deadline) usleep(100'000);
    }
};

// Unique: in containers every program is process 1.
std::string consumer_name() {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    return host + ("-" + std::to_string(getpid())) + "-" + std::to_string(std::random_device()()) + "-";
}

// Returns the action that settles the message.
const char* process(const std::string& body, const ojs::cancel_token& interrupt) {
    const std::string id = body.substr(0, body.find(' ')), rest = body.substr(id.size());
    if (rest == " fail") return "fail";
    if (!interrupt.sleep_for(std::chrono::milliseconds(std::atoi(rest.c_str()) % 60001))) return "hand_back";
    ojs::write_log_line(STDOUT_FILENO, "done " + id);
    return "done";
}

void consume(ojs::consumer& consumer, redis_queue queue) {
    queue.consumer += std::to_string(consumer.index());
    while (consumer.next()) {
        const reply entry = queue.call("take");
        if (!entry || entry->type != REDIS_REPLY_ARRAY) {
            static_cast<void>(consumer.intake_token().sleep_for(100ms));  // ends at once when the loop stops
            continue;
        }
        const ojs::item item = consumer.begin(entry->element[0]->str + (" " + queue.consumer));
        queue.settle(entry->element[0]->str, process(entry->element[1]->str, item.token()));
    }
}

// Extends the leases. Returns the items that another consumer has.
std::vector<std::string> renew(redis_queue& queue, const std::vector<std::string>& ids) {
    std::vector<std::string> lost;
    for (const std::string& id : ids) {
        queue.consumer = id.substr(id.find(' ') + 1);
        const reply got = queue.call("renew", id.substr(0, id.find(' ')));
        if (got && got->integer == 0) lost.push_back(id);
    }
    return lost;
}
}  // namespace

int main(int argc, char** argv) {
    ojs::loop loop;                 // first: a SIGTERM during start-up is kept
    std::signal(SIGPIPE, SIG_IGN);  // hiredis may raise it
    if (argc < 3) return ojs::report_startup_error({ojs::errc::invalid_argument, 0, "HOST:PORT STREAM [GROUP]"});
    const std::string at = argv[1], host = at.substr(0, at.find(':')), port = at.substr(at.rfind(':') + 1);
    const redis_queue queue{host, argv[2], argc > 3 ? argv[3] : "ojs", consumer_name(), std::atoi(port.c_str())};
    loop.add_consumers(0, [&](ojs::consumer& consumer) { consume(consumer, queue); });
    loop.on_renew(1s, [renewals = queue](const auto& ids) mutable { return renew(renewals, ids); });
    return loop.run();
}

// ojs_redis_streams.hpp put through what every transport must do, and its own cases. The server is at loopback's
// port OJS_TEST_BROKER_PORT; its process is OJS_TEST_BROKER_PID.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS
#include <hiredis/hiredis.h>

#include <csignal>
#include <map>

#include "contract/doctest.hpp"
#include "contract/lone_worker.hpp"
#include "contract/relay.hpp"
#include "ojs_redis_streams.hpp"

namespace {
using namespace std::chrono_literals;
using transport_contract::job_state;
using transport_contract::jobs;
using transport_contract::new_job;
using transport_contract::new_queue;
using transport_contract::share;
using transport_contract::soon;
using transport_contract::texts;
using transport_contract::traits;

int number_in(const char* variable) {
    const char* const value = std::getenv(variable);
    return value == nullptr ? 0 : std::atoi(value);
}

std::uint16_t redis_port() { return static_cast<std::uint16_t>(number_in("OJS_TEST_BROKER_PORT")); }

// A connection of the test's own: what redis-cli shows.
class inspector {
  public:
    inspector() {
        if (!to_ || to_->err != 0) throw std::runtime_error("there is no Redis at OJS_TEST_BROKER_PORT");
    }

    // All texts and numbers of the reply, in order.
    texts ask(const texts& words) {
        std::vector<const char*> starts;
        std::vector<std::size_t> sizes;
        for (const std::string& word : words) starts.push_back(word.data()), sizes.push_back(word.size());
        const int count = static_cast<int>(words.size());
        const std::shared_ptr<void> got(redisCommandArgv(to_.get(), count, starts.data(), sizes.data()),
                                        freeReplyObject);
        if (!got) throw std::runtime_error("Redis does not respond");
        texts out;
        add(*static_cast<redisReply*>(got.get()), out);
        return out;
    }
    std::string ask_one(const texts& words) {
        const texts out = ask(words);
        return out.empty() ? "" : out.front();
    }

  private:
    static void add(const redisReply& from, texts& out) {
        if (from.str != nullptr) out.emplace_back(from.str, from.len);
        if (from.type == REDIS_REPLY_INTEGER) out.push_back(std::to_string(from.integer));
        for (std::size_t i = 0; i < from.elements; ++i) add(*from.element[i], out);
    }

    const std::shared_ptr<redisContext> to_{redisConnect("127.0.0.1", redis_port()), redisFree};
};

ojs::redis_streams_options options_for(int port = redis_port()) {
    ojs::redis_streams_options out;
    out.url = "redis://127.0.0.1:" + std::to_string(port);
    out.retry_delays = {0ms};
    return out;
}

class redis_subject : public transport_contract::subject {
  public:
    traits can() const override {
        traits out;
        out.first_in_first_out = out.keeps_args_text = out.holds_nul = out.any_type = out.any_id = true;
        out.requeue_spares_attempt = out.knows_holder = out.tells_of_work = true;
        out.jobs_outlive_worker = out.counts_lost_runs = true;
        out.largest_args = 200 * 1024;
        out.lease = 300ms;
        return out;
    }
    std::shared_ptr<ojs::transport> connect(const ojs::worker_identity&) override {
        return share(ojs::open_redis_streams(options_for(relay_.port())));
    }
    std::string push(const new_job& what) override {
        const std::string id = what.id.empty() ? "job-" + std::to_string(++pushed_) : what.id;
        queues_[id] = what.queue;
        redis_.ask({"XGROUP", "CREATE", what.queue, "ojs", "0", "MKSTREAM"});  // so that the first FETCH claims
        redis_.ask({"XADD", what.queue, "*", "id", id, "type", what.type, "args", what.args_json, "max_attempts",
                    std::to_string(what.max_attempts)});
        return id;
    }
    job_state state_of(const std::string& id) override {
        if (queues_.count(id) == 0) return job_state::absent;
        const std::string& queue = queues_[id];
        if (!entry_of(id, queue + ".dead").empty()) return job_state::discarded;
        const std::string entry = entry_of(id, queue);
        if (entry.empty()) return job_state::completed;
        const texts pending = redis_.ask({"XPENDING", queue, "ojs", entry, entry, "1"});
        const bool is_waiting = pending.size() != 4 || pending[1] == "ojs:requeued" || pending[1] == "ojs:retry";
        return is_waiting ? job_state::waiting : job_state::running;
    }
    bool freeze() override { return transport_contract::stand_still(number_in("OJS_TEST_BROKER_PID")); }
    void thaw() override { ::kill(number_in("OJS_TEST_BROKER_PID"), SIGCONT); }
    bool lose_answers(int count) override {
        relay_.lose(count);
        return true;
    }

  private:
    std::string entry_of(const std::string& id, const std::string& stream) {
        const std::string find =
            "for _, e in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do for i = 1, #e[2], 2 do"
            " if e[2][i] == 'id' and e[2][i + 1] == ARGV[1] then return e[1] end end end";
        return redis_.ask_one({"EVAL", find, "1", stream, id});
    }
    static bool is_script(const std::string& request) { return request.find("EVAL") != std::string::npos; }

    inspector redis_;
    std::map<std::string, std::string> queues_;  // by id
    int pushed_ = 0;
    transport_contract::relay relay_{redis_port(), is_script};
};

struct lone_worker : transport_contract::lone_worker {
    explicit lone_worker(const std::string& stream, const std::string& name = "alone",
                         const ojs::redis_streams_options& options = options_for())
        : transport_contract::lone_worker(share(ojs::open_redis_streams(options)), stream, name) {}
};

// Sets an option of the server; its former value returns with the result.
std::shared_ptr<void> change_option(inspector& redis, const std::string& name, const std::string& value) {
    const std::string former = redis.ask({"CONFIG", "GET", name}).at(1);
    redis.ask({"CONFIG", "SET", name, value});
    return {nullptr, [&redis, name, former](void*) { redis.ask({"CONFIG", "SET", name, former}); }};
}

// A script that says `reply` to EVALSHA, OK to what comes before; if `is_endless`, again until the connection is closed.
peer::server::script replies(const std::string& reply, bool is_endless = false) {
    return [=](int fd, int /*connection*/) {
        char buffer[64 * 1024];
        for (ssize_t size; (size = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) {
            const std::string_view request(buffer, static_cast<std::size_t>(size));
            const auto has = [&](const char* word) { return request.find(word) != std::string_view::npos; };
            const bool is_call = has("\r\nEVALSHA\r\n"), is_first = has("\r\nSELECT\r\n") || has("\r\nSCRIPT\r\n");
            const std::string text = is_call ? reply : is_first ? "+OK\r\n" : "";
            while (::send(fd, text.data(), text.size(), MSG_NOSIGNAL) > 0 && is_call && is_endless) continue;
        }
    };
}

struct a_stream {
    inspector redis;
    const std::string stream = new_queue();
};
struct a_worker : a_stream {
    lone_worker worker{stream};
};

void check_refused(const ojs::result<jobs>& got, ojs::errc code, const std::string& text) {
    REQUIRE_FALSE(got);
    CHECK(got.error().code == code);
    CHECK(got.error().text == "Redis: " + text);
}
}  // namespace

TEST_CASE("redis_streams: the transport contract passes, without the check for checkpoints in a FAIL") {
    const char* const word = std::getenv("OJS_TEST_CASE");
    const auto on = std::make_shared<redis_subject>();
    const auto left_out = transport_contract::check_all([&] { return on; }, word == nullptr ? "" : word);
    if (word == nullptr) CHECK(left_out == texts{"a checkpoint travels with the FAIL"});
}

TEST_CASE_FIXTURE(a_worker, "redis_streams: an entry of other fields is a job; args that are no array are malformed") {
    const std::string entry = redis.ask_one({"XADD", stream, "*", "user", "J\xC3\xBC", "quote", "\""});
    redis.ask({"XADD", stream, "*", "id", "b", "type", "t", "body", std::string("\0\xff", 2), "max_attempts", "x"});
    redis.ask({"XADD", stream, "*", "id", "c", "args", "{}"});
    const jobs got = worker.await(3);
    const std::string envelope = "{\"user\":\"J\xC3\xBC\",\"quote\":\"\\\"\"}";
    const auto texts_of = [](const ojs::job& job) {
        return texts{job.id, job.type, job.args_json, job.body, job.meta_json};
    };
    CHECK(texts_of(got[0]) == texts{entry, "message", "[]", "", envelope});
    CHECK(got[0].envelope_json == envelope);
    CHECK(texts_of(got[1]) == texts{"b", "t", "[]", std::string("\0\xff", 2), got[1].envelope_json});
    CHECK(got[1].max_attempts == 20);
    CHECK(got[2].malformed == "the field args is not a JSON array");
    CHECK(worker.requeue(got[2], "invalid_payload") == "accepted");
    CHECK(redis.ask_one({"XLEN", stream + ".dead"}) == "1");
}

TEST_CASE_FIXTURE(a_worker, "redis_streams: entries with the id of a running or just settled job get another") {
    for (int i = 0; i < 3; ++i) redis.ask({"XADD", stream, "*", "id", "same"});
    const jobs both = worker.await(2);
    CHECK(both[0].id == "same");
    CHECK(both[1].id != "same");
    CHECK(worker.ack(both[1]) == "accepted");
    CHECK(worker.fail(both[0]) == "accepted");
    const ojs::job again = worker.fetch_one();
    CHECK(again.id == "same");
    CHECK(worker.ack(again) == "accepted");
    const ojs::job last = worker.fetch_one();
    CHECK(last.id != "same");
    CHECK(worker.ack(last) == "accepted");
    CHECK(redis.ask_one({"XLEN", stream}) == "0");
}

TEST_CASE_FIXTURE(a_stream, "redis_streams: a claim under a long lease is not taken by a worker with a short lease") {
    lone_worker patient(stream, "patient"), hasty(stream, "hasty"), other(stream, "other");
    hasty.identity.visibility_timeout = 1ms;
    for (int i = 0; i < 2; ++i) redis.ask({"XADD", stream, "*", "n", std::to_string(i)});
    const ojs::job kept = patient.fetch_one();
    const ojs::job taken = hasty.fetch_one();
    CHECK(other.await_one().id == taken.id);  // with a long lease
    while (std::stoi(redis.ask({"XPENDING", stream, "ojs", "-", "+", "1", "patient"}).at(2)) < 5) {
    }
    lone_worker hasty_too(stream, "hasty too");  // its first FETCH looks for what others have left
    hasty_too.identity.visibility_timeout = 1ms;
    CHECK(hasty_too.fetch(10)->empty());
    CHECK(patient.renews(kept));
    CHECK_FALSE(hasty.confirms(taken));
    CHECK(patient.ack(kept) == "accepted");
    CHECK(hasty.ack(taken) == "gone");
}

// What a dead worker claimed and never ran: two entries, one that may be claimed once only, and another.
void leave_orphans(inspector& redis, const std::string& stream) {
    redis.ask({"XGROUP", "CREATE", stream, "ojs", "0", "MKSTREAM"});
    for (const char* id : {"o1", "o2", "poison", "o3"})
        redis.ask({"XADD", stream, "*", "id", id, "max_attempts", id[0] == 'o' ? "9" : "the default"});
    redis.ask({"XREADGROUP", "GROUP", "ojs", "dead", "STREAMS", stream, ">"});
    redis.ask({"HSET", stream + ".ojs.meta", "lease:dead", "0"});
}

TEST_CASE_FIXTURE(
    a_stream,
    "redis_streams: a dead worker's entries -> claimed by the next FETCHes; without attempts left -> dead stream") {
    leave_orphans(redis, stream);
    ojs::redis_streams_options options = options_for();
    std::string logged;
    options.log = [&](const ojs::log_record& record) { logged += record.message; };
    options.max_attempts = 1;
    lone_worker worker(stream, "alone", options);
    for (const char* id : {"o1", "o2", "o3"}) CHECK(worker.fetch_one().id == id);
    CHECK(logged == "entries moved to the dead stream: their last attempt did not end");
    const texts fields = redis.ask({"XRANGE", stream + ".dead", "-", "+"});
    CHECK(texts(fields.begin() + 1, fields.end()) == texts{"error_code", "attempts_used_up", "error_message",
                                                           "the last attempt did not end", "attempts", "1", "id",
                                                           "poison", "max_attempts", "the default"});
    CHECK(redis.ask_one({"XLEN", stream}) == "3");
}

TEST_CASE("redis_streams: an error within a script uses no attempt, and no entry is lost or duplicated") {
    inspector redis;
    for (const std::string refused : {"XADD", "XCLAIM", "XREADGROUP", "XACK", "XDEL", "XINFO", "ZADD", "ZREM",
                                      "HINCRBY", "dead", "ojs.retry", "ojs.meta"}) {
        CAPTURE(refused);
        const std::string stream = new_queue(), key = stream + "." + refused;
        leave_orphans(redis, stream);
        for (const char* id : {"n1", "n2"}) redis.ask({"XADD", stream, "*", "id", id, "max_attempts", "9"});
        const bool is_command = refused[0] < 'a';
        redis.ask({"ACL", "SETUSER", "w", "on", "nopass", "~*", "+@all", is_command ? "-" + refused : "+@all"});
        if (!is_command) redis.ask({"SET", key, "of another type"});
        ojs::redis_streams_options options = options_for();
        options.username = options.password = "w";
        options.max_attempts = 1;
        std::string said;
        options.log = [&](const ojs::log_record& record) { said += record.fields.at(0).value; };
        lone_worker worker(stream, "alone", options);
        std::map<std::string, int> runs;
        jobs unreported;
        const auto proceed = [&] {
            const auto got = worker.fetch(10);
            if (!got) said += got.error().text;
            for (const ojs::job& job : got.value_or({})) {
                const int run = ++runs[job.id];
                CHECK(job.attempt == (job.id == "n2" ? 1 : job.id[0] == 'o' ? run + 1 : run));
                unreported.push_back(job);
            }
            for (const ojs::job& job : std::exchange(unreported, {})) {
                const bool fails = (job.id == "o2" || job.id == "n2") && runs[job.id] == 1;
                const auto sent =
                    fails ? worker.try_fail(job, {"x", "x", true, "{}"}, job.id == "n2") : worker.try_ack(job);
                if (!sent) said += sent.error().text, unreported.push_back(job);
            }
        };
        for (int i = 0; i < 3; ++i) proceed();
        CHECK(said.find(is_command ? "(" + refused + " " + stream : " " + key + ")") != std::string::npos);
        redis.ask({"ACL", "SETUSER", "w", "+@all"});
        if (!is_command) redis.ask({"DEL", key});
        redis.ask({"HSET", stream + ".ojs.meta", "lease:dead", "0"});
        CHECK(transport_contract::eventually([&] { return proceed(), redis.ask_one({"XLEN", stream}) == "0"; }));
        CHECK(redis.ask_one({"XLEN", stream + ".dead"}) == "1");
        CHECK(runs == std::map<std::string, int>{{"o1", 1}, {"o2", 2}, {"o3", 1}, {"n1", 1}, {"n2", 2}});
    }
}

TEST_CASE_FIXTURE(a_worker, "redis_streams: a queue that is refused does not affect the others") {
    const std::string other = new_queue();
    worker.identity.queues.push_back(other);
    for (const std::string& each : {stream, other}) redis.ask({"XADD", each, "*", "id", each});
    const jobs got = worker.await(2);
    redis.ask({"SET", other, "of another type"});
    const auto beat = worker.wire->heartbeat(
        {{&worker.identity, nullptr}, "running", {got[0].id, got[1].id}, {got[0].claim, got[1].claim}, false}, soon());
    CHECK((beat && beat->jobs_extended == texts{stream}));
    redis.ask({"XADD", stream, "*", "n", "1"});
    CHECK(worker.fetch_one().queue == stream);
}

TEST_CASE_FIXTURE(a_worker, "redis_streams: a report of an earlier delivery to the same worker returns gone") {
    redis.ask({"XADD", stream, "*", "id", "a"});
    const ojs::job first = worker.fetch_one();
    CHECK(worker.requeue(first) == "accepted");
    const ojs::job second = worker.fetch_one();
    CHECK(second.attempt == 1);
    CHECK(worker.requeue(first) == "gone");
    CHECK(worker.ack(first) == "gone");
    CHECK_FALSE(worker.renews(first));
    CHECK_FALSE(worker.confirms(first));
    CHECK(worker.confirms(second));
    CHECK(worker.fetch(10)->empty());
    CHECK(worker.ack(second) == "accepted");
    CHECK(redis.ask({"HKEYS", stream + ".ojs.meta"}) == texts{"lease:alone"});
}

TEST_CASE_FIXTURE(a_stream, "redis_streams: a worker claims again what a lost FETCH response had, no others") {
    transport_contract::relay relay(
        redis_port(), [](const std::string& request) { return request.find("EVALSHA") != std::string::npos; });
    lone_worker worker(stream, "alone", options_for(relay.port()));
    for (const char* id : {"held", "lost"}) redis.ask({"XADD", stream, "*", "id", id});
    const ojs::job held = worker.fetch_one();
    relay.lose(1);
    CHECK_FALSE(worker.fetch());
    const jobs again = worker.fetch(10).value_or({});
    REQUIRE(again.size() == 1);
    CHECK(again[0].id == "lost");
    CHECK(again[0].attempt == 2);
    CHECK(worker.ack(held) == "accepted");
    CHECK(worker.ack(again[0]) == "accepted");
}

TEST_CASE_FIXTURE(a_worker, "redis_streams: the claim of an entry that is deleted during its run is lost") {
    for (int i = 0; i < 3; ++i) redis.ask({"XADD", stream, "*", "n", "1"});
    const ojs::job got = worker.fetch_one();
    const jobs others = worker.await(2);
    redis.ask({"XTRIM", stream, "MAXLEN", "0"});
    CHECK(worker.fail(others[0]) == "gone");
    CHECK(worker.requeue(others[1]) == "gone");
    CHECK_FALSE(worker.renews(got));
    CHECK_FALSE(worker.confirms(got));
    redis.ask({"DEL", stream});
    CHECK(worker.ack(got) == "gone");
    CHECK_FALSE(worker.confirms(got));
    CHECK(worker.fetch()->empty());
}

TEST_CASE_FIXTURE(a_stream, "redis_streams: a failed entry returns after its delay, and ends in the dead stream") {
    ojs::redis_streams_options options = options_for();
    options.retry_delays = {1h, 2h};
    lone_worker worker(stream, "alone", options);
    const std::string entry = redis.ask_one({"XADD", stream, "*", "body", "b", "max_attempts", "4"});
    for (const int attempt : {1, 2, 3}) {
        const ojs::job got = worker.fetch_one();
        CHECK(got.attempt == attempt);
        CHECK(got.body == "b");
        const double now = std::stod(redis.ask_one({"TIME"})) * 1000;
        CHECK(worker.fail(got) == "accepted");
        CHECK(worker.fetch(10)->empty());
        const double delay = std::stod(redis.ask_one({"ZSCORE", stream + ".ojs.retry", entry})) - now;
        CHECK(delay >= (attempt == 1 ? 3600e3 : 7200e3));
        CHECK(delay < (attempt == 1 ? 3600e3 : 7200e3) + 600e3);
        redis.ask({"ZADD", stream + ".ojs.retry", "1", entry});
    }
    CHECK(worker.fail(worker.fetch_one()) == "accepted");
    const texts fields = redis.ask({"XRANGE", stream + ".dead", "-", "+"});
    CHECK(texts(fields.begin() + 1, fields.end()) == texts{"error_code", "handler_error", "error_message", "no",
                                                           "attempts", "4", "id", entry, "body", "b", "max_attempts",
                                                           "4"});
    CHECK(redis.ask_one({"EXISTS", stream + ".ojs.retry"}) == "0");
}

TEST_CASE_FIXTURE(a_stream, "redis_streams: with keep_entries each of two groups runs all and retries its failures") {
    ojs::redis_streams_options options = options_for();
    options.keep_entries = true;
    lone_worker failing(stream, "failing", options);
    options.group = "second";
    lone_worker running(stream, "running", options), idle(stream, "idle", options);
    redis.ask({"XADD", stream, "*", "id", "a"});
    const ojs::job run = running.fetch_one();
    CHECK(failing.fail(failing.fetch_one()) == "accepted");
    CHECK(idle.fetch()->empty());
    CHECK(running.renews(run));
    CHECK(failing.fetch_one().attempt == 2);
    CHECK(running.ack(run) == "accepted");
    CHECK(running.fetch(10)->empty());
    CHECK(redis.ask_one({"XLEN", stream}) == "1");
    CHECK(redis.ask_one({"XPENDING", stream, "second"}) == "0");
}

TEST_CASE_FIXTURE(a_worker, "redis_streams: an entry that is requeued every time does not delay new entries") {
    redis.ask({"XADD", stream, "*", "id", "without a handler"});
    CHECK(worker.requeue(worker.fetch_one(), "unsupported") == "accepted");
    for (int i = 0; i < 3; ++i) redis.ask({"XADD", stream, "*", "id", "new " + std::to_string(i)});
    int requeued = 0, done = 0;
    while (done < 3 && requeued < 10) {
        const ojs::job got = worker.fetch_one();
        const bool is_new = got.id != "without a handler";
        CHECK(got.attempt == 1);
        CHECK((is_new ? worker.ack(got) : worker.requeue(got, "unsupported")) == "accepted");
        ++(is_new ? done : requeued);
    }
    CHECK(done == 3);
    CHECK(requeued <= 4);
    CHECK(worker.fetch_one().id == "without a handler");
}

TEST_CASE_FIXTURE(a_stream, "redis_streams: a consumer that leaves or stays idle is deleted, unless entries pend") {
    const auto consumers = [&] {
        const texts all = redis.ask({"XINFO", "CONSUMERS", stream, "ojs"});
        return all.size() > 10 ? all : texts{all.at(1)};  // name, NAME, pending, 0, ...
    };
    lone_worker busy(stream, "busy"), idle(stream, "idle");
    CHECK(busy.fetch()->empty());
    CHECK(idle.fetch()->empty());
    redis.ask({"XADD", stream, "*", "id", "a"});
    const ojs::job got = busy.fetch_one();
    for (lone_worker* each : {&busy, &idle})
        CHECK(each->wire->heartbeat({{&each->identity, nullptr}, "terminate", {}, {}, true}, soon()));
    CHECK(consumers() == texts{"busy"});
    CHECK(busy.ack(got) == "accepted");
    CHECK(redis.ask({"HKEYS", stream + ".ojs.meta"}) == texts{"lease:busy"});
    ojs::redis_streams_options options = options_for();
    options.max_consumer_idle = 0ms;
    lone_worker tidy(stream, "tidy", options);
    redis.ask({"XADD", stream, "*", "id", "b"});
    CHECK(tidy.fetch_one().id == "b");
    CHECK(consumers() == texts{"tidy"});
    CHECK(redis.ask({"HKEYS", stream + ".ojs.meta"}) == texts{"lease:tidy"});
}

TEST_CASE_FIXTURE(a_worker, "redis_streams: with full memory claims and ACKs continue; a FAIL keeps its entry") {
    for (const char* id : {"a", "b"}) redis.ask({"XADD", stream, "*", "id", id});
    redis.ask({"XGROUP", "CREATE", stream, "ojs", "0"});
    const auto full = change_option(redis, "maxmemory", "1");
    const ojs::job first = worker.fetch_one();
    const auto refused = worker.try_fail(first, {"handler_error", "no", true, "{}"});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ojs::errc::unavailable);
    CHECK(refused.error().text ==
          "Redis: OOM command not allowed when used memory > 'maxmemory' (ZADD " + stream + ".ojs.retry)");
    CHECK(worker.renews(first));
    CHECK(worker.ack(first) == "accepted");
    CHECK(worker.ack(worker.fetch_one()) == "accepted");
}

TEST_CASE_FIXTURE(a_stream, "redis_streams: a read-only replica, a key of another type, a wrong password are named") {
    redis.ask({"XADD", stream, "*", "id", "a"});
    lone_worker worker(stream);
    const ojs::job got = worker.fetch_one();
    redis.ask({"REPLICAOF", "127.0.0.1", "1"});
    check_refused(worker.fetch(), ojs::errc::unavailable,
                  "READONLY You can't write against a read only replica (XREADGROUP " + stream + ")");
    CHECK(worker.try_ack(got).error().code == ojs::errc::unavailable);
    redis.ask({"REPLICAOF", "NO", "ONE"});
    CHECK(worker.ack(got) == "accepted");

    const std::string list = new_queue();
    redis.ask({"LPUSH", list, "x"});
    check_refused(lone_worker(list).fetch(), ojs::errc::rejected,
                  "WRONGTYPE Operation against a key holding the wrong kind of value (XGROUP " + list + ")");

    const auto locked = change_option(redis, "requirepass", "p@ss:w/rd");
    redis.ask({"AUTH", "p@ss:w/rd"});
    ojs::redis_streams_options options = options_for();
    check_refused(lone_worker(stream).fetch(), ojs::errc::rejected,
                  "NOAUTH Authentication required; write redis://:PASSWORD@HOST");
    options.password = "wrong";
    lone_worker locked_out(stream, "w", options);
    check_refused(locked_out.fetch(), ojs::errc::unavailable,
                  "WRONGPASS invalid username-password pair or user is disabled");
    CHECK_FALSE(locked_out.beat_without_jobs());
    options.password = "p@ss:w/rd";
    CHECK(lone_worker(stream, "w", options).fetch());
    options.url = "redis://:p%40ss:w%2frd@127.0.0.1:" + std::to_string(redis_port()) + "/1";
    options.password = "";
    redis.ask({"SELECT", "1"});
    redis.ask({"XADD", stream, "*", "id", "in the other database"});
    CHECK(lone_worker(stream, "w", options).fetch_one().id == "in the other database");
    redis.ask({"SELECT", "0"});
}

TEST_CASE_FIXTURE(a_stream, "redis_streams: a dead entry added again begins at attempt 1, without its former error") {
    lone_worker worker(stream);
    texts again = {"XADD", stream, "*", "id", "a", "max_attempts", "1", "attempts", "its own"};
    for (const char* error : {"first", "second"}) {
        redis.ask(again);
        const ojs::job got = worker.await_one();
        CHECK(got.attempt == 1);
        REQUIRE(worker.try_fail(got, {error, "no", true, "{}"}));
        const texts dead = redis.ask({"XRANGE", stream + ".dead", "-", "+"});
        again = {"XADD", stream, "*"};
        again.insert(again.end(), dead.begin() + 1, dead.end());
        CHECK(texts(dead.begin() + 1, dead.end()) == texts{"error_code", error, "error_message", "no", "attempts", "1",
                                                           "id", "a", "max_attempts", "1", "attempts", "its own"});
        redis.ask({"DEL", stream + ".dead"});
    }
}

TEST_CASE("redis_streams: a response without an end ends at the deadline") {
    const peer::server server(replies("+" + std::string(64 * 1024, 'x'), true));
    lone_worker worker("queue", "alone", options_for(server.port()));
    const auto got = worker.wire->fetch({{&worker.identity, nullptr}, 1, {}}, ojs::deadline_after(2s));
    check_refused(got, ojs::errc::timed_out, "no response before the deadline");
}

TEST_CASE("redis_streams: after a response that nothing asked for the connection is replaced") {
    const peer::server server(replies("*0\r\n:7\r\n"));
    lone_worker worker("queue", "alone", options_for(server.port()));
    for (int connections : {1, 2}) {
        check_refused(worker.fetch(), ojs::errc::bad_response, "cannot read the claims in the response");
        CHECK(server.connections() == connections);
    }
}

TEST_CASE("redis_streams: the error for a malformed URL names the fault and quotes nothing of the URL") {
    const std::pair<const char*, const char*> rows[] = {
        {"redis://localhost", ""},
        {"REDIS://user:pw@[::1]:6380/15", ""},
        {"redis:/run/redis.sock", ""},
        {"http://secret", "Redis: the URL does not start with redis:"},
        {"redis:secret", "Redis: write redis://HOST:PORT, or redis:/PATH for a unix socket"},
        {"redis://u:secret%@host", "Redis: the user name or password of the URL is not percent-encoded"},
        {"redis://u:secret@host:0", "Redis: the port is not a number from 1 to 65535"},
        {"redis://u:secret@host/one", "Redis: the database is not 0 to 65535"}};
    ojs::redis_streams_options options;
    for (const auto& row : rows) {
        options.url = row.first;
        const auto made = ojs::open_redis_streams(options);
        CHECK_MESSAGE((made ? "" : made.error().text) == row.second, row.first);
    }
    options.retry_delays = {-1ms};
    CHECK(ojs::open_redis_streams(options).error().code == ojs::errc::invalid_argument);
}

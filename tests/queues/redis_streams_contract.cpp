// ojs_redis_streams.hpp put through what every transport must do, and its own cases. The server is at port OJS_TEST_REDIS_PORT of
// loopback; its process is OJS_TEST_BROKER_PID.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS
#include <hiredis/hiredis.h>

#include <csignal>
#include <map>

#include "contract/doctest.hpp"
#include "contract/relay.hpp"
#include "ojs_redis_streams.hpp"

namespace {

using namespace std::chrono_literals;
using transport_contract::job_state;
using transport_contract::jobs;
using transport_contract::new_job;
using transport_contract::soon;
using transport_contract::texts;
using transport_contract::traits;

int number_in(const char* variable) {
    const char* const value = std::getenv(variable);
    return value == nullptr ? 0 : std::atoi(value);
}

std::string url_of(int port) {
    return "redis://127.0.0.1:" + std::to_string(port);
}

// A connection of the test's own: what redis-cli shows.
class inspector {
  public:
    inspector() : to_(redisConnect("127.0.0.1", number_in("OJS_TEST_REDIS_PORT"))) {
        if (to_ == nullptr || to_->err != 0)
            throw std::runtime_error("there is no Redis at OJS_TEST_REDIS_PORT");
    }
    inspector(const inspector&) = delete;
    inspector& operator=(const inspector&) = delete;
    ~inspector() { redisFree(to_); }

    // All texts and numbers of the reply, in order.
    texts ask(const texts& words) {
        std::vector<const char*> starts;
        std::vector<std::size_t> sizes;
        for (const std::string& word : words) {
            starts.push_back(word.data());
            sizes.push_back(word.size());
        }
        auto* const got = static_cast<redisReply*>(
            redisCommandArgv(to_, static_cast<int>(words.size()), starts.data(), sizes.data()));
        if (got == nullptr) throw std::runtime_error("Redis does not respond");
        texts out;
        add(*got, out);
        freeReplyObject(got);
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

    redisContext* const to_;
};

ojs::redis_streams_options options_for(int port) {
    ojs::redis_streams_options out;
    out.url = url_of(port);
    out.retry_delays = {0ms};
    return out;
}

std::shared_ptr<ojs::transport> share(const ojs::redis_streams_options& options) {
    auto made = ojs::open_redis_streams(options);
    if (!made) throw std::runtime_error(made.error().text);
    return {made->get(), [kept = *made](ojs::transport*) {}};
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
        return share(options_for(relay_.port()));
    }
    std::string push(const new_job& what) override {
        const std::string id = what.id.empty() ? "job-" + std::to_string(++pushed_) : what.id;
        queues_[id] = what.queue;
        redis_.ask({"XGROUP", "CREATE", what.queue, "ojs", "0", "MKSTREAM"});  // so that the first FETCH claims
        redis_.ask({"XADD", what.queue, "*", "id", id, "type", what.type, "args", what.args_json,
                    "max_attempts", std::to_string(what.max_attempts)});
        return id;
    }
    job_state state_of(const std::string& id) override {
        if (queues_.count(id) == 0) return job_state::absent;
        const std::string& queue = queues_[id];
        if (!entry_of(id, queue + ".dead").empty()) return job_state::discarded;
        const std::string entry = entry_of(id, queue);
        if (entry.empty()) return job_state::completed;
        const texts pending = redis_.ask({"XPENDING", queue, "ojs", entry, entry, "1"});
        const bool is_waiting =
            pending.size() != 4 || pending[1] == "ojs:requeued" || pending[1] == "ojs:retry";
        return is_waiting ? job_state::waiting : job_state::running;
    }
    bool freeze() override { return ::kill(number_in("OJS_TEST_BROKER_PID"), SIGSTOP) == 0; }
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
    transport_contract::relay relay_{static_cast<std::uint16_t>(number_in("OJS_TEST_REDIS_PORT")), is_script};
};

}  // namespace

TEST_CASE("contract: redis_streams") {
    const char* const word = std::getenv("OJS_TEST_CASE");
    const auto on = std::make_shared<redis_subject>();
    const auto left_out = transport_contract::check_all([&] { return on; }, word == nullptr ? "" : word);
    if (word == nullptr) CHECK(left_out == texts{"a checkpoint travels with the FAIL"});
}

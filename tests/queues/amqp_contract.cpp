// ojs_amqp.hpp put through what every transport must do, and through RabbitMQ's own. OJS_TEST_BROKER_PORT: a
// broker on loopback; OJS_TEST_QUEUE_TYPE: classic (default) or quorum; OJS_TEST_BROKER_PID: to freeze it.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS

#include <dlfcn.h>
#include <netdb.h>
#include <signal.h>

#include "contract/doctest.hpp"
#include "contract/lone_worker.hpp"
#include "contract/relay.hpp"
#include "ojs_amqp.hpp"
#include "plain_amqp.hpp"

namespace {
using transport_contract::eventually;
using transport_contract::new_job;
using transport_contract::share;
using transport_contract::soon;
using transport_contract::traits;
using namespace std::chrono_literals;
using namespace std::string_literals;

std::string variable(const char* name, const char* otherwise = "") {
    const char* const value = std::getenv(name);
    return value == nullptr ? otherwise : value;
}
std::uint16_t broker_port() { return static_cast<std::uint16_t>(std::stoi(variable("OJS_TEST_BROKER_PORT"))); }
std::string url_at(std::uint16_t port) { return "amqp://guest:guest@127.0.0.1:" + std::to_string(port) + "/"; }
std::string queue_type() { return variable("OJS_TEST_QUEUE_TYPE", "classic"); }
bool is_quorum() { return queue_type() == "quorum"; }

// "MESSAGE NAME=VALUE ..."
std::string line_of(const ojs::log_record& record) {
    std::string out = record.message;
    for (const ojs::log_field& each : record.fields) out += " " + each.name + "=" + each.value;
    return out;
}

// A FETCH of no message: returns once a queue's connection has had a turn.
ojs::result<std::vector<ojs::job>> await_turn(ojs::transport& wire, const ojs::worker_identity& worker,
                                              ojs::time_point deadline) {
    return wire.fetch({{&worker, nullptr}, 0, {}}, deadline);
}

// The suite's workers fetch only now and then, one beside another. Like workers that are paused in between,
// they must not hold what they do not fetch: after each FETCH the transport is quiet, and it prefetches what
// the FETCH asks for. A real worker sets on_work_available(), and is passed through.
class paused_between_fetches : public ojs::transport {
  public:
    explicit paused_between_fetches(std::shared_ptr<ojs::transport> on) : on_(std::move(on)) {}

    ojs::result<std::vector<ojs::job>> fetch(const ojs::fetch_request& request, ojs::time_point deadline) override {
        if (is_worker_) return on_->fetch(request, deadline);
        const std::lock_guard<std::mutex> one_at_a_time(fetching_);
        ojs::worker_identity worker = *request.worker;
        worker.concurrency = static_cast<std::int64_t>(request.count);
        ojs::fetch_request resized = request;
        resized.worker = &worker;
        on_->on_phase(ojs::phase::running);
        auto got = on_->fetch(resized, deadline);
        // Messages come some time after the consumer has begun; what comes later is handed back.
        const ojs::time_point until = std::min(ojs::deadline_after(100ms), deadline);
        while (got && got->size() < request.count && ojs::steady_clock::now() < until) {
            resized.count = request.count - got->size();
            const auto more = on_->fetch(resized, deadline);
            if (more) got->insert(got->end(), more->begin(), more->end());
        }
        on_->on_phase(ojs::phase::quiet);
        for (int i = 0; got && i < 3; ++i)  // turns of the transport: it cancels, hands back, and hears of that
            static_cast<void>(await_turn(*on_, worker, std::min(deadline, ojs::deadline_after(1s))));
        return got;
    }
    ojs::result<ojs::settle_result> ack(const ojs::ack_request& request, ojs::time_point deadline) override {
        return on_->ack(request, deadline);
    }
    ojs::result<ojs::settle_result> fail(const ojs::fail_request& request, ojs::time_point deadline) override {
        return on_->fail(request, deadline);
    }
    ojs::result<ojs::heartbeat_response> heartbeat(const ojs::heartbeat_request& request,
                                                   ojs::time_point deadline) override {
        return on_->heartbeat(request, deadline);
    }
    ojs::result<bool> confirm_claim(const ojs::job_request& query, ojs::time_point deadline) override {
        return on_->confirm_claim(query, deadline);
    }
    void on_work_available(ojs::function<void()> callback) override {
        if (callback && !is_worker_.exchange(true)) on_->on_phase(ojs::phase::running);
        on_->on_work_available(std::move(callback));
    }
    void on_phase(ojs::phase now) override { on_->on_phase(now); }

  private:
    const std::shared_ptr<ojs::transport> on_;
    std::mutex fetching_;
    std::atomic<bool> is_worker_{false};
};

ojs::amqp_options options_at(std::uint16_t port = broker_port()) {
    ojs::amqp_options out;
    out.retry_delays = {0ms};
    out.url = url_at(port);
    return out;
}

class amqp_subject : public transport_contract::subject {
  public:
    traits can() const override {
        traits out;
        out.first_in_first_out = !is_quorum();  // what is returned waits elsewhere for its next delivery
        out.keeps_args_text = out.holds_nul = out.any_type = out.any_id = true;
        out.largest_args = 200 * 1024;
        out.requeue_spares_attempt = !is_quorum();
        out.knows_holder = out.tells_of_work = out.jobs_outlive_worker = true;
        out.counts_lost_runs = is_quorum();
        return out;
    }
    std::shared_ptr<ojs::transport> connect(const ojs::worker_identity& as) override {
        for (const std::string& queue : as.queues) declare(queue);
        ojs::amqp_options options = options_at();
        options.log = [](const ojs::log_record& record) {
            if (record.level != ojs::log_level::info) std::fprintf(stderr, "%s\n", line_of(record).c_str());
        };
        return std::make_shared<paused_between_fetches>(share(ojs::open_amqp(options)));
    }
    std::string push(const new_job& what) override {
        static std::atomic<int> number{0};
        declare(what.queue);
        const std::string id = what.id.empty() ? what.queue + "/" + std::to_string(++number) : what.id;
        broker_.publish(what.queue, {id, what.args_json, what.type, "application/json", 0, what.max_attempts, {}});
        return id;
    }
    bool freeze() override {
        pid_ = static_cast<pid_t>(std::atoi(variable("OJS_TEST_BROKER_PID").c_str()));
        return transport_contract::stand_still(pid_);
    }
    void thaw() override { ::kill(pid_, SIGCONT); }

  private:
    void declare(const std::string& queue) {
        if (declared_.insert(queue).second) broker_.declare(queue, queue_type());
    }
    broker broker_{url_at(broker_port())};
    std::set<std::string> declared_;
    pid_t pid_ = 0;
};

// A queue of its own, and a worker on it.
struct on_queue {
    on_queue() { declare(queue); }

    std::shared_ptr<ojs::transport> connect(ojs::amqp_options options) {
        options.log = [this](const ojs::log_record& record) {
            const std::lock_guard<std::mutex> lock(mutex);
            log += line_of(record) + "\n";
        };
        return share(ojs::open_amqp(std::move(options)));
    }
    void declare(const std::string& name) { server.declare(name, queue_type()); }
    void publish(const std::string& id, const std::string& body) {
        server.publish(queue, {id, body, "", "", 0, 0, {}});
    }
    int count() { return server.count(queue); }
    bool logged(const std::string& part) {
        const std::lock_guard<std::mutex> lock(mutex);
        return log.find(part) != std::string::npos;
    }

    const std::string queue = transport_contract::new_queue();
    broker server{url_at(broker_port())};
    std::mutex mutex;
    std::string log;
};
struct lone_worker : on_queue, transport_contract::lone_worker {
    explicit lone_worker(const ojs::amqp_options& options = options_at())
        : transport_contract::lone_worker(connect(options), queue) {}
};

// Sends a text to each client, and ends that connection.
peer::server::script brief(const std::string& text) {
    return [text](int fd, int /*connection*/) {
        static_cast<void>(::send(fd, text.data(), text.size(), MSG_NOSIGNAL));
        ::shutdown(fd, SHUT_WR);
        char sink[1024];
        while (::recv(fd, sink, sizeof sink, 0) > 0) continue;
    };
}

// Loses the connection, and waits for the next one.
void reconnect(transport_contract::relay& wire, lone_worker& worker) {
    wire.lose(1);
    CHECK(eventually([&] { return !worker.fetch(0); }));
    CHECK(eventually([&] { return worker.fetch(0).has_value(); }));
}
}  // namespace

#ifdef __GLIBC__
namespace {
constexpr const char* moving_name = "amqp.name-server-test";  // first at 127.0.0.2, then at 127.0.0.1
}
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
    static auto* const real = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
    static std::atomic<int> lookups{0};
    const bool is_numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
    if (is_numeric || host == nullptr || std::strcmp(host, moving_name) != 0) return real(host, service, hints, found);
    return real(lookups++ == 0 ? "127.0.0.2" : "127.0.0.1", service, hints, found);
}
#endif

TEST_CASE("open_amqp: an invalid URL is refused with an error that does not show its password") {
    for (const char* url : {"amqp://u:secret@host:port/", "amqps://u:secret@host/", "http://u:secret@host/", ""}) {
        ojs::amqp_options options;
        options.url = url;
        const auto opened = ojs::open_amqp(options);
        REQUIRE_FALSE(opened);
        CHECK(opened.error().code == ojs::errc::invalid_argument);
        CHECK(opened.error().text.find("secret") == std::string::npos);
    }
}

TEST_CASE("amqp_transport: a refused login, missing virtual host or closed port fails a FETCH") {
    lone_worker worker;
    const std::string at = "127.0.0.1:" + std::to_string(broker_port());
    const std::pair<std::string, const char*> wrong[] = {{"amqp://guest:secret@" + at + "/", "ACCESS_REFUSED"},
                                                         {"amqp://guest:guest@" + at + "/none", "vhost none not found"},
                                                         {"amqp://guest:guest@127.0.0.1:1/", "cannot connect"}};
    for (const auto& [url, part] : wrong) {
        ojs::amqp_options options;
        options.url = url;
        const auto registered = await_turn(*share(ojs::open_amqp(options)), worker.identity, soon());
        REQUIRE_FALSE(registered);
        CHECK(registered.error().code == ojs::errc::unreachable);
        CHECK_MESSAGE(registered.error().text.find(part) != std::string::npos, registered.error().text);
        CHECK(registered.error().text.find("secret") == std::string::npos);
    }
}

TEST_CASE("amqp_transport: a broker that sends another class's properties is disconnected") {
    const auto frame = [](char type, char channel, std::string payload) {
        const std::string size = {0, 0, 0, static_cast<char>(payload.size())};
        return type + std::string{0, channel} + size + std::move(payload) + '\xce';
    };
    const std::string login = frame(1, 0, "\0\x0a\0\x0a\0\x09\0\0\0\0\0\0\0\5PLAIN\0\0\0\5en_US"s) +
                              frame(1, 0, "\0\x0a\0\x1e\x7\xff\0\2\0\0\0\x0a"s) + frame(1, 0, "\0\x0a\0\x29\0"s) +
                              frame(1, 1, "\0\x14\0\x0b\0\0\0\0"s);
    const std::string delivery = frame(1, 1, "\0\x3c\0\x3c\5ojs.1\0\0\0\0\0\0\0\1\0\0\1q"s);
    const peer::server hostile(brief(login + delivery + frame(2, 1, "\0\x0a\0\0\0\0\0\0\0\0\0\5\xff\xfe"s)));
    lone_worker worker(options_at(hostile.port()));
    CHECK(eventually([&] {
        const auto got = worker.fetch();
        return !got && got.error().text.find("not a message's header") != std::string::npos;
    }));
}

#ifdef __GLIBC__
TEST_CASE("amqp_transport: an address that accepts and serves no login is looked up again") {
    const transport_contract::relay second(broker_port());
    const peer::server first(brief(""), second.port(), INADDR_LOOPBACK + 1);  // 127.0.0.2
    ojs::amqp_options options = options_at();
    options.url = std::string("amqp://") + moving_name + ":" + std::to_string(second.port()) + "/";
    lone_worker worker(options);
    CHECK(eventually([&] { return worker.fetch(0).has_value(); }));
}
#endif

TEST_CASE("amqp_transport: a missing queue or a stream stops no other queue; a queue created later is consumed") {
    lone_worker worker;
    const std::string missing = worker.queue + "-missing", stream = worker.queue + "-stream";
    worker.server.declare(stream, "stream");
    worker.identity.queues = {missing};
    const auto none = await_turn(*worker.wire, worker.identity, soon());
    REQUIRE_FALSE(none);
    CHECK(none.error().text.find("NOT_FOUND") != std::string::npos);
    worker.identity.queues = {missing, stream, worker.queue};
    worker.publish("1", "one");
    const ojs::job held = worker.await_one();
    CHECK(held.body == "one");
    CHECK(worker.logged("queue=" + missing + " error=NOT_FOUND"));
    CHECK(eventually([&] { return worker.logged("queue=" + stream + " error=PRECONDITION_FAILED"); }));
    worker.declare(missing);
    worker.server.publish(missing, {"2", "two", "", "", 0, 0, {}});
    const ojs::job other = worker.await_one();
    CHECK(other.body == "two");
    worker.server.remove(missing);
    CHECK(eventually([&] { return worker.logged("queue=" + missing + " error=the broker cancelled the consumer"); }));
    CHECK(worker.ack(held) == "accepted");
    static_cast<void>(worker.ack(other));
    worker.declare(missing);
    worker.server.publish(missing, {"3", "three", "", "", 0, 0, {}});
    CHECK(worker.await_one().body == "three");
}

TEST_CASE("amqp_transport: the properties of a message decide type, args_json, body and meta of its job") {
    lone_worker worker;
    worker.identity.concurrency = 5;
    const std::string json = "application/json; charset=utf-8";
    worker.publish("1", "plain");
    worker.server.publish(worker.queue, {"2", "[1.50]", "sum", json, 0, 0, {}});
    worker.server.publish(worker.queue, {"3", "{\"a\":1}", "", json, 0, 7, {}});
    worker.server.publish(worker.queue, {"4", "{\"a\":", "", json, 3, 0, {{"traceparent", "00-1"}, {"say", "\""}}});
    const std::pair<std::string, std::string> failed = {"x-ojs-error", "no"};  // a dead letter, moved back
    worker.server.publish(worker.queue, {"5", "", "", "", 3, 3, {failed}, 9});
    const auto jobs = worker.await(5);
    const auto shown = [&](std::size_t place) {
        const ojs::job& job = jobs[place];
        return job.type + " " + job.args_json + " " + job.body + " " + job.meta_json + " " +
               std::to_string(job.attempt) + "/" + std::to_string(job.max_attempts);
    };
    CHECK(shown(0) == "message [] plain {} 1/20");
    CHECK(shown(1) == "sum [1.50] [1.50] {} 1/20");
    CHECK(shown(2) == R"(message [{"a":1}] {"a":1} {} 1/7)");
    CHECK(jobs[2].malformed.empty());
    CHECK_FALSE(jobs[3].malformed.empty());
    CHECK(jobs[3].attempt == 3);
    CHECK(jobs[3].meta_json == R"({"traceparent":"00-1","say":"\""})");
    CHECK(jobs[4].attempt == 1);
}

TEST_CASE("amqp_transport: quiet returns unfetched messages to the queue, and a resume consumes them again") {
    lone_worker worker;
    worker.identity.concurrency = 3;
    for (int i = 0; i < 6; ++i) worker.publish(std::to_string(i), "");
    const ojs::job held = worker.await_one();
    CHECK(eventually([&] { return worker.count() == 3; }));  // prefetch: 3
    worker.wire->on_phase(ojs::phase::quiet);
    CHECK(eventually([&] { return worker.count() == 5; }));
    CHECK(worker.fetch(3)->empty());
    worker.wire->on_phase(ojs::phase::running);  // the one in flight counts beside the prefetch
    CHECK(worker.await(3).size() == 3);
    CHECK(worker.count() == 2);
    CHECK(worker.ack(held) == "accepted");
}

TEST_CASE("amqp_transport: a job that runs across a reconnect is settled once, through its redelivery") {
    transport_contract::relay wire(broker_port());
    lone_worker worker(options_at(wire.port()));
    worker.publish("same", "one");
    const ojs::job first = worker.await_one();
    reconnect(wire, worker);
    SUBCASE("redelivered before its FETCH: the ACK of the first claim settles the message") {
        CHECK(eventually([&] { return worker.ack(first) == "accepted"; }));
        CHECK(worker.ack(first) == "gone");
        CHECK(worker.fetch()->empty());
    }
    SUBCASE("redelivered and fetched: the ACK of the latest claim settles the message") {
        const ojs::job again = worker.await_one();
        CHECK(again.id == first.id);
        CHECK(again.claim != first.claim);
        const auto early = worker.try_ack(first);  // as of a worker that does not know of the new claim yet
        REQUIRE_FALSE(early);
        CHECK(early.error().code == ojs::errc::disconnected);
        CHECK(worker.ack(again) == "accepted");
    }
    SUBCASE("redelivered before its FETCH, then quiet: the message is not requeued") {
        CHECK(eventually([&] { return worker.renews(first); }));
        worker.wire->on_phase(ojs::phase::quiet);
        for (int turns = 0; turns < 3; ++turns) CHECK(await_turn(*worker.wire, worker.identity, soon()));
        CHECK(worker.ack(first) == "accepted");
    }
    SUBCASE("redelivered before its FETCH: the FAIL of the first claim publishes one retry") {
        CHECK(eventually([&] { return worker.fail(first) == "accepted"; }));
        const ojs::job retry = worker.await_one();
        CHECK(retry.attempt == (is_quorum() ? 3 : 2));  // a quorum queue has counted the redelivery
        CHECK(worker.fetch()->empty());
        CHECK(worker.count() == 0);
    }
}

TEST_CASE("amqp_transport: messages with the same message-id all run, also across a reconnect") {
    transport_contract::relay wire(broker_port());
    lone_worker worker(options_at(wire.port()));
    worker.publish("same", "one");
    worker.publish("same", "two");
    const auto both = worker.await(2);
    CHECK(both[0].id == "same");
    CHECK(both[1].id != "same");
    SUBCASE("both messages are in flight") { reconnect(wire, worker); }
    SUBCASE("\"one\" was requeued: that message comes first, as redelivered") {
        worker.wire->on_phase(ojs::phase::quiet);
        CHECK(worker.requeue(both[0]) == "accepted");
        reconnect(wire, worker);
        worker.wire->on_phase(ojs::phase::running);
    }
    CHECK(eventually([&] { return worker.ack(both[1]) == "accepted"; }));  // "two"
    const ojs::job again = worker.await_one();
    CHECK(again.body == "one");
    CHECK(worker.ack(again) == "accepted");
    worker.publish("same", "three");
    const ojs::job later = worker.await_one();  // the worker may still have the first
    CHECK(later.id != "same");
    CHECK(worker.ack(later) == "accepted");
    for (int beats = 0; beats < 2; ++beats) CHECK(worker.beat(later));
    worker.publish("same", "four");
    const ojs::job last = worker.await_one();
    CHECK(last.id == "same");
    CHECK(worker.ack(last) == "accepted");
    worker.wire.reset();
    CHECK(worker.count() == 0);
}

TEST_CASE("amqp_transport: no connection -> heartbeats fail, and in a drain report lost claims") {
    auto wire = std::make_unique<transport_contract::relay>(broker_port());
    lone_worker worker(options_at(wire->port()));
    worker.publish("1", "");
    const ojs::job held = worker.await_one();
    CHECK(worker.renews(held));
    wire.reset();
    CHECK(eventually([&] { return !worker.beat(held); }));
    CHECK(worker.beat(held).error().code == ojs::errc::unreachable);
    const auto may_return = worker.try_ack(held);
    REQUIRE_FALSE(may_return);
    CHECK(may_return.error().code == ojs::errc::disconnected);
    worker.wire->on_phase(ojs::phase::draining);
    const auto response = worker.beat(held);
    REQUIRE(response);
    CHECK(response->claims_lost);
    CHECK(response->jobs_extended.empty());
    CHECK(worker.ack(held) == "gone");
    for (const bool is_last : {false, true}) {  // neither is sent; RabbitMQ hears nothing of a worker
        const auto later = worker.wire->heartbeat({{&worker.identity, nullptr}, "terminate", {}, {}, is_last}, soon());
        CHECK(later.has_value() == is_last);
        CHECK((is_last || later.error().code == ojs::errc::cancelled));
    }
}

TEST_CASE("amqp_transport: a failed message waits in the retry queue, and ends in the dead queue") {
    ojs::amqp_options options = options_at();
    options.retry_delays = {300ms};
    lone_worker worker(options);
    worker.server.publish(worker.queue, {"again", "body", "", "", 0, 2, {}});
    const ojs::job first = worker.await_one();
    const ojs::time_point failed_at = ojs::steady_clock::now();
    CHECK(worker.fail(first) == "accepted");
    CHECK(worker.server.count(worker.queue + ".retry.300") >= 0);
    const ojs::job second = worker.await_one();
    CHECK(ojs::steady_clock::now() - failed_at >= 300ms);
    CHECK(second.id == "again");
    CHECK(second.attempt == 2);
    CHECK(worker.fail(second) == "accepted");
    CHECK(worker.server.take(worker.queue + ".dead") ==
          std::make_pair(std::string("body"), std::string("handler_error: no")));
    worker.wire.reset();
    CHECK(worker.count() == 0);
}

TEST_CASE(
    "amqp_transport: no dead-letter queue can exist -> FAIL is rejected, and the kept message does not block the "
    "next") {
    for (const std::string& dead : {std::string("amq.reserved"), std::string(256, 'q')}) {
        ojs::amqp_options options = options_at();
        options.dead_letter_queue = dead;
        lone_worker worker(options);
        worker.identity.concurrency = 1;
        worker.publish("refused", "");
        const ojs::job refused = worker.await_one();
        CHECK(worker.try_fail(refused, {"x", "no", false, "{}"}).error().code == ojs::errc::rejected);
        worker.publish("next", "");
        CHECK(worker.ack(worker.await_one()) == "accepted");
        CHECK(worker.renews(refused));
        worker.wire.reset();
        CHECK(eventually([&] { return worker.count() == 1; }));
    }
}

TEST_CASE("amqp_transport: a message whose attempts are used up is dead-lettered without a run") {
    lone_worker worker;
    worker.identity.concurrency = 1;  // the next message comes when this one is acknowledged
    worker.server.publish(worker.queue, {"poison", "kills", "", "", 4, 3, {}});
    worker.server.publish(worker.queue, {"next", "works", "", "", 3, 3, {}});
    const ojs::job next = worker.await_one();
    CHECK(next.body == "works");
    CHECK(worker.ack(next) == "accepted");
    CHECK(worker.server.take(worker.queue + ".dead").first == "kills");
    worker.wire.reset();
    CHECK(worker.count() == 0);
}

TEST_CASE("amqp_transport: unreadable messages leave the queue without an attempt and do not block others") {
    lone_worker worker;
    worker.identity.concurrency = 2;
    for (const char* type : {"message", "message", "newer", "newer"})
        worker.server.publish(worker.queue,
                              {"", "{", type, type == std::string("newer") ? "" : "application/json", 0, 0, {}});
    worker.publish("good", "good");
    for (const ojs::job& each : worker.await(2)) CHECK(worker.requeue(each, "invalid_payload") == "accepted");
    CHECK(worker.server.take(worker.queue + ".dead").second.find("invalid_payload: no") == 0);
    CHECK(
        worker.logged("queue=" + worker.queue + " dead_letter_queue=" + worker.queue + ".dead error=invalid_payload"));
    std::string last;  // of the newer ones a FETCH returns one, or both
    while (last != "good") {
        const ojs::job each = worker.await_one();
        last = each.body;
        CHECK((last == "good" ? worker.ack(each) : worker.requeue(each, "unsupported")) == "accepted");
    }
    CHECK(eventually([&] { return worker.server.count(worker.queue + ".retry.5000") == 2; }));
    CHECK(worker.count() == 0);
}

TEST_CASE("amqp_transport: a job requeued as rate_limited waits in a retry queue; others of its type are delivered") {
    lone_worker worker;
    worker.identity.concurrency = 1;
    worker.publish("1", "first");
    CHECK(worker.requeue(worker.await_one(), "rate_limited") == "accepted");
    CHECK(eventually([&] { return worker.server.count(worker.queue + ".retry.5000") == 1; }));
    worker.publish("2", "second");
    const ojs::job next = worker.await_one();
    CHECK(next.body == "second");
    CHECK(worker.ack(next) == "accepted");
}

TEST_CASE("amqp_transport: a FETCH beyond the slots returns messages behind those that the worker holds") {
    lone_worker worker;
    worker.identity.concurrency = 2;
    for (const char* each : {"a", "b", "c", "d", "e"}) worker.publish(each, each);
    std::string bodies;
    std::vector<ojs::job> held;
    while (held.size() < 5) {
        held.push_back(worker.await_one());
        bodies += held.back().body;
    }
    CHECK(bodies == "abcde");
    for (const ojs::job& each : held) CHECK(worker.ack(each) == "accepted");
    CHECK(worker.count() == 0);
}

TEST_CASE("amqp_transport: the destructor does not wait for a frozen broker") {
    lone_worker worker;
    static_cast<void>(await_turn(*worker.wire, worker.identity, soon()));
    const pid_t pid = static_cast<pid_t>(std::atoi(variable("OJS_TEST_BROKER_PID").c_str()));
    REQUIRE(transport_contract::stand_still(pid));
    const ojs::time_point begun = ojs::steady_clock::now();
    worker.wire.reset();
    CHECK(ojs::steady_clock::now() - begun < 2s);
    ::kill(pid, SIGCONT);
}

TEST_CASE("amqp_transport: with use_dead_letter_exchange a failed message is rejected") {
    ojs::amqp_options options = options_at();
    options.use_dead_letter_exchange = true;
    lone_worker worker(options);
    worker.publish("1", "");
    CHECK(worker.fail(worker.await_one(), false) == "accepted");
    worker.wire.reset();
    CHECK(worker.count() == 0);  // the queue has no dead-letter exchange
    CHECK(worker.server.count(worker.queue + ".dead") == -1);
}

TEST_CASE("amqp_transport: the transport contract passes, without the checks that AMQP does not support") {
    const auto on = std::make_shared<amqp_subject>();
    const char* const only = std::getenv("OJS_TEST_CASE");
    std::vector<std::string> left_out;
    for (const transport_contract::contract_case& each : transport_contract::cases()) {
        const std::string name = each.name;
        // Its fetches cross with those of others so often that a quorum queue, which counts returns, uses up
        // attempts.
        if (is_quorum() && name.find("eight threads") == 0) continue;
        if (only != nullptr && name.find(only) == std::string::npos) continue;
        const auto got = transport_contract::check_all([&] { return on; }, name);
        left_out.insert(left_out.end(), got.begin(), got.end());
    }
    if (only != nullptr) return;
    std::vector<std::string> expected = {"a checkpoint travels with the FAIL",
                                         "an ACK or FAIL whose response is lost counts once",
                                         "a FETCH whose response is lost loses no job"};
    if (is_quorum()) expected.insert(expected.begin(), "first in, first out");
    CHECK(left_out == expected);
}

// ojs_amqp.hpp put through what every transport must do, and through RabbitMQ's own. OJS_TEST_AMQP_URL: a
// broker on loopback; OJS_TEST_QUEUE_TYPE: classic (default) or quorum; OJS_TEST_BROKER_PID: to freeze it.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS

#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <signal.h>

#include "contract/doctest.hpp"
#include "contract/relay.hpp"
#include "ojs_amqp.hpp"

namespace {

using transport_contract::new_job;
using transport_contract::soon;
using transport_contract::traits;
using namespace std::chrono_literals;

std::string variable(const char* name, const char* otherwise = "") {
    const char* const value = std::getenv(name);
    return value == nullptr ? otherwise : value;
}
std::string broker_url() {
    return variable("OJS_TEST_AMQP_URL");
}
std::uint16_t broker_port() {
    const std::string url = broker_url();
    return static_cast<std::uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
}
std::string url_at(std::uint16_t port) {
    return "amqp://guest:guest@127.0.0.1:" + std::to_string(port) + "/";
}
std::string queue_type() {
    return variable("OJS_TEST_QUEUE_TYPE", "classic");
}
bool is_quorum() {
    return queue_type() == "quorum";
}

struct message {
    std::string id, body, type, content_type;
    std::int64_t attempt = 0, max_attempts = 0;              // 0: without the header
    std::vector<std::pair<std::string, std::string>> texts;  // more headers
};

// Plain librabbitmq. Throws.
class broker {
  public:
    broker() : state_(amqp_new_connection()) {
        amqp_socket_t* const socket = amqp_tcp_socket_new(state_);
        require(amqp_socket_open(socket, "127.0.0.1", broker_port()) == AMQP_STATUS_OK, "connecting");
        const auto reply = amqp_login(state_, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest");
        require(reply.reply_type == AMQP_RESPONSE_NORMAL, "the login");
        open_channel();
    }
    broker(const broker&) = delete;
    broker& operator=(const broker&) = delete;
    ~broker() { amqp_destroy_connection(state_); }

    void declare(const std::string& queue) {
        const std::string of = queue_type();
        amqp_table_entry_t type = text_entry("x-queue-type", of);
        amqp_queue_declare(state_, 1, bytes_of(queue), 0, 1, 0, 0, {1, &type});
        done("queue.declare");
    }
    void remove(const std::string& queue) {
        amqp_queue_delete(state_, 1, bytes_of(queue), 0, 0);
        done("queue.delete");
    }
    // Ready messages; -1: there is no such queue.
    int count(const std::string& queue) {
        const auto* const found =
            amqp_queue_declare(state_, 1, bytes_of(queue), 1, 0, 0, 0, amqp_empty_table);
        if (amqp_get_rpc_reply(state_).reply_type == AMQP_RESPONSE_NORMAL)
            return static_cast<int>(found->message_count);
        amqp_channel_close_ok_t closed{};
        amqp_send_method(state_, 1, AMQP_CHANNEL_CLOSE_OK_METHOD, &closed);
        open_channel();
        return -1;
    }
    // Returns when the broker has it.
    void publish(const std::string& queue, const message& what) {
        std::vector<amqp_table_entry_t> headers;
        if (what.attempt > 0) headers.push_back(number_entry("x-ojs-attempt", what.attempt));
        if (what.max_attempts > 0) headers.push_back(number_entry("x-ojs-max-attempts", what.max_attempts));
        for (const auto& [name, value] : what.texts) headers.push_back(text_entry(name.c_str(), value));
        amqp_basic_properties_t properties{};
        properties._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_HEADERS_FLAG;
        properties.delivery_mode = 2;
        properties.headers = {static_cast<int>(headers.size()), headers.data()};
        set(properties, AMQP_BASIC_MESSAGE_ID_FLAG, properties.message_id, what.id);
        set(properties, AMQP_BASIC_TYPE_FLAG, properties.type, what.type);
        set(properties, AMQP_BASIC_CONTENT_TYPE_FLAG, properties.content_type, what.content_type);
        amqp_basic_publish(state_, 1, amqp_empty_bytes, bytes_of(queue), 0, 0, &properties,
                           bytes_of(what.body));
        amqp_frame_t frame;
        require(amqp_simple_wait_frame(state_, &frame) == AMQP_STATUS_OK, "publishing");
        require(frame.payload.method.id == AMQP_BASIC_ACK_METHOD, "the confirm");
    }
    // Takes the first message; its body, and the header x-ojs-error.
    std::pair<std::string, std::string> take(const std::string& queue) {
        const auto got = amqp_basic_get(state_, 1, bytes_of(queue), 1);
        require(got.reply.id == AMQP_BASIC_GET_OK_METHOD, "basic.get");
        amqp_message_t found;
        require(amqp_read_message(state_, 1, &found, 0).reply_type == AMQP_RESPONSE_NORMAL, "reading");
        std::pair<std::string, std::string> out = {text_of(found.body), ""};
        for (int i = 0; i < found.properties.headers.num_entries; ++i) {
            const amqp_table_entry_t& header = found.properties.headers.entries[i];
            if (text_of(header.key) == "x-ojs-error") out.second = text_of(header.value.value.bytes);
        }
        amqp_destroy_message(&found);
        return out;
    }

  private:
    static void require(bool holds, const char* what) {
        if (!holds) throw std::runtime_error(std::string(what) + " failed");
    }
    void done(const char* what) {
        require(amqp_get_rpc_reply(state_).reply_type == AMQP_RESPONSE_NORMAL, what);
    }
    void open_channel() {
        amqp_channel_open(state_, 1);
        amqp_confirm_select(state_, 1);
        done("confirm.select");
    }
    static amqp_bytes_t bytes_of(const std::string& text) {
        return {text.size(), const_cast<char*>(text.data())};
    }
    static std::string text_of(amqp_bytes_t bytes) {
        return {static_cast<const char*>(bytes.bytes), bytes.len};
    }
    static amqp_table_entry_t text_entry(const char* name, const std::string& text) {
        amqp_table_entry_t out{};
        out.key = amqp_cstring_bytes(name);
        out.value.kind = AMQP_FIELD_KIND_UTF8;
        out.value.value.bytes = bytes_of(text);
        return out;
    }
    static amqp_table_entry_t number_entry(const char* name, std::int64_t number) {
        amqp_table_entry_t out{};
        out.key = amqp_cstring_bytes(name);
        out.value.kind = AMQP_FIELD_KIND_I64;
        out.value.value.i64 = number;
        return out;
    }
    static void set(amqp_basic_properties_t& in, int flag, amqp_bytes_t& member, const std::string& text) {
        if (text.empty()) return;
        in._flags |= static_cast<amqp_flags_t>(flag);
        member = bytes_of(text);
    }

    amqp_connection_state_t state_;
};

// The suite's workers fetch only now and then, one beside another. Like workers that are paused in between,
// they must not hold what they do not fetch: after each FETCH the transport is quiet, and it prefetches what
// the FETCH asks for. A real worker sets on_work_available(), and is passed through.
class paused_between_fetches : public ojs::transport {
  public:
    explicit paused_between_fetches(ojs::transport_ref on) : on_(std::move(on)) {}

    ojs::result<std::vector<ojs::job>> fetch(const ojs::fetch_request& request,
                                             ojs::time_point deadline) override {
        if (is_worker_) return on_->fetch(request, deadline);
        const std::lock_guard<std::mutex> one_at_a_time(fetching_);
        ojs::worker_identity worker = *request.worker;
        worker.concurrency = static_cast<std::int64_t>(held() + request.count);
        ojs::fetch_request resized = request;
        resized.worker = &worker;
        on_->on_phase(ojs::phase::running);
        auto got = on_->fetch(resized, deadline);
        // A quorum queue's messages come some time after the consumer has begun; what comes later is handed
        // back.
        const ojs::time_point until = std::min(ojs::deadline_after(is_quorum() ? 100ms : 20ms), deadline);
        while (got && got->size() < request.count && ojs::steady_clock::now() < until) {
            resized.count = request.count - got->size();
            const auto more = on_->fetch(resized, deadline);
            if (more) got->insert(got->end(), more->begin(), more->end());
            if (!is_quorum() && !got->empty()) break;
        }
        on_->on_phase(ojs::phase::quiet);
        for (int i = 0; got && i < 2; ++i)  // two turns of the transport: it cancels, and hands back
            static_cast<void>(on_->register_worker(worker, std::min(deadline, ojs::deadline_after(1s))));
        const std::lock_guard<std::mutex> lock(mutex_);
        if (got) {
            for (const ojs::job& each : *got) claims_.insert(each.claim);
        }
        return got;
    }
    ojs::result<ojs::settle_result> ack(const ojs::ack_request& request, ojs::time_point deadline) override {
        return settled(request.claim, on_->ack(request, deadline));
    }
    ojs::result<ojs::settle_result> fail(const ojs::fail_request& request,
                                         ojs::time_point deadline) override {
        return settled(request.claim, on_->fail(request, deadline));
    }
    ojs::result<ojs::heartbeat_response> heartbeat(const ojs::heartbeat_request& request,
                                                   ojs::time_point deadline) override {
        return on_->heartbeat(request, deadline);
    }
    ojs::result<bool> confirm_claim(const ojs::claim_query& query, ojs::time_point deadline) override {
        return on_->confirm_claim(query, deadline);
    }
    ojs::result<void> register_worker(const ojs::worker_identity& worker, ojs::time_point deadline,
                                      const ojs::function<bool()>& should_send) override {
        return on_->register_worker(worker, deadline, should_send);
    }
    void on_work_available(ojs::function<void()> callback) override {
        if (callback && !is_worker_.exchange(true)) on_->on_phase(ojs::phase::running);
        on_->on_work_available(std::move(callback));
    }
    void on_phase(ojs::phase now) override { on_->on_phase(now); }

  private:
    std::size_t held() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return claims_.size();
    }
    ojs::result<ojs::settle_result> settled(const std::string& claim,
                                            ojs::result<ojs::settle_result> response) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (response) claims_.erase(claim);
        return response;
    }

    const ojs::transport_ref on_;
    std::mutex fetching_, mutex_;
    std::set<std::string> claims_;
    std::atomic<bool> is_worker_{false};
};

ojs::transport_ref open(ojs::amqp_options options) {
    if (options.url.empty()) options.url = broker_url();
    auto opened = ojs::open_amqp(std::move(options));
    if (!opened) throw std::runtime_error(opened.error().text);
    return *opened;
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
        ojs::amqp_options options;
        options.retry_delays = {0ms};
        options.on_event = [](ojs::severity level, const std::string& text) {
            if (level != ojs::severity::info) std::fprintf(stderr, "%s\n", text.c_str());
        };
        return std::make_shared<paused_between_fetches>(open(options));
    }
    std::string push(const new_job& what) override {
        static std::atomic<int> number{0};
        declare(what.queue);
        const std::string id = what.id.empty() ? what.queue + "/" + std::to_string(++number) : what.id;
        broker_.publish(what.queue,
                        {id, what.args_json, what.type, "application/json", 0, what.max_attempts});
        return id;
    }
    bool freeze() override {
        pid_ = static_cast<pid_t>(std::atoi(variable("OJS_TEST_BROKER_PID").c_str()));
        return pid_ > 0 && ::kill(pid_, SIGSTOP) == 0;
    }
    void thaw() override { ::kill(pid_, SIGCONT); }

  private:
    void declare(const std::string& queue) {
        if (declared_.insert(queue).second) broker_.declare(queue);
    }
    broker broker_;
    std::set<std::string> declared_;
    pid_t pid_ = 0;
};

// A queue, and a worker's calls.
struct lone_worker {
    explicit lone_worker(ojs::amqp_options options = {}, std::int64_t concurrency = 4) {
        static std::atomic<int> number{0};
        static const auto run = std::chrono::system_clock::now().time_since_epoch().count();
        queue = "own-" + std::to_string(run) + "-" + std::to_string(++number);
        server.declare(queue);
        identity.worker_id = "alone";
        identity.queues = {queue};
        identity.concurrency = concurrency;
        options.on_event = [this](ojs::severity, const std::string& text) {
            const std::lock_guard<std::mutex> lock(mutex);
            events += text + "\n";
        };
        wire = open(std::move(options));
    }
    ~lone_worker() { wire = ojs::transport_ref(); }

    ojs::result<std::vector<ojs::job>> try_fetch(std::size_t count = 1) {
        ojs::fetch_request request;
        request.worker = &identity;
        request.count = count;
        return wire->fetch(request, soon());
    }
    std::vector<ojs::job> fetch(std::size_t count = 1) {
        std::vector<ojs::job> out;
        REQUIRE(eventually([&] {
            const auto got = try_fetch(count - out.size());
            if (got) out.insert(out.end(), got->begin(), got->end());
            return out.size() == count;
        }));
        return out;
    }
    ojs::result<ojs::settle_result> ack(const ojs::job& of) {
        return wire->ack({of.id, "", nullptr, of.claim, &of}, soon());
    }
    ojs::result<ojs::settle_result> fail(const ojs::job& of, bool retryable = true, bool requeue = false) {
        return wire->fail(
            {of.id, {"handler_error", "no", retryable, "{}"}, requeue, "", nullptr, of.claim, &of}, soon());
    }
    ojs::result<ojs::heartbeat_response> beat(const std::vector<std::string>& ids) {
        ojs::heartbeat_request request;
        request.worker = &identity;
        request.active_jobs = ids;
        return wire->heartbeat(request, soon());
    }
    // Polls what the broker or another thread changes.
    template <class Holds>
    static bool eventually(const Holds& holds) {
        const ojs::time_point end = ojs::deadline_after(60s);
        while (!holds()) {
            if (ojs::steady_clock::now() > end) return false;
            std::this_thread::sleep_for(5ms);
        }
        return true;
    }
    bool has_event(const std::string& part) {
        const std::lock_guard<std::mutex> lock(mutex);
        return events.find(part) != std::string::npos;
    }

    broker server;
    std::string queue;
    ojs::worker_identity identity;
    std::mutex mutex;
    std::string events;
    ojs::transport_ref wire;
};

ojs::amqp_options options_at(std::uint16_t port) {
    ojs::amqp_options out;
    out.retry_delays = {0ms};
    out.url = url_at(port);
    return out;
}

// Loses the connection, and waits for the next one.
void reconnect(transport_contract::relay& wire, lone_worker& worker) {
    wire.lose(1);
    CHECK(lone_worker::eventually([&] { return !worker.try_fetch(0); }));
    CHECK(lone_worker::eventually([&] { return worker.try_fetch(0).has_value(); }));
}

bool is_accepted(const ojs::result<ojs::settle_result>& response) {
    return response && *response == ojs::settle_result::accepted;
}
bool is_gone(const ojs::result<ojs::settle_result>& response) {
    return response && *response == ojs::settle_result::gone;
}

}  // namespace

TEST_CASE("open_amqp: an invalid URL is refused with an error that does not show its password") {
    for (const char* url :
         {"amqp://u:secret@host:port/", "amqps://u:secret@host/", "http://u:secret@host/", ""}) {
        ojs::amqp_options options;
        options.url = url;
        const auto opened = ojs::open_amqp(options);
        REQUIRE_FALSE(opened);
        CHECK(opened.error().code == ojs::errc::invalid_argument);
        CHECK(opened.error().text.find("secret") == std::string::npos);
    }
}

TEST_CASE("amqp_transport: a refused login, missing virtual host or closed port fails the registration") {
    lone_worker worker;
    const std::string at = "127.0.0.1:" + std::to_string(broker_port());
    const std::pair<std::string, const char*> wrong[] = {
        {"amqp://guest:secret@" + at + "/", "ACCESS_REFUSED"},
        {"amqp://guest:guest@" + at + "/none", "vhost none not found"},
        {"amqp://guest:guest@127.0.0.1:1/", "cannot connect"}};
    for (const auto& [url, part] : wrong) {
        ojs::amqp_options options;
        options.url = url;
        const auto registered = open(options)->register_worker(worker.identity, soon());
        REQUIRE_FALSE(registered);
        CHECK(registered.error().code == ojs::errc::unreachable);
        CHECK_MESSAGE(registered.error().text.find(part) != std::string::npos, registered.error().text);
        CHECK(registered.error().text.find("secret") == std::string::npos);
    }
}

TEST_CASE("amqp_transport: a missing queue does not stop another queue, and is consumed once it exists") {
    lone_worker worker;
    const std::string missing = worker.queue + "-missing";
    worker.identity.queues = {missing};
    const auto none = worker.wire->register_worker(worker.identity, soon());
    REQUIRE_FALSE(none);
    CHECK(none.error().text.find("NOT_FOUND") != std::string::npos);
    worker.identity.queues = {missing, worker.queue};
    worker.server.publish(worker.queue, {"1", "one", "", "", 0, 0});
    const ojs::job held = worker.fetch()[0];
    CHECK(held.body == "one");
    worker.server.declare(missing);
    worker.server.publish(missing, {"2", "two", "", "", 0, 0});
    CHECK(worker.fetch()[0].body == "two");
    CHECK(is_accepted(worker.ack(held)));
    CHECK(worker.has_event("queue " + missing + ": NOT_FOUND"));
}

TEST_CASE("amqp_transport: a deleted queue is reported, and consumed again once it is declared") {
    lone_worker worker;
    worker.server.publish(worker.queue, {"1", "one", "", "", 0, 0});
    const ojs::job held = worker.fetch()[0];
    worker.server.remove(worker.queue);
    CHECK(lone_worker::eventually([&] { return worker.has_event("the broker ended its consumer"); }));
    static_cast<void>(worker.ack(held));
    worker.server.declare(worker.queue);
    worker.server.publish(worker.queue, {"2", "two", "", "", 0, 0});
    CHECK(worker.fetch()[0].body == "two");
}

TEST_CASE("amqp_transport: the properties of a message decide type, args_json, body and meta of its job") {
    lone_worker worker;
    const std::string json = "application/json; charset=utf-8";
    worker.server.publish(worker.queue, {"1", "plain", "", "", 0, 0});
    worker.server.publish(worker.queue, {"2", "[1.50]", "sum", json, 0, 0});
    worker.server.publish(worker.queue, {"3", "{\"a\":1}", "", json, 0, 7});
    worker.server.publish(worker.queue,
                          {"4", "{\"a\":", "", json, 3, 0, {{"traceparent", "00-1"}, {"say", "\""}}});
    const auto jobs = worker.fetch(4);
    CHECK(jobs[0].type == "message");
    CHECK(jobs[0].args_json == "[]");
    CHECK(jobs[0].body == "plain");
    CHECK(jobs[0].max_attempts == 20);
    CHECK(jobs[1].type == "sum");
    CHECK(jobs[1].args_json == "[1.50]");
    CHECK(jobs[2].args_json == "[{\"a\":1}]");
    CHECK(jobs[2].body == "{\"a\":1}");
    CHECK(jobs[2].max_attempts == 7);
    CHECK(jobs[2].malformed.empty());
    CHECK_FALSE(jobs[3].malformed.empty());
    CHECK(jobs[3].attempt == 3);
    CHECK(jobs[2].meta_json == "{}");
    CHECK(jobs[3].meta_json == R"({"traceparent":"00-1","say":"\""})");
}

TEST_CASE("amqp_transport: quiet returns unfetched messages to the queue, and a resume consumes them again") {
    lone_worker worker({}, 3);
    for (int i = 0; i < 6; ++i) worker.server.publish(worker.queue, {std::to_string(i), "", "", "", 0, 0});
    const ojs::job held = worker.fetch()[0];
    CHECK(lone_worker::eventually([&] { return worker.server.count(worker.queue) == 3; }));  // prefetch: 3
    worker.wire->on_phase(ojs::phase::quiet);
    CHECK(lone_worker::eventually([&] { return worker.server.count(worker.queue) == 5; }));
    CHECK(worker.try_fetch(3)->empty());
    worker.wire->on_phase(ojs::phase::running);  // with one message in flight: two more
    CHECK(lone_worker::eventually([&] { return worker.server.count(worker.queue) == 3; }));
    CHECK(worker.try_fetch(5)->size() == 2);
    CHECK(worker.try_fetch(5)->empty());
    CHECK(worker.server.count(worker.queue) == 3);
    CHECK(is_accepted(worker.ack(held)));
    CHECK(worker.fetch().size() == 1);
    CHECK(worker.server.count(worker.queue) == 2);
}

TEST_CASE(
    "amqp_transport: a job that runs across a reconnect is settled exactly once, through its redelivery") {
    transport_contract::relay wire(broker_port());
    lone_worker worker(options_at(wire.port()));
    worker.server.publish(worker.queue, {"same", "one", "", "", 0, 0});
    const ojs::job first = worker.fetch()[0];
    reconnect(wire, worker);
    SUBCASE("buffered: the first claim's ACK settles it") {
        CHECK(lone_worker::eventually([&] { return is_accepted(worker.ack(first)); }));
        CHECK(is_gone(worker.ack(first)));
        CHECK(worker.try_fetch()->empty());
    }
    SUBCASE("fetched: the latest claim's ACK settles it") {
        const ojs::job again = worker.fetch()[0];
        CHECK(again.id == first.id);
        CHECK(again.claim != first.claim);
        const auto early = worker.ack(first);  // as of a worker that does not know of the new claim yet
        REQUIRE_FALSE(early);
        CHECK(early.error().code == ojs::errc::disconnected);
        CHECK(is_accepted(worker.ack(again)));
    }
    SUBCASE("buffered, then quiet: it is not handed back") {
        const auto is_back = [&] { return !worker.beat({first.id})->jobs_extended.empty(); };
        CHECK(lone_worker::eventually(is_back));
        worker.wire->on_phase(ojs::phase::quiet);
        for (int turns = 0; turns < 3; ++turns) CHECK(worker.wire->register_worker(worker.identity, soon()));
        CHECK(is_accepted(worker.ack(first)));
    }
    SUBCASE("buffered: the first claim's FAIL publishes one retry") {
        CHECK(lone_worker::eventually([&] { return worker.fail(first).has_value(); }));
        const ojs::job retry = worker.fetch()[0];
        CHECK(retry.attempt == (is_quorum() ? 3 : 2));  // a quorum queue has counted the redelivery
        CHECK(worker.try_fetch()->empty());
        CHECK(worker.server.count(worker.queue) == 0);
    }
}

TEST_CASE("amqp_transport: two messages with the same message-id both run, also across a reconnect") {
    transport_contract::relay wire(broker_port());
    lone_worker worker(options_at(wire.port()));
    worker.server.publish(worker.queue, {"same", "one", "", "", 0, 0});
    worker.server.publish(worker.queue, {"same", "two", "", "", 0, 0});
    const auto jobs = worker.fetch(2);
    CHECK(jobs[0].id == "same");
    CHECK(jobs[1].id != "same");
    reconnect(wire, worker);
    CHECK(lone_worker::eventually([&] { return is_accepted(worker.ack(jobs[1])); }));  // "two"
    const ojs::job again = worker.fetch()[0];
    CHECK(again.id == "same");
    CHECK(again.body == "one");
    CHECK(is_accepted(worker.ack(again)));
    worker.wire = ojs::transport_ref();
    CHECK(worker.server.count(worker.queue) == 0);
}

TEST_CASE(
    "amqp_transport: a redelivered message that shares the message-id of a running job is a separate job") {
    transport_contract::relay wire(broker_port());
    lone_worker worker(options_at(wire.port()));
    worker.server.publish(worker.queue, {"same", "one", "", "", 0, 0});
    worker.server.publish(worker.queue, {"same", "two", "", "", 0, 0});
    const auto jobs = worker.fetch(2);
    worker.wire->on_phase(ojs::phase::quiet);
    CHECK(is_accepted(worker.fail(jobs[0], true, true)));  // "one" comes first, and as redelivered
    reconnect(wire, worker);
    worker.wire->on_phase(ojs::phase::running);
    CHECK(lone_worker::eventually([&] { return is_accepted(worker.ack(jobs[1])); }));
    const ojs::job other = worker.fetch()[0];
    CHECK(other.body == "one");
    CHECK(is_accepted(worker.ack(other)));
    worker.wire = ojs::transport_ref();
    CHECK(worker.server.count(worker.queue) == 0);
}

TEST_CASE(
    "amqp_transport: a message that reuses the message-id of an acknowledged message is a separate job") {
    lone_worker worker;
    worker.server.publish(worker.queue, {"same", "one", "", "", 0, 0});
    CHECK(is_accepted(worker.ack(worker.fetch()[0])));
    worker.server.publish(worker.queue, {"same", "two", "", "", 0, 0});
    const ojs::job other = worker.fetch()[0];  // the worker may still have the first
    CHECK(other.id != "same");
    CHECK(other.body == "two");
    CHECK(is_accepted(worker.ack(other)));
}

TEST_CASE("amqp_transport: a worker runs a job only once when a reconnect redelivers it") {
    transport_contract::relay wire(broker_port());
    lone_worker queue;
    auto opened = open(options_at(wire.port()));
    std::atomic<int> runs{0};
    test::event begun, may_end;
    ojs::worker_options options;
    options.queues = {queue.queue};
    options.concurrency = 2;
    options.log.level = ojs::log_level::off;
    options.heartbeat_interval = 200ms;
    ojs::worker worker(options, *opened);
    worker.register_handler("message", [&](ojs::job_context&) {
        ++runs;
        begun.set();
        static_cast<void>(may_end.wait());
    });
    queue.server.publish(queue.queue, {"long", "", "", "", 0, 0});
    REQUIRE(worker.start());
    REQUIRE(begun.wait());
    wire.lose(1);
    // The worker itself claims it again, with its second slot: 0 ready, and it is not run.
    CHECK(lone_worker::eventually([&] { return queue.server.count(queue.queue) == 0; }));
    queue.server.publish(queue.queue, {"next", "", "", "", 0, 0});
    CHECK(lone_worker::eventually([&] { return runs == 2; }));
    may_end.set();
    CHECK(lone_worker::eventually([&] { return worker.report().completed == 2; }));
    CHECK(worker.stop(soon()).status == ojs::stop_status::ended);
    opened = ojs::transport_ref();
    CHECK(queue.server.count(queue.queue) == 0);
    CHECK(runs == 2);
}

TEST_CASE(
    "amqp_transport: no connection -> heartbeats fail before a drain, and report lost claims during it") {
    auto wire = std::make_unique<transport_contract::relay>(broker_port());
    lone_worker worker(options_at(wire->port()));
    worker.server.publish(worker.queue, {"1", "", "", "", 0, 0});
    const ojs::job held = worker.fetch()[0];
    CHECK(worker.beat({held.id})->jobs_extended == std::vector<std::string>{held.id});
    wire.reset();
    CHECK(lone_worker::eventually([&] { return !worker.beat({held.id}); }));
    CHECK(worker.beat({held.id}).error().code == ojs::errc::unreachable);
    const auto may_return = worker.ack(held);
    REQUIRE_FALSE(may_return);
    CHECK(may_return.error().code == ojs::errc::disconnected);
    worker.wire->on_phase(ojs::phase::draining);
    const auto response = worker.beat({held.id});
    REQUIRE(response);
    CHECK(response->claims_lost);
    CHECK(response->jobs_extended.empty());
    CHECK(is_gone(worker.ack(held)));
}

TEST_CASE("amqp_transport: a retry waits in a queue for its delay, and counts its attempt") {
    ojs::amqp_options options;
    options.retry_delays = {300ms, 0ms};
    lone_worker worker(options);
    worker.server.publish(worker.queue, {"again", "body", "", "", 0, 3});
    const ojs::job first = worker.fetch()[0];
    const ojs::time_point failed_at = ojs::steady_clock::now();
    CHECK(*worker.fail(first) == ojs::settle_result::will_retry);
    CHECK(worker.server.count(worker.queue + ".retry.300") >= 0);
    const ojs::job second = worker.fetch()[0];
    CHECK(ojs::steady_clock::now() - failed_at >= 300ms);
    CHECK(second.id == "again");
    CHECK(second.body == "body");
    CHECK(second.attempt == 2);
    CHECK(*worker.fail(second) == ojs::settle_result::will_retry);
    const ojs::job third = worker.fetch()[0];
    CHECK(third.attempt == 3);
    CHECK(*worker.fail(third) == ojs::settle_result::discarded);
    CHECK(worker.server.take(worker.queue + ".dead") ==
          std::make_pair(std::string("body"), std::string("handler_error: no")));
    CHECK(is_gone(worker.fail(third)));
    worker.wire = ojs::transport_ref();
    CHECK(worker.server.count(worker.queue) == 0);
    worker.server.remove(worker.queue + ".retry.300");
    worker.server.remove(worker.queue + ".dead");
}

TEST_CASE("amqp_transport: a message whose attempts are used up is dead-lettered without a run") {
    lone_worker worker({}, 1);  // the next message comes when this one is acknowledged
    worker.server.publish(worker.queue, {"poison", "kills", "", "", 4, 3});
    worker.server.publish(worker.queue, {"next", "works", "", "", 3, 3});
    const ojs::job next = worker.fetch()[0];
    CHECK(next.body == "works");
    CHECK(is_accepted(worker.ack(next)));
    const std::string dead = worker.queue + ".dead";
    CHECK(worker.server.count(dead) == 1);
    CHECK(worker.server.take(dead).first == "kills");
    worker.wire = ojs::transport_ref();
    CHECK(worker.server.count(worker.queue) == 0);
    worker.server.remove(dead);
}

TEST_CASE(
    "amqp_transport: with use_dead_letter_exchange a failed message is rejected, without a dead queue") {
    ojs::amqp_options options;
    options.use_dead_letter_exchange = true;
    lone_worker worker(options);
    worker.server.publish(worker.queue, {"1", "", "", "", 0, 0});
    CHECK(*worker.fail(worker.fetch()[0], false) == ojs::settle_result::discarded);
    worker.wire = ojs::transport_ref();
    CHECK(worker.server.count(worker.queue) == 0);  // the queue has no dead-letter exchange
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
    std::vector<std::string> expected = {
        "a checkpoint travels with the FAIL", "an ACK or FAIL whose response is lost counts once",
        "a FETCH whose response is lost loses no job", "after its lease a worker's reports are gone"};
    if (is_quorum()) expected.insert(expected.begin(), "first in, first out");
    const bool can_freeze = !variable("OJS_TEST_BROKER_PID").empty();
    if (!can_freeze) expected.insert(expected.end() - 3, "a backend that freezes and continues");
    CHECK(left_out == expected);
}

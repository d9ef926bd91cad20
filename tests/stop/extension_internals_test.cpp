// worker_extension: the calls of an extension, and what it sees of its worker.
#include <stdlib.h>

#include "busy_worker.hpp"

using namespace recorder;
using detail::fetch_status;
using detail::job_settlement;
using detail::machine_ref;
using detail::worker_extension;

namespace {
// Records the calls of a test's extensions in order; outlives them.
struct trace {
    void add(const std::string& line) {
        const std::lock_guard<std::mutex> held(mutex);
        lines.push_back(line);
    }
    std::vector<std::string> all() const {
        const std::lock_guard<std::mutex> held(mutex);
        return lines;
    }
    std::ptrdiff_t count(const std::string& line) const {
        const std::vector<std::string> seen = all();
        return std::count(seen.begin(), seen.end(), line);
    }
    std::size_t index_of(const std::string& line) const {
        const std::vector<std::string> seen = all();
        return static_cast<std::size_t>(std::find(seen.begin(), seen.end(), line) - seen.begin());
    }

    mutable std::mutex mutex;
    std::vector<std::string> lines;
    machine_ref worker;  // of the extension that was started last
    counter turns;
    counter drained_turns;
    counter deleted;
};
using shared_trace = std::shared_ptr<trace>;

struct noted_extension : worker_extension {
    explicit noted_extension(shared_trace given) : seen(std::move(given)) {}
    ~noted_extension() override { seen->deleted.add(); }
    result<void> start(const machine_ref& worker) override {
        seen->add("start");
        seen->worker = worker;
        return {};
    }
    void on_phase(const lifecycle_state& state) override { seen->add(to_string(state.phase)); }
    time_point on_tick(time_point /*now*/) override {
        if (seen->worker->is_drained()) seen->drained_turns.add();
        seen->turns.add();
        return time_point::max();
    }
    void on_heartbeat(bool answered) override { seen->add(answered ? "beat" : "beat failed"); }
    void on_fetch(fetch_status status) override {
        if (status != fetch_status::empty) seen->add(status == fetch_status::jobs ? "fetched" : "fetch failed");
    }
    void on_job_settled(const job_settlement& job) override {
        static constexpr const char* names[] = {"completed", "retryable", "discarded", "available"};
        seen->add(std::string(job.queue) + " " + std::string(job.type) + " " + names[static_cast<int>(job.state)]);
    }
    void stop(time_point /*deadline*/) override {
        seen->add("stop");
        seen->worker = {};
    }
    const shared_trace seen;
};

template <class Part>
worker_options options_with(const shared_trace& seen, const char* name = "noted") {
    worker_options out = recorder::options();
    out.extensions.add({name, [seen] { return new Part(seen); }});
    return out;
}

// The error of a start that made no request.
error refused_start(const worker_options& options) {
    recorder::transport wire;
    worker tested(options, wire);
    tested.register_handler("work", do_nothing);
    const result<void> started = tested.start();
    REQUIRE(!started);
    CHECK(tested.run() == exit_status::usage);
    CHECK(wire.calls().empty());
    return started.error();
}
}  // namespace

TEST_CASE("extensions: the first call of an extension is start(), and the last is stop()") {
    const auto seen = std::make_shared<trace>();
    {
        busy_worker busy(options_with<noted_extension>(seen), [](job_context& job) {
            while (!job.stop_requested()) static_cast<void>(job.sleep_for(1ms));
        });
        const machine_ref asked = seen->worker;
        CHECK(asked->phases.now() == phase::running);
        CHECK(asked->active() == 1);
        CHECK_FALSE(asked->is_drained());
        CHECK_FALSE(asked->owns_process);
        CHECK(asked->phases.drain_deadline() == time_point::max());
        CHECK(asked->job_types == std::vector<std::string>{"work"});
        CHECK(ids_of(asked->works()) == std::vector<std::string>{"a"});
        CHECK(asked->phases.own.apply(ojs::event::stop_request, {cause_kind::rpc, 0}));
        CHECK(asked->phases.drain_deadline() < time_point::max());
        REQUIRE(busy.body->wait(deadline_after(guard)));
        CHECK(seen->all().front() == "start");
        CHECK(seen->index_of("running") < seen->index_of("draining"));
        CHECK(seen->index_of("fetched") < seen->index_of("default work completed"));
        CHECK(seen->index_of("draining") < seen->index_of("stopping"));
        CHECK(seen->all().back() == "stop");
        CHECK(seen->index_of("terminated") + 2 == seen->all().size());
        CHECK(seen->count("beat") > 0);
    }
    CHECK(seen->deleted.wait_for(1));
    CHECK(seen->count("stop") == 1);
}

TEST_CASE("extensions: on_tick() is called after wake() and after the last job of a quiet worker") {
    const auto seen = std::make_shared<trace>();
    const shared_event let_go = make_event();
    busy_worker busy(options_with<noted_extension>(seen), [=](job_context&) { CHECK(let_go->wait()); });
    REQUIRE(busy.body->quiet());
    REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
    const int before = seen->turns.count();
    seen->worker->waker.notify();
    REQUIRE(seen->turns.wait_for(before + 1));
    CHECK(seen->drained_turns.count() == 0);
    let_go->set();
    CHECK(seen->drained_turns.wait_for(1));
}

TEST_CASE("extensions: an extension that cannot start makes start() fail, and the next start() creates new ones") {
    struct refusing_extension : noted_extension {
        using noted_extension::noted_extension;
        result<void> start(const machine_ref& worker) override {
            static_cast<void>(noted_extension::start(worker));
            const auto times = seen->count("start");  // two extensions each time
            if (times == 2) return error{errc::busy, 0, "taken"};
            if (times == 4) throw std::runtime_error("out of order");
            return {};
        }
    };
    const auto seen = std::make_shared<trace>();
    worker_options options = options_with<noted_extension>(seen, "first");
    options.extensions.add({"second", [seen] { return new refusing_extension(seen); }});
    recorder::transport wire;
    worker tested(options, wire);
    tested.register_handler("work", [](job_context&) {});
    const result<void> taken = tested.start();
    REQUIRE(!taken);
    CHECK(taken.error().code == errc::busy);
    CHECK(seen->count("stop") == 2);
    CHECK(tested.run() == exit_status::usage);
    CHECK(seen->count("stop") == 4);
    CHECK(wire.calls().empty());
    CHECK(seen->count("running") == 0);
    REQUIRE(tested.start());
    CHECK(seen->deleted.count() == 4);
    CHECK(tested.stop(guard));

    options.extensions.add({"second", nullptr});
    CHECK(holds(refused_start(options).text, "'second'"));
}

TEST_CASE("extensions: exceptions of an extension are logged, and affect neither the worker nor the others") {
    struct throwing_part : noted_extension {
        using noted_extension::noted_extension;
        [[noreturn]] static void fail() { throw std::runtime_error("an extension's fault"); }
        void on_phase(const lifecycle_state& /*state*/) override { fail(); }
        time_point on_tick(time_point /*now*/) override { fail(); }
        void on_heartbeat(bool /*answered*/) override { fail(); }
        void on_fetch(fetch_status /*status*/) override { fail(); }
        void on_job_settled(const job_settlement& /*job*/) override { fail(); }
        void stop(time_point /*deadline*/) override {
            seen->worker = {};
            fail();
        }
    };
    const auto seen = std::make_shared<trace>();
    worker_options options = options_with<throwing_part>(seen, "throws");
    options.extensions.add({"noted", [seen] { return new noted_extension(seen); }});
    options.log.level = log_level::error;
    options.log.hook = [seen](const log_record& record) {
        seen->add(record.message + (record.fields.empty() ? "" : " " + record.fields.front().value));
    };
    busy_worker busy(std::move(options), [](job_context&) {});
    REQUIRE(busy.wire.wait_for("ack", 1));
    CHECK(busy.body->stop(guard));
    CHECK(seen->count("a worker extension threw; ignored throws") > 4);
    CHECK(seen->count("a worker extension threw in stop() throws") == 1);
    CHECK(seen->count("stop") == 1);  // of the other extension
    CHECK(seen->count("terminated") == 1);
    CHECK(seen->count("default work completed") == 1);
}

TEST_CASE("extensions: a thread abandoned by a destroyed worker does not call the extensions") {
    const auto seen = std::make_shared<trace>();
    const shared_event asked = make_event();
    const shared_event answer = make_event();
    const auto ended = std::make_shared<counter>();
    recorder::transport wire;
    wire.on.ack = [=](const ack_request&, time_point) {
        thread_local const counts_at_end of_this_thread(ended);
        asked->set();
        CHECK(answer->wait());
        return result<settle_result>(settle_result::accepted);
    };
    worker_options options = options_with<noted_extension>(seen);
    options.request_timeout = 10ms;
    options.times.shutdown_grace_period = 0ms;
    options.times.stop_timeout = 100ms;
    wire.give(make_job("a"));
    {
        const auto tested = start_worker(wire, options, do_nothing);
        REQUIRE(asked->wait());
    }
    CHECK(seen->deleted.count() == 0);  // the thread holds references
    answer->set();
    REQUIRE(ended->wait_for(1));
    CHECK(seen->count("default work completed") == 0);
    CHECK(seen->all().back() == "stop");
}

TEST_CASE("extensions: an extension refuses the options -> start() fails before any is created") {
    worker_options options = recorder::options();
    const auto refuse = [](const ojs::loop_options& given) -> result<void> {
        return error{errc::invalid_argument, 0, "not " + given.worker_id};
    };
    int made = 0;
    options.worker_id = "me";
    options.extensions.add({"strict", [&made]() -> worker_extension* { return ++made, nullptr; }, refuse});
    CHECK(refused_start(options).text == "not me");
    CHECK(validate(options).error().text == "not me");
    CHECK(made == 0);
}

#include "environment.hpp"
#include "file_tree.hpp"
#include "raw_peer.hpp"

using test::environment_variable;

namespace {
// One end of the protocol as `curl` would be it.
class launcher_end {
  public:
    explicit launcher_end(const std::string& address)
        : client_(peer::make_client(address.compare(0, 5, "unix:") == 0 ? address : "http://" + address)) {}

    http_response post(const std::string& method, const std::string& body) {
        http_request request = peer::post("/prism.interfaces.ProcessLifecycleInterface/" + method, body);
        request.headers = {{"Content-Type", "application/json"}};
        const result<http_response> answer = client_.send(request, peer::call());
        REQUIRE_MESSAGE(answer, answer.error().text);
        return *answer;
    }
    template <class Answer>
    Answer ask(const std::string& method, const std::string& body = "{}") {
        const http_response answer = post(method, body);
        CHECK(answer.status == 200);
        const result<Answer> read = read_message<Answer>(answer.body);
        REQUIRE(read);
        return *read;
    }
    shutdown_status status() { return ask<shutdown_status>("GetShutdownStatus"); }
    shutdown_state state() { return status().state; }
    readiness_response readiness() { return ask<readiness_response>("GetReadinessStatus"); }
    // Again until it is READY: a check counts as not passed if it takes long to get a processor.
    readiness_response await_ready() {
        const time_point end = steady_clock::now() + test::hang_guard;
        readiness_response out = readiness();
        while (out.state != readiness_state::ready && steady_clock::now() < end) out = readiness();
        CHECK(out.state == readiness_state::ready);
        return out;
    }
    shutdown_ack shut_down(const std::string& body = "{}") { return ask<shutdown_ack>("Shutdown", body); }

  private:
    http_client client_;
};

// Takes what a child pushes, and answers it with `status`.
class push_receiver {
  public:
    explicit push_receiver(int status = 200)
        : server_(http_server::start("127.0.0.1:0", [this, status](const http_request& request) {
              {
                  const std::lock_guard<std::mutex> held(mutex_);
                  pushes_.push_back(request.target.substr(request.target.rfind('/') + 1) + " " + request.body);
              }
              if (holds(request.target, "NotifyShutdownComplete")) complete.add();
              if (holds(request.target, "NotifyReady")) ready.add();
              http_response out;
              out.status = status;
              out.body = "{\"acknowledged\":true}";
              return out;
          })) {
        REQUIRE(server_);
    }
    std::string address() const { return server_->address(); }
    std::vector<std::string> pushes() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return pushes_;
    }
    test::counter ready, complete;

  private:
    mutable std::mutex mutex_;
    std::vector<std::string> pushes_;
    result<http_server> server_;
};

const cause sigterm{cause_kind::signal, SIGTERM};

coordinator_options quiet_options(const push_receiver* launcher = nullptr) {
    coordinator_options out;
    out.address = "127.0.0.1:0";
    out.process_id = "kv-1";
    if (launcher != nullptr) out.launcher_address = launcher->address();
    out.max_shutdown = 1h;
    out.log.level = log_level::off;
    return out;
}

shutdown_coordinator start(coordinator_options options, lifecycle& life) {
    result<shutdown_coordinator> made = shutdown_coordinator::start(std::move(options), life);
    REQUIRE_MESSAGE(made, made.error().text);
    return std::move(*made);
}

// A coordinator, its launcher, and another who calls it.
struct started {
    push_receiver launcher;
    lifecycle life{0ms};
    shutdown_coordinator coordinator = start(quiet_options(&launcher), life);
    launcher_end from_outside{coordinator.address()};
};

result<void> run_drained(shutdown_coordinator& coordinator, const cancel_token& until = {}) {
    return coordinator.run([](const cancel_token&) { return result<void>(); }, until);
}

// run() on a thread of its own, whose drain waits to be let go or cancelled.
class draining_program {
  public:
    explicit draining_program(shutdown_coordinator& coordinator, result<void> end = {}, const cancel_token& abort = {})
        : thread_([this, &coordinator, end, abort] {
              const auto drain = [&](const cancel_token& until) -> result<void> {
                  token_ = until;
                  begun.set();
                  const cancel_registration cancelled = until.on_cancel([this] { go.set(); });
                  go.wait();
                  return end;
              };
              outcome = coordinator.run(drain, abort);
              ended.set();
          }) {}
    ~draining_program() {
        go.set();
        thread_.join();
    }
    cancel_reason reason() const { return token_.reason(); }  // once it has begun
    // Until it has ended by itself.
    cancel_reason await_reason() const {
        REQUIRE(ended.wait());
        CHECK(outcome);
        return reason();
    }
    test::event begun, go, ended;
    result<void> outcome;

  private:
    cancel_token token_;
    std::thread thread_;
};
}  // namespace

TEST_CASE_FIXTURE(started, "coordinator: a Shutdown runs the drain, shows each state and reports completion") {
    test::event hook_runs, hook_may_end;
    CHECK(coordinator.active());
    CHECK(coordinator.on_shutdown(
        "leave", [&] { hook_runs.set(), hook_may_end.wait(); }, no_limit));
    CHECK(from_outside.state() == shutdown_state::running);
    shutdown_metrics work;
    work.in_flight_requests = 5;
    work.buffered_bytes = 1 << 20;
    coordinator.set_metrics(work);
    coordinator.set_message("two writes left");

    draining_program program(coordinator);
    const shutdown_ack first = from_outside.shut_down(
        "{\"processId\":\"kv-1\",\"reason\":\"test\",\"gracePeriodSeconds\":60,\"maxShutdownSeconds\":90}");
    CHECK(first.acknowledged);
    CHECK(first.estimated_seconds == 60);
    CHECK(life.state().cause.kind == cause_kind::rpc);
    REQUIRE(hook_runs.wait());
    CHECK(from_outside.state() == shutdown_state::requested);
    CHECK_FALSE(coordinator.on_shutdown(
        "late", [] {}, 1s));
    hook_may_end.set();
    REQUIRE(program.begun.wait());
    shutdown_status now = from_outside.status();
    CHECK(now.state == shutdown_state::draining);
    CHECK(now.metrics.in_flight_requests == 5);
    CHECK(now.metrics.buffered_bytes == 1 << 20);
    CHECK(now.message == "two writes left");
    CHECK_FALSE(now.need_more_time);

    coordinator.report_blocked("Kafka flush");
    coordinator.report_blocked("lock");
    now = from_outside.status();
    CHECK(now.state == shutdown_state::blocked);
    CHECK(now.metrics.blocking_operations == std::vector<std::string>{"Kafka flush", "lock"});
    coordinator.report_unblocked("Kafka flush");
    CHECK(from_outside.state() == shutdown_state::blocked);
    for (int again = 0; again < 2; ++again) {  // a third one of the RFC's own blocks
        const shutdown_ack ack = from_outside.shut_down("{\"maxShutdownSeconds\":1}");
        CHECK(ack.acknowledged);
        CHECK(ack.message == "shutting down already, within the times of the first request");
        CHECK(ack.estimated_seconds > 1);  // what is left of the first one's maximum
        CHECK(from_outside.state() == shutdown_state::blocked);
    }
    coordinator.report_unblocked("lock");
    CHECK(from_outside.state() == shutdown_state::draining);
    coordinator.need_more_time(7s);
    CHECK(from_outside.status().need_more_time);
    CHECK(from_outside.status().additional_seconds == 7);
    coordinator.need_more_time(0s);
    CHECK_FALSE(from_outside.status().need_more_time);

    program.go.set();
    REQUIRE(program.ended.wait());
    CHECK(program.outcome);
    CHECK(from_outside.state() == shutdown_state::complete);
    CHECK(from_outside.shut_down().message == "complete");
    coordinator.report_blocked("late");
    coordinator.set_message("late");
    CHECK(from_outside.status().message == "drained");
    CHECK(from_outside.state() == shutdown_state::complete);
    CHECK(life.phase() == phase::terminated);
    REQUIRE(launcher.complete.wait_for(1));
    for (const std::string& push : launcher.pushes())  // twice where no answer came in time
        CHECK(holds(push, "NotifyShutdownComplete {\"processId\":\"kv-1\",\"message\":\"drained\""));
}

TEST_CASE_FIXTURE(started, "coordinator: a Shutdown during a drain by a signal sets its maximum time") {
    const draining_program program(coordinator);
    life.apply(event::stop_signal, sigterm);
    REQUIRE(program.begun.wait());
    CHECK(from_outside.state() == shutdown_state::draining);
    const time_point asked = steady_clock::now();
    CHECK(from_outside.shut_down("{\"maxShutdownSeconds\":1}").acknowledged);
    CHECK(program.await_reason() == cancel_reason::grace_period_expired);
    CHECK(steady_clock::now() - asked >= 1s);  // all of the maximum is for the drain
    CHECK(from_outside.state() == shutdown_state::complete);
    CHECK(launcher.complete.wait_for(1));
}

TEST_CASE("coordinator: a second stop signal or the caller's token cancels the drain at once") {
    for (const bool by_signal : {true, false}) {
        started of;
        cancel_source until;
        const draining_program program(of.coordinator, {}, until.token());
        of.life.apply(event::stop_signal, sigterm);
        REQUIRE(program.begun.wait());
        if (by_signal) of.life.apply(event::stop_signal, sigterm);
        if (!by_signal) until.cancel(cancel_reason::cancelled);
        CHECK(program.await_reason() == (by_signal ? cancel_reason::forced : cancel_reason::cancelled));
    }
}

TEST_CASE("coordinator: a failed drain stays BLOCKED and is never reported as complete") {
    push_receiver launcher;
    {
        lifecycle life;
        shutdown_coordinator coordinator = start(quiet_options(&launcher), life);
        launcher_end from_outside(coordinator.address());
        {
            draining_program program(coordinator, error{errc::timed_out, 0, "3 in flight"});
            from_outside.shut_down();
            program.go.set();
            REQUIRE(program.ended.wait());
            REQUIRE_FALSE(program.outcome);
            CHECK(program.outcome.error().code == errc::timed_out);
        }
        coordinator.report_blocked("x");
        coordinator.report_unblocked("x");
        CHECK(from_outside.state() == shutdown_state::blocked);
        CHECK(from_outside.status().message == "3 in flight");
        CHECK(test::code_of(run_drained(coordinator)) == errc::busy);
    }
    CHECK(launcher.pushes().empty());
}

TEST_CASE("coordinator: a drain past its grace period requests more time only if the program asks for it") {
    lifecycle life;
    coordinator_options options = quiet_options();
    options.grace_period = 0ms;  // it is past at once
    shutdown_coordinator coordinator = start(options, life);
    coordinator.set_estimate(7s);
    shutdown_metrics work;
    work.in_flight_requests = 1;
    coordinator.set_metrics(work);
    launcher_end from_outside(coordinator.address());
    draining_program program(coordinator);
    CHECK(from_outside.shut_down().estimated_seconds == 7);
    REQUIRE(program.begun.wait());
    CHECK_FALSE(from_outside.status().need_more_time);
    coordinator.need_more_time(5s);
    CHECK(from_outside.status().additional_seconds == 5);
}

TEST_CASE_FIXTURE(started, "coordinator: readiness follows the program's state, its checks, a quiet and a Shutdown") {
    const auto state = [&] { return from_outside.readiness().state; };
    CHECK(state() == readiness_state::starting);
    CHECK_FALSE(from_outside.readiness().checks.grpc_server_ready);
    coordinator.report_warming("pools fill");
    CHECK(from_outside.readiness().message == "pools fill");
    coordinator.set_backend(true, false);
    coordinator.report_ready("serves");
    CHECK(state() == readiness_state::warming);  // a check is not passed yet
    CHECK(from_outside.readiness().message == "not passed: backend warmed");
    coordinator.set_backend(true, true);
    coordinator.set_check("schema", false);
    const auto disk = std::make_shared<std::atomic<bool>>(true);  // a late check may outlive this test
    coordinator.add_check("disk", [disk] { return disk->load(); });
    coordinator.add_check("throws", [disk]() -> bool { return *disk ? true : throw 1; });
    CHECK(state() == readiness_state::warming);
    coordinator.set_check("schema", true);
    const readiness_response ready = from_outside.await_ready();
    CHECK(ready.checks.grpc_server_ready);
    REQUIRE(ready.checks.custom_checks.size() == 3);
    *disk = false;
    const readiness_response failed = from_outside.readiness();
    CHECK(failed.state == readiness_state::unhealthy);
    CHECK(failed.message == "not passed: disk");
    *disk = true;
    from_outside.await_ready();
    coordinator.report_unhealthy("no backend");
    CHECK(from_outside.readiness().message == "no backend");
    CHECK(state() == readiness_state::unhealthy);
    coordinator.report_ready("serves");
    life.apply(event::quiet_request, {cause_kind::api, 0});
    CHECK(state() == readiness_state::draining);
    CHECK(from_outside.state() == shutdown_state::running);
    life.apply(event::resume_request, {cause_kind::api, 0});
    from_outside.await_ready();
    from_outside.shut_down();
    CHECK(state() == readiness_state::draining);
    REQUIRE(launcher.ready.wait_for(1));
    CHECK(launcher.pushes()[0] == "NotifyReady {\"processId\":\"kv-1\",\"message\":\"serves\"}");
}

TEST_CASE_FIXTURE(started, "coordinator: a readiness check that hangs fails, and is not called again") {
    struct shared_gate {
        test::event go;
        test::counter asked;
    };
    const auto gate = std::make_shared<shared_gate>();
    coordinator.report_ready();
    coordinator.add_check("hangs", [gate] {
        gate->asked.add();
        return gate->go.wait();
    });
    coordinator.add_check("fine", [] { return true; });
    for (int i = 0; i < 2; ++i) {
        const readiness_response answer = from_outside.readiness();
        CHECK(answer.state == readiness_state::warming);
        CHECK(answer.message == "not passed: hangs");
        REQUIRE(answer.checks.custom_checks.size() == 2);
    }
    REQUIRE(gate->asked.wait_for(1));
    CHECK(gate->asked.count() == 1);
    CHECK(from_outside.state() == shutdown_state::running);
    gate->go.set();
    from_outside.await_ready();
}

TEST_CASE_FIXTURE(started, "coordinator: calls for other processes, invalid and unserved ones are refused") {
    const struct {
        const char* method;
        const char* body;
        int status;
        const char* code;
    } rows[] = {{"Shutdown", "{\"processId\":\"kv-2\"}", 404, "not_found"},
                {"GetShutdownStatus", "{\"processId\":\"kv-2\"}", 404, "not_found"},
                {"GetReadinessStatus", "{\"processId\":\"kv-2\"}", 404, "not_found"},
                {"Shutdown", "{\"gracePeriodSeconds\":-1}", 400, "invalid_argument"},
                {"Shutdown", "{\"maxShutdownSeconds\":-1}", 400, "invalid_argument"},
                {"Shutdown", "", 400, "invalid_argument"},
                {"NotifyReady", "{}", 404, "unimplemented"},
                {"NotifyShutdownComplete", "{}", 404, "unimplemented"}};
    for (const auto& row : rows) {
        CAPTURE(row.body);
        const http_response refused = from_outside.post(row.method, row.body);
        CHECK(refused.status == row.status);
        CHECK(holds(refused.body, "\"" + std::string(row.code) + "\""));
    }
    CHECK(life.phase() == phase::running);
    CHECK(from_outside.state() == shutdown_state::running);
}

TEST_CASE("coordinator: without an address nothing is served, and run() still enforces max_shutdown") {
    coordinator_options options = quiet_options();
    options.address.clear();
    options.max_shutdown = 20ms;
    lifecycle life;
    shutdown_coordinator coordinator = start(options, life);
    CHECK_FALSE(coordinator.active());
    CHECK(coordinator.address().empty());
    coordinator.report_ready();
    life.apply(event::stop_request, {cause_kind::api, 0});
    CHECK(draining_program(coordinator).await_reason() == cancel_reason::grace_period_expired);
    lifecycle other;
    shutdown_coordinator cancelled = start(options, other);
    cancel_source until;
    until.cancel(cancel_reason::cancelled);
    CHECK(test::code_of(run_drained(cancelled, until.token())) == errc::cancelled);
}

TEST_CASE("coordinator: from_environment() reads the options, and its errors name the variable") {
    const auto from = [](const test::variables& set) {
        return coordinator_options::from_environment(test::lookup(set));
    };
    CHECK(from({}).value_or(quiet_options()).address.empty());
    CHECK(from({{"OJS_LAUNCHER_ADDR", ""}}));  // as a launcher that takes no notifications sets it
    const auto child = from({{"OJS_LIFECYCLE_ADDR", "unix:/run/x"},
                             {"OJS_PROCESS_ID", "kv-1"},
                             {"OJS_LAUNCHER_ADDR", "127.0.0.1:9"},
                             {"OJS_LOG_LEVEL", "warn"},
                             {"OJS_LOG_FORMAT", "logfmt"}});
    REQUIRE(child);
    CHECK(child->address + " " + child->process_id + " " + child->launcher_address == "unix:/run/x kv-1 127.0.0.1:9");
    CHECK(child->log.level == log_level::warn);
    CHECK(child->log.format == log_format::logfmt);
    const std::pair<const char*, const char*> bad[] = {{"OJS_LOG_LEVEL", "loud"},
                                                       {"OJS_LOG_FORMAT", "loud"},
                                                       {"OJS_LIFECYCLE_ADDR", "http://x:1"},
                                                       {"OJS_LAUNCHER_ADDR", "nonsense"}};
    for (const auto& each : bad) {
        CAPTURE(each.first);
        const auto wrong = from({{each.first, each.second}});
        REQUIRE(test::code_of(wrong) == errc::invalid_argument);
        CHECK(holds(wrong.error().text, each.first));
    }
}

// A worker with one job in progress, and its coordinator.
struct working {
    explicit working(std::function<void(job_context&)> handler, log_options log = {}) {
        worker_options options;
        options.log = std::move(log);
        options.poll_interval = 1ms;
        options.times.shutdown_grace_period = 1h;
        works = std::make_unique<worker>(options, queue, life);
        CHECK(works->register_handler("job", [this, handler](job_context& job) { begun.set(), handler(job); }));
        queue.push("job");
        coordinator = shutdown_coordinator::start_for(*works, life);
        REQUIRE(coordinator);
    }
    void start() {
        REQUIRE(works->start());
        REQUIRE(begun.wait());
    }
    void await_end() {
        test::event ended;  // the coordinator registered first, so it knows by then
        const cancel_registration last = works->stopped_token().on_cancel([&] { ended.set(); });
        REQUIRE(works->wait(steady_clock::now() + test::hang_guard));
        REQUIRE(ended.wait());
    }

    const test::temporary_folder folder;
    const environment_variable address{"OJS_LIFECYCLE_ADDR", "unix:" + folder.file("w.sock")};
    struct : memory_transport {
        bool refuses = false;
        result<settle_result> fail(const fail_request& request, time_point deadline) override {
            if (refuses) return error{errc::rejected, 0, "no"};
            return memory_transport::fail(request, deadline);
        }
    } queue;
    lifecycle life;
    test::event begun;
    std::unique_ptr<worker> works;
    result<shutdown_coordinator> coordinator = error{};
};

TEST_CASE("coordinator: start_for(worker) derives readiness, metrics and completion from the worker") {
    const environment_variable id("OJS_PROCESS_ID", "w-1");
    for (const bool by_signal : {false, true}) {
        push_receiver launcher;
        const environment_variable launcher_address("OJS_LAUNCHER_ADDR", launcher.address());
        test::event go;
        working of([&](job_context&) { go.wait(); }, quiet_options().log);
        launcher_end from_outside(of.coordinator->address());
        CHECK(from_outside.readiness().state == readiness_state::warming);
        CHECK(from_outside.readiness().message == "the backend has not responded yet");
        of.start();
        CHECK(launcher.ready.wait_for(1));
        CHECK(from_outside.readiness().state == readiness_state::ready);
        if (by_signal) {
            of.life.apply(event::stop_signal, sigterm);
        } else {
            CHECK(from_outside.shut_down("{\"processId\":\"w-1\",\"maxShutdownSeconds\":3600}").acknowledged);
        }
        CHECK(from_outside.state() == shutdown_state::draining);
        CHECK(from_outside.status().metrics.in_flight_requests == 1);
        CHECK(from_outside.readiness().state == readiness_state::draining);
        go.set();
        of.await_end();
        CHECK(of.works->report().completed == 1);
        CHECK(launcher.complete.wait_for(1));
        CHECK(from_outside.state() == shutdown_state::complete);
        CHECK(launcher.complete.count() == 1);
    }
}

TEST_CASE("coordinator: maxShutdownSeconds cancels a worker's jobs; an unreported job makes the state BLOCKED") {
    test::counter cancelled, requested;
    log_options options;
    options.level = log_level::warn;
    options.hook = [&](const log_record& record) {
        if (holds(record.message, "work in progress is cancelled")) cancelled.add();
        if (holds(record.message, "shutdown requested")) requested.add();
    };
    for (const bool refused : {false, true}) {
        working of([](job_context& job) { static_cast<void>(job.sleep_for(test::hang_guard)); }, options);
        of.start();
        const time_point asked = steady_clock::now();
        of.queue.refuses = refused;
        launcher_end from_outside(of.coordinator->address());
        from_outside.shut_down("{\"maxShutdownSeconds\":1}");
        of.await_end();
        CHECK(from_outside.state() == (refused ? shutdown_state::blocked : shutdown_state::complete));
        CHECK(steady_clock::now() - asked >= 1s);
        CHECK(of.works->report().interrupted == 1);
        CHECK(of.works->report().unreported.empty() != refused);
    }
    // It logs where the worker does, at the worker's level.
    CHECK(cancelled.count() > 0);
    CHECK(requested.count() == 0);
}

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "busy_worker.hpp"

using namespace ojs;
using namespace std::chrono_literals;
using recorder::busy_worker;
using recorder::make_event;
using recorder::make_job;
using recorder::parse;
using recorder::shared_event;
using recorder::sigterm;

namespace {

void until_cancelled(job_context& job) {
    CHECK(!job.sleep_for(1h));
}

// As a thread_local of a thread: sets the event when that ends.
struct at_thread_end {
    recorder::event* ended = nullptr;
    ~at_thread_end() {
        if (ended != nullptr) ended->set();
    }
};

}  // namespace

TEST_CASE("stopping: quiet and resume, each announced at once") {
    recorder::transport wire;
    worker worker(recorder::options(), wire);
    worker.register_handler("work", [](job_context&) {});
    REQUIRE(worker.start());
    REQUIRE(wire.wait_for("fetch", 1));
    REQUIRE(wire.wait_for("beat", 1, "running"));  // the first one, which could else say `quiet` as well
    CHECK(!worker.resume());
    CHECK(worker.quiet());
    CHECK(!worker.quiet());
    CHECK(worker.phase() == phase::quiet);
    REQUIRE(wire.wait_for("beat", 1, "quiet"));  // the interval is an hour
    wire.give(make_job("a"));
    const std::size_t running_beats = wire.calls("beat").size();
    CHECK(wire.calls("fetch").size() == 1);
    CHECK(worker.resume());
    REQUIRE(wire.wait_for("ack", 1));
    REQUIRE(wire.wait_for("beat", running_beats + 1));
    CHECK(wire.calls("beat")[running_beats].state == "running");
    REQUIRE(worker.stop(recorder::guard));
    CHECK(!worker.resume());
    CHECK(!worker.quiet());
    recorder::check_last_word(wire);
}

TEST_CASE("stopping: a quiet worker works on and fetches nothing") {
    recorder::transport wire;
    const shared_event let_go = make_event();
    wire.give(make_job("a"));
    worker_options options = recorder::options(2);
    options.poll_interval = 1ms;
    options.heartbeat_interval = 10ms;
    worker worker(options, wire);
    worker.register_handler("work", [&](job_context& job) {
        CHECK(let_go->wait());
        CHECK(!job.stop_requested());
    });
    REQUIRE(worker.start());
    REQUIRE(wire.wait_for("fetch", 2));
    worker.quiet();
    const std::size_t fetches = wire.calls("fetch").size();
    let_go->set();
    REQUIRE(wire.wait_for("ack", 1));
    REQUIRE(wire.wait_for("beat", 5, "quiet"));
    CHECK(wire.calls("fetch").size() == fetches);
    CHECK(worker.phase() == phase::quiet);
    REQUIRE(worker.stop(recorder::guard));
    CHECK(wire.calls("fetch").size() == fetches);
    recorder::check_last_word(wire);
}

TEST_CASE("stopping: a shared lifecycle's TSTP and CONT, with calls of resume() between") {
    lifecycle life(0ms);
    recorder::transport wire;
    recorder::counter quieted;
    worker_options options = recorder::options();
    options.on_transition = [&](const lifecycle_state& now) {
        if (now.phase == phase::quiet) quieted.add();
    };
    worker worker(options, wire, life);
    worker.register_handler("work", [](job_context&) {});
    REQUIRE(worker.start());
    REQUIRE(wire.wait_for("fetch", 1));
    for (std::size_t round = 1; round <= 3; ++round) {
        life.apply(event::quiet_request, {cause_kind::signal, SIGTSTP});
        REQUIRE(quieted.wait_for(static_cast<int>(round)));
        wire.give(make_job("j" + std::to_string(round)));
        if (round > 1) {
            const std::size_t fetches = wire.calls("fetch").size();
            CHECK(worker.resume());
            CHECK(wire.calls("fetch").size() == fetches);  // the process is still quiet
        }
        life.apply(event::resume_request, {cause_kind::signal, SIGCONT});
        REQUIRE(wire.wait_for("ack", round));
    }
    life.apply(event::stop_signal, sigterm);
    REQUIRE(worker.wait(deadline_after(recorder::guard)));
    CHECK(worker.report().completed == 3);
    recorder::check_last_word(wire);
}

// For the shared lifecycle, which never was quiet, SIGCONT changes nothing; for the worker it does.
TEST_CASE("stopping: SIGCONT resumes a worker that a directive made quiet, on a shared lifecycle too") {
    lifecycle life(0ms);
    recorder::transport wire;
    recorder::counter beats;
    wire.on.beat = [&](const heartbeat_request&) {
        heartbeat_response answer;
        if (beats.add() == 1) answer.directive = directive::quiet;
        return answer;
    };
    worker_options options = recorder::options();
    options.heartbeat_interval = 10ms;
    worker worker(options, wire, life);
    worker.register_handler("work", [](job_context&) {});
    REQUIRE(worker.start());
    REQUIRE(wire.wait_for("beat", 1, "quiet"));
    life.apply(event::resume_request, {cause_kind::signal, SIGCONT});
    REQUIRE(beats.wait_for(beats.count() + 10));
    CHECK(worker.phase() == phase::running);
}

TEST_CASE("stopping: stop() right after a signal on the shared lifecycle forces nothing") {
    recorder::event noticed;
    recorder::event go_on;
    recorder::event draining;
    std::atomic<stop_mode> mode{stop_mode::graceful};
    const shared_event let_go = make_event();
    worker_options options = recorder::options();
    options.on_transition = [&](const lifecycle_state& now) {
        noticed.set();
        CHECK(go_on.wait());
        mode = now.mode;
        if (now.phase == phase::draining) draining.set();
    };
    busy_worker busy(options, [=](job_context&) { CHECK(let_go->wait()); });
    busy.body->quiet();
    REQUIRE(noticed.wait());
    busy.signal();
    busy.body->request_stop();
    go_on.set();
    REQUIRE(draining.wait());
    let_go->set();
    REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
    CHECK(mode == stop_mode::graceful);
}

TEST_CASE("stopping: the directives quiet and terminate; none un-quiets") {
    recorder::transport wire;
    std::mutex mutex;
    directive next = directive::quiet;
    wire.on.beat = [&](const heartbeat_request&) {
        const std::lock_guard<std::mutex> held(mutex);
        heartbeat_response answer;
        answer.directive = std::exchange(next, directive::none);
        return answer;
    };
    std::vector<lifecycle_state> changes;
    worker_options options = recorder::options();
    options.heartbeat_interval = 10ms;
    options.on_transition = [&](const lifecycle_state& now) { changes.push_back(now); };
    worker worker(options, wire);
    worker.register_handler("work", [](job_context&) {});
    REQUIRE(worker.start());
    REQUIRE(wire.wait_for("beat", 5, "quiet"));
    CHECK(worker.phase() == phase::quiet);
    CHECK(worker.resume());
    REQUIRE(wire.wait_for("fetch", 1));
    {
        const std::lock_guard<std::mutex> held(mutex);
        next = directive::terminate;
    }
    REQUIRE(worker.wait(deadline_after(recorder::guard)));
    CHECK(worker.exit_code() == 0);
    REQUIRE(changes.size() == 5);
    CHECK(changes[0].phase == phase::quiet);
    CHECK(changes[0].cause.kind == cause_kind::directive);
    CHECK(changes[1].phase == phase::running);
    CHECK(changes[1].cause.kind == cause_kind::api);
    CHECK(changes[2].phase == phase::draining);
    CHECK(changes[2].cause.kind == cause_kind::directive);
    CHECK(changes[3].phase == phase::stopping);
    CHECK(changes[4].phase == phase::terminated);
    recorder::check_last_word(wire);
}

TEST_CASE("stopping: a repeated directive terminate forces nothing") {
    recorder::event let_go;
    recorder::event began;
    recorder::transport wire;
    wire.on.beat = [&](const heartbeat_request&) {
        heartbeat_response answer;
        if (began.is_set()) answer.directive = directive::terminate;
        return answer;
    };
    wire.give(make_job("a"));
    worker_options options = recorder::options();
    options.heartbeat_interval = 10ms;
    worker worker(options, wire);
    worker.register_handler("work", [&](job_context& job) {
        began.set();
        CHECK(let_go.wait());
        CHECK(!job.cancel_requested());
    });
    REQUIRE(worker.start());
    REQUIRE(wire.wait_for("beat", 5, "quiet"));
    CHECK(worker.phase() == phase::draining);
    let_go.set();
    REQUIRE(worker.wait(deadline_after(recorder::guard)));
    CHECK(worker.report().interrupted == 0);
    recorder::check_last_word(wire);
}

TEST_CASE("stopping: beats go on in the drain, then there is one last one, and nothing after") {
    const shared_event let_go = make_event();
    worker_options options = recorder::options();
    options.heartbeat_interval = 10ms;
    busy_worker busy(options, [=](job_context& job) {
        CHECK(let_go->wait());
        CHECK(job.stop_requested());
        CHECK(!job.cancel_requested());
        CHECK(job.deadline() > steady_clock::now() + 30min);
        CHECK(job.deadline() < steady_clock::now() + 90min);
    });
    busy.signal();
    REQUIRE(busy.wire.wait_for("beat", 5, "quiet"));
    CHECK(busy.wire.calls("beat").back().active == std::vector<std::string>{"a"});
    CHECK(busy.body->phase() == phase::draining);
    CHECK(!busy.body->stopped());
    let_go->set();
    REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
    CHECK(busy.settlement().what == "ack");
    CHECK(busy.body->exit_code() == 0);
    recorder::check_last_word(busy.wire);
}

TEST_CASE("stopping: the drain deadline is known before the supervisor has noticed the stop") {
    for (const bool shared : {false, true}) {
        CAPTURE(shared);
        lifecycle life(0ms);
        recorder::transport wire;
        recorder::event held_up, let_go;
        wire.give(make_job("a"));
        worker_options options = recorder::options();
        options.on_transition = [&](const lifecycle_state& now) {
            if (now.phase != phase::quiet) return;
            held_up.set();
            CHECK(let_go.wait());
        };
        worker worker(options, wire, life);
        worker.register_handler("work", [&](job_context& job) {
            CHECK(job.deadline() == time_point::max());
            worker.quiet();
            CHECK(held_up.wait());
            shared ? life.apply(event::stop_request, {cause_kind::api, 0}) : worker.request_stop();
            CHECK(job.stop_requested());
            CHECK(worker.phase() == phase::draining);
            CHECK(job.deadline() > steady_clock::now() + 30min);
            CHECK(job.deadline() < steady_clock::now() + 90min);
            let_go.set();
        });
        REQUIRE(worker.start());
        REQUIRE(worker.wait(deadline_after(recorder::guard)));
        CHECK(wire.settlements("a").size() == 1);
    }
}

TEST_CASE("stopping: an expired grace period is a warning, and the record of an interrupted job says why") {
    std::mutex mutex;
    std::vector<log_record> records;
    worker_options options = recorder::options();
    options.times.shutdown_grace_period = 10ms;
    options.log.level = log_level::info;
    options.log.hook = [&](const log_record& record) {
        const std::lock_guard<std::mutex> held(mutex);
        records.push_back(record);
    };
    busy_worker busy(options, until_cancelled);
    busy.signal();
    REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
    const auto value = [](const log_record& record, const char* name) {
        for (const log_field& each : record.fields) {
            if (each.name == name) return each.value;
        }
        return std::string();
    };
    int expired = 0;
    int interrupted = 0;
    for (const log_record& each : records) {
        if (each.message == "phase changed")
            CHECK((each.level == log_level::warn) == (value(each, "event") == "grace_expired"));
        if (each.message == "phase changed" && each.level == log_level::warn) ++expired;
        if (each.message != "job interrupted") continue;
        ++interrupted;
        CHECK(value(each, "reason") == "grace_period_expired");
        CHECK(value(each, "signal") == "SIGTERM");
        CHECK(value(each, "job_id") == "a");
    }
    CHECK(expired == 1);
    CHECK(interrupted == 1);
}

TEST_CASE("stopping: leaving running is announced at once") {
    const shared_event let_go = make_event();
    busy_worker busy(recorder::options(), [=](job_context&) { CHECK(let_go->wait()); });
    busy.body->request_stop();
    REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));  // the interval is an hour
    let_go->set();
    REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
    CHECK(busy.wire.calls("beat").size() <= 3);
    recorder::check_last_word(busy.wire);
}

TEST_CASE("stopping: the details of an interrupted job") {
    SUBCASE("forced by a second signal") {
        busy_worker busy(recorder::options(), until_cancelled);
        busy.signal();
        busy.signal();
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.detail("reason") == "forced");
        CHECK(busy.detail("signal") == "SIGTERM");
        CHECK(busy.detail("grace_period_ms") == "3600000");
        CHECK(parse(busy.settlement().error.details_json).get("elapsed_ms").is<double>());
        CHECK(busy.settlement().error.code == "ShutdownError");
        CHECK(busy.settlement().error.retryable);
        CHECK(busy.settlement().requeue);
        CHECK(busy.body->exit_code() == 0);
        CHECK(busy.body->report().interrupted == 1);
        recorder::check_last_word(busy.wire);
    }
    SUBCASE("the grace period expired") {
        worker_options options = recorder::options();
        options.times.shutdown_grace_period = 20ms;
        busy_worker busy(options, until_cancelled);
        const time_point asked = steady_clock::now();
        REQUIRE(busy.body->stop(recorder::guard));
        CHECK(busy.detail("reason") == "grace_period_expired");
        CHECK(busy.detail("signal") == "null");
        CHECK(busy.detail("grace_period_ms") == "20");
        CHECK(busy.settlement().at - asked >= 15ms);
        recorder::check_last_word(busy.wire);
    }
    SUBCASE("stop_and_cancel") {
        busy_worker busy(recorder::patient(), until_cancelled);
        REQUIRE(busy.body->stop_and_cancel(recorder::guard));
        CHECK(busy.detail("reason") == "cancelled");
        CHECK(busy.detail("signal") == "null");
        recorder::check_last_word(busy.wire);
    }
    SUBCASE("stop_and_cancel in the drain") {
        busy_worker busy(recorder::patient(), until_cancelled);
        busy.signal();
        REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
        REQUIRE(busy.body->stop_and_cancel(recorder::guard));
        CHECK(busy.detail("reason") == "cancelled");
        recorder::check_last_word(busy.wire);
    }
    SUBCASE("reclaimed") {
        busy_worker busy(recorder::patient(), until_cancelled);
        busy.life.apply(event::reclaim, {cause_kind::signal, SIGUSR1});
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.detail("reason") == "spot_reclaim");
        CHECK(busy.settlement().requeue);
        recorder::check_last_word(busy.wire);
    }
}

TEST_CASE("stopping: a long_running handler gets ShutdownTimeout, and the website dialect its own words") {
    handler_options long_running;
    long_running.long_running = true;
    busy_worker timeout(recorder::patient(), until_cancelled, long_running);
    REQUIRE(timeout.body->stop_and_cancel(recorder::guard));
    CHECK(timeout.settlement().error.code == "ShutdownTimeout");
    CHECK(timeout.settlement().error.message.rfind("ShutdownTimeout: ", 0) == 0);

    worker_options options = recorder::patient();
    options.dialect = dialect::website();
    for (const bool is_long : {false, true}) {
        long_running.long_running = is_long;
        busy_worker website(options, until_cancelled, long_running);
        REQUIRE(website.body->stop_and_cancel(recorder::guard));
        CHECK(website.settlement().error.code == "shutdown");
        CHECK(!website.settlement().requeue);
        CHECK(website.settlement().error.retryable);
        recorder::check_last_word(website.wire, "terminated");
    }
}

TEST_CASE("stopping: outcomes of cancelled handlers, with and without having seen the cancellation") {
    SUBCASE("it knew and was silent: interrupted") {
        busy_worker busy(recorder::patient(), [](job_context& job) {
            while (!job.cancel_requested()) std::this_thread::yield();
        });
        REQUIRE(busy.body->stop_and_cancel(recorder::guard));
        CHECK(busy.settlement().what == "fail");
        CHECK(busy.body->report().interrupted == 1);
    }
    SUBCASE("it never knew: done") {
        const shared_event let_go = make_event();
        busy_worker busy(recorder::patient(), [=](job_context&) { CHECK(let_go->wait()); });
        busy.body->request_stop_and_cancel();
        REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
        let_go->set();
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.settlement().what == "ack");
        CHECK(busy.body->report().completed == 1);
    }
    SUBCASE("it knew and had finished all the same: done") {
        busy_worker busy(recorder::patient(), [](job_context& job) {
            until_cancelled(job);
            return outcome::done("1");
        });
        REQUIRE(busy.body->stop_and_cancel(recorder::guard));
        CHECK(busy.settlement().what == "ack");
        CHECK(busy.settlement().result_json == "1");
    }
    SUBCASE("it knew and threw: interrupted") {
        busy_worker busy(recorder::patient(), [](job_context& job) {
            until_cancelled(job);
            throw std::runtime_error("cut short");
        });
        REQUIRE(busy.body->stop_and_cancel(recorder::guard));
        CHECK(busy.settlement().error.code == "ShutdownError");
        CHECK(busy.settlement().error.message == "ShutdownError: cut short");
        CHECK(busy.body->report().interrupted == 1);
    }
    SUBCASE("it threw without knowing: failed") {
        const shared_event let_go = make_event();
        busy_worker busy(recorder::patient(), [=](job_context&) {
            CHECK(let_go->wait());
            throw 1;
        });
        busy.body->request_stop_and_cancel();
        REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
        let_go->set();
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.settlement().error.code == "handler_error");
        CHECK(busy.body->report().failed == 1);
    }
    SUBCASE("its callback was called: interrupted") {
        const shared_event notified = make_event();
        busy_worker busy(recorder::patient(), [=](job_context& job) {
            const cancel_registration kept = job.on_cancel([=] { notified->set(); });
            CHECK(notified->wait());
        });
        REQUIRE(busy.body->stop_and_cancel(recorder::guard));
        CHECK(busy.settlement().error.code == "ShutdownError");
    }
}

TEST_CASE("stopping: results that handlers return within cancel_wait are reported") {
    worker_options options = recorder::options();
    options.times.cancel_wait = 4s;
    busy_worker busy(options, [](job_context& job) {
        until_cancelled(job);
        return outcome::done("\"saved\"");
    });
    busy.signal();
    busy.signal();
    REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
    CHECK(busy.settlement().what == "ack");
    CHECK(busy.settlement().result_json == "\"saved\"");
    recorder::check_last_word(busy.wire);
}

TEST_CASE("stopping: a FETCH in flight") {
    lifecycle life(0ms);
    recorder::transport wire;
    recorder::event in_fetch;
    recorder::event answer;
    recorder::counter ran;
    wire.on.fetch = [&](std::size_t) {
        in_fetch.set();
        CHECK(answer.wait());
    };
    worker worker(recorder::options(3), wire, life);
    worker.register_handler("work", [&](job_context&) { ran.add(); });
    const auto give_two = [&] {
        wire.give(make_job("a"));
        wire.give(make_job("b"));
    };
    REQUIRE(worker.start());
    REQUIRE(in_fetch.wait());
    SUBCASE("at quiet: its jobs are run") {
        worker.quiet();
        give_two();
        answer.set();
        REQUIRE(wire.wait_for("ack", 2));
        CHECK(ran.count() == 2);
        CHECK(worker.phase() == phase::quiet);
        CHECK(worker.stop(recorder::guard));
        CHECK(wire.calls("fetch").size() == 1);
    }
    SUBCASE("at the drain: its jobs are requeued") {
        worker.request_stop();
        give_two();
        answer.set();
        REQUIRE(worker.wait(deadline_after(recorder::guard)));
        CHECK(ran.count() == 0);
        for (const char* id : {"a", "b"}) {
            REQUIRE(wire.settlements(id).size() == 1);
            const recorder::call settled = wire.settlements(id)[0];
            CHECK(settled.what == "fail");
            CHECK(settled.requeue);
            CHECK(settled.error.code == "ShutdownError");
            CHECK(settled.error.retryable);
            CHECK(parse(settled.error.details_json).get("reason").to_str() == "not_started");
        }
        CHECK(worker.report().requeued == 2);
        CHECK(worker.report().claimed == 2);
        CHECK(worker.exit_code() == 0);
    }
    SUBCASE("at a forced stop: requeued too") {
        life.apply(event::stop_signal, sigterm);
        life.apply(event::stop_signal, sigterm);
        REQUIRE(wire.wait_for("beat", 1, "quiet"));
        give_two();
        answer.set();
        REQUIRE(worker.wait(deadline_after(recorder::guard)));
        CHECK(worker.report().requeued == 2);
        CHECK(worker.exit_code() == 0);
    }
    SUBCASE("at the drain, and it brings nothing: that ends at once") {
        worker.request_stop();
        REQUIRE(wire.wait_for("beat", 1, "quiet"));
        answer.set();
        REQUIRE(worker.wait(deadline_after(recorder::guard)));  // the grace period is an hour
        CHECK(worker.report().claimed == 0);
    }
    CHECK(worker.stopped());
    recorder::check_last_word(wire);
}

TEST_CASE("stopping: jobs of a FETCH that ends after the reporting threads are named") {
    recorder::transport wire;
    wire.give(make_job("odd", "nobody's"));
    recorder::event in_fetch;
    recorder::event reporter_ended;
    recorder::event named;
    wire.on.fail = [&](const fail_request&, time_point) {
        thread_local at_thread_end end;
        end.ended = &reporter_ended;
        return result<settled>(settled::accepted);
    };
    wire.on.fetch = [&](std::size_t) {
        if (wire.calls("fetch").size() < 2) return;
        in_fetch.set();
        CHECK(reporter_ended.wait());
        wire.give(make_job("late"));
    };
    worker_options options = recorder::options(2);
    options.times.stop_timeout = 500ms;
    options.log.level = log_level::error;
    options.log.hook = [&](const log_record& record) {
        const bool late = record.message == "job could not be reported" && record.fields[0].value == "late";
        if (late) named.set();
    };
    worker worker(options, wire);
    worker.register_handler("work", [](job_context&) {});
    REQUIRE(worker.start());
    REQUIRE(in_fetch.wait());
    REQUIRE(wire.wait_for("fail", 1));
    worker.request_stop_and_cancel();
    CHECK(named.wait());
    CHECK(worker.wait(deadline_after(recorder::guard)));
    CHECK(worker.report().claimed == 2);
    CHECK(worker.report().unreported == std::vector<std::string>{"late"});
}

TEST_CASE("stopping: no FETCH begins once the phase has left running") {
    for (int round = 0; round < 40; ++round) {
        lifecycle life(0ms);
        recorder::transport wire;
        worker_options options = recorder::options(4);
        options.poll_interval = 1ms;
        for (int i = 0; i < 300; ++i) wire.give(make_job("j" + std::to_string(i)));
        recorder::counter ran;
        worker worker(options, wire, life);
        worker.register_handler("work", [&](job_context&) { ran.add(); });
        REQUIRE(worker.start());
        REQUIRE(ran.wait_for(1 + round));
        switch (round % 4) {
            case 0: life.apply(event::stop_signal, sigterm); break;
            case 1: life.apply(event::quiet_request, {cause_kind::signal, SIGTSTP}); break;
            case 2: worker.quiet(); break;
            default: worker.request_stop(); break;
        }
        const std::size_t fetches = wire.calls("fetch").size();
        if (life.phase() != phase::draining) worker.request_stop();
        REQUIRE(worker.wait(deadline_after(recorder::guard)));
        CHECK(wire.calls("fetch").size() == fetches);
        const worker_report report = worker.report();
        CHECK(report.claimed == report.completed + report.requeued);
        recorder::check_last_word(wire);
    }
}

TEST_CASE("stopping: stop() before the start, after the end, from many threads, forever") {
    recorder::transport wire;
    wire.give(make_job("a"));
    {
        worker worker(recorder::options(), wire);
        worker.register_handler("work", [](job_context&) {});
        CHECK(worker.stop().status == stop_status::never_started);
        CHECK(worker.phase() == phase::draining);
        REQUIRE(worker.start());
        REQUIRE(worker.wait(deadline_after(recorder::guard)));
        CHECK(wire.calls("fetch").empty());
        CHECK(worker.stop());
        CHECK(worker.stop(std::chrono::milliseconds::max()));
        CHECK(worker.stop_and_cancel(std::chrono::milliseconds::max()));
        recorder::check_last_word(wire);
    }
    const shared_event let_go = make_event();
    busy_worker busy(recorder::options(), [=](job_context&) { CHECK(let_go->wait()); });
    CHECK(busy.body->request_stop());
    CHECK(busy.body->stop(1ms).status == stop_status::timed_out);
    CHECK(busy.body->stop(std::chrono::milliseconds(-5)).status == stop_status::timed_out);
    cancel_source enough;
    std::thread canceller([&] { enough.cancel(cancel_reason::forced); });
    CHECK(busy.body->stop(time_point::max(), enough.token()).status == stop_status::cancelled);
    CHECK(busy.body->stop(time_point::max(), enough.token()).status == stop_status::cancelled);
    canceller.join();
    const cancel_token stopped = busy.body->stopped_token();
    CHECK(!stopped.cancelled());
    std::vector<std::thread> threads;
    recorder::counter ended;
    for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&, i] {
            ended.add(busy.body->stop(i % 2 == 0 ? std::chrono::milliseconds::max() : 30s) ? 1 : 0);
        });
    }
    let_go->set();
    for (std::thread& each : threads) each.join();
    CHECK(ended.count() == 8);
    CHECK(!stopped.sleep_for(recorder::guard));
    CHECK(busy.settlement().what == "ack");
    recorder::check_last_word(busy.wire);
}

TEST_CASE("stopping: a worker that goes out of scope is stopped first") {
    recorder::transport wire;
    wire.give(make_job("a"));
    recorder::event began;
    {
        worker worker(recorder::options(), wire);
        worker.register_handler("work", [&](job_context&) { began.set(); });
        REQUIRE(worker.start());
        REQUIRE(began.wait());
    }
    CHECK(wire.settlements("a").size() == 1);
    recorder::check_last_word(wire);
}

TEST_CASE(
    "stopping: a handler that ignores cancellation does not delay the stop, and finds nothing freed when it "
    "returns") {
    const shared_event let_go = make_event();
    const auto ended = std::make_shared<recorder::counter>();
    recorder::transport wire;
    {
        lifecycle life(0ms);
        wire.give(make_job("deaf"));
        const shared_event began = make_event();
        worker worker(recorder::options(), wire, life);
        worker.register_handler("work", [=](job_context& job) {
            thread_local const recorder::counts_at_end at_end(ended);
            began->set();
            CHECK(let_go->wait());
            job.heartbeat();
            CHECK(job.cancel_requested());
            CHECK(job.stop_requested());
            CHECK(job.id() == "deaf");
            CHECK(!job.sleep_for(1h));
        });
        REQUIRE(worker.start());
        REQUIRE(began->wait());
        life.apply(event::stop_signal, sigterm);
        life.apply(event::stop_signal, sigterm);
        REQUIRE(worker.wait(deadline_after(recorder::guard)));
        CHECK(worker.exit_code() == 0);
        CHECK(worker.report().stuck == std::vector<std::string>{"deaf"});
        CHECK(worker.report().interrupted == 1);
        CHECK(worker.report().unreported.empty());
        recorder::check_last_word(wire);
    }
    const std::size_t calls = wire.calls().size();
    let_go->set();
    REQUIRE(ended->wait_for(1));
    CHECK(wire.calls().size() == calls);
    CHECK(wire.settlements("deaf").size() == 1);
}

TEST_CASE("stopping: a handler that requests heartbeats in a loop does not delay the last one") {
    const shared_event let_go = make_event();
    const auto asks = std::make_shared<recorder::counter>();
    const auto ask_on = [=](job_context& job) {
        while (!let_go->is_set()) {
            job.heartbeat();
            asks->add();
        }
        asks->add(1000000000);
    };
    SUBCASE("graceful") {
        busy_worker busy(recorder::options(), ask_on);
        busy.body->request_stop();
        REQUIRE(busy.wire.wait_for("beat", 3, "quiet"));
        let_go->set();
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.settlement().what == "ack");
        recorder::check_last_word(busy.wire);
    }
    SUBCASE("forced, while it goes on") {
        busy_worker busy(recorder::options(), ask_on);
        busy.signal();
        busy.signal();
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.settlement().error.code == "ShutdownError");
        REQUIRE(asks->wait_for(asks->count() + 100));  // it still asks
        recorder::check_last_word(busy.wire);
        let_go->set();
    }
    SUBCASE("the grace period expired, while it goes on") {
        worker_options options = recorder::options();
        options.times.shutdown_grace_period = 10ms;
        busy_worker busy(options, ask_on);
        REQUIRE(busy.body->stop(recorder::guard));
        REQUIRE(asks->wait_for(asks->count() + 100));
        recorder::check_last_word(busy.wire);
        let_go->set();
    }
    let_go->set();
    REQUIRE(asks->wait_for(1000000000));
}

TEST_CASE("stopping: an on_cancel callback that blocks delays neither the stop nor other jobs") {
    const shared_event let_go = make_event();
    const auto returned = std::make_shared<recorder::counter>();
    const auto running = std::make_shared<recorder::counter>();
    const shared_event blocked = make_event();
    {
        lifecycle life(0ms);
        recorder::transport wire;
        for (const char* id : {"a", "b", "c"}) wire.give(make_job(id));
        worker worker(recorder::options(3), wire, life);
        worker.register_handler("work", [=](job_context& job) {
            {
                const cancel_registration kept = job.on_cancel([=] {
                    blocked->set();
                    CHECK(let_go->wait());
                });
                running->add();
                CHECK(!job.sleep_for(1h));
                CHECK(blocked->wait());
            }
            returned->add();
        });
        REQUIRE(worker.start());
        REQUIRE(running->wait_for(3));
        life.apply(event::stop_signal, sigterm);
        life.apply(event::stop_signal, sigterm);
        REQUIRE(worker.wait(deadline_after(recorder::guard)));
        CHECK(worker.exit_code() == 0);
        CHECK(worker.report().interrupted == 3);
        for (const char* id : {"a", "b", "c"}) CHECK(wire.settlements(id).size() == 1);
        recorder::check_last_word(wire);
    }
    let_go->set();
    REQUIRE(returned->wait_for(3));
}

TEST_CASE("stopping: two workers on one lifecycle") {
    lifecycle life(0ms);
    recorder::transport first_wire;
    recorder::transport second_wire;
    first_wire.give(make_job("a"));
    second_wire.give(make_job("b"));
    const shared_event let_go = make_event();
    const auto running = std::make_shared<recorder::counter>();
    const auto returned = std::make_shared<recorder::counter>();
    const auto handler = [=](job_context&) {
        running->add();
        CHECK(let_go->wait());
        returned->add();
    };
    worker first(recorder::options(), first_wire, life);
    worker second(recorder::options(), second_wire, life);
    first.register_handler("work", handler);
    second.register_handler("work", handler);
    REQUIRE(first.start());
    REQUIRE(second.start());
    REQUIRE(running->wait_for(2));
    SUBCASE("one stop is for both") {
        life.apply(event::stop_signal, sigterm);
        REQUIRE(first_wire.wait_for("beat", 1, "quiet"));
        REQUIRE(second_wire.wait_for("beat", 1, "quiet"));
        let_go->set();
        REQUIRE(first.wait(deadline_after(recorder::guard)));
        REQUIRE(second.wait(deadline_after(recorder::guard)));
        CHECK(life.phase() == phase::draining);  // what becomes of it is its owner's business
    }
    SUBCASE("one worker's stop is its own") {
        first.request_stop();
        REQUIRE(first_wire.wait_for("beat", 1, "quiet"));
        CHECK(life.phase() == phase::running);
        CHECK(second.phase() == phase::running);
        let_go->set();
        REQUIRE(first.wait(deadline_after(recorder::guard)));
        CHECK(!second.stopped());
        CHECK(second.stop(recorder::guard));
    }
    SUBCASE("the end of one does not end the drain of the other") {
        life.apply(event::stop_signal, sigterm);
        CHECK(first.request_stop_and_cancel());
        life.apply(event::stop_signal, sigterm);
        REQUIRE(first.wait(deadline_after(recorder::guard)));
        REQUIRE(second.wait(deadline_after(recorder::guard)));
        CHECK(first.report().interrupted == 1);
        CHECK(second.report().interrupted == 1);
        let_go->set();
    }
    let_go->set();
    REQUIRE(returned->wait_for(2));
    recorder::check_last_word(first_wire);
    recorder::check_last_word(second_wire);
}

TEST_CASE("stopping: a seventeenth worker on one lifecycle is refused, and takes no place") {
    lifecycle life(0ms);
    recorder::transport wire;
    std::vector<std::unique_ptr<worker>> workers;
    const auto add = [&] {
        workers.push_back(std::make_unique<worker>(recorder::options(), wire, life));
        workers.back()->register_handler("work", [](job_context&) {});
        return workers.back()->start();
    };
    for (int i = 0; i < 16; ++i) CHECK(add());
    const result<void> refused = add();
    REQUIRE(!refused);
    CHECK(refused.error().code == errc::busy);
    REQUIRE(workers[3]->stop(recorder::guard));
    CHECK(workers.back()->start());
    life.apply(event::stop_signal, sigterm);
    for (const auto& each : workers) CHECK(each->wait(deadline_after(recorder::guard)));
}

TEST_CASE("stopping: on_transition is called for each change once, in order, and may throw") {
    for (const bool throws : {false, true}) {
        lifecycle life(0ms);
        recorder::transport wire;
        std::mutex mutex;
        std::vector<phase> phases;
        worker_options options = recorder::patient();
        options.on_transition = [&](const lifecycle_state& now) {
            const std::lock_guard<std::mutex> held(mutex);
            phases.push_back(now.phase);
            if (throws) throw std::runtime_error("no");
        };
        wire.give(make_job("a"));
        worker worker(options, wire, life);
        recorder::event began;
        worker.register_handler("work", [&](job_context& job) {
            began.set();
            until_cancelled(job);
        });
        REQUIRE(worker.start());
        REQUIRE(began.wait());
        worker.quiet();
        worker.resume();
        worker.quiet();
        worker.resume();
        REQUIRE(worker.stop_and_cancel(recorder::guard));
        const std::vector<phase> expected = {phase::quiet,   phase::running,  phase::quiet,
                                             phase::running, phase::stopping, phase::terminated};
        CHECK(phases == expected);
        recorder::check_last_word(wire);
    }
}

TEST_CASE("stopping: a stop from before the worker was built is kept: no FETCH at all") {
    for (const int signals : {1, 2, 3}) {
        CAPTURE(signals);
        lifecycle life(0ms);
        for (int i = 0; i < signals; ++i) life.apply(event::stop_signal, sigterm);
        recorder::transport wire;
        wire.give(make_job("a"));
        worker worker(recorder::options(), wire, life);
        worker.register_handler("work", [](job_context&) {});
        REQUIRE(worker.start());
        REQUIRE(worker.wait(deadline_after(recorder::guard)));
        CHECK(wire.calls("fetch").empty());
        CHECK(worker.exit_code() == 0);
        recorder::check_last_word(wire);
    }
}

TEST_CASE("stopping: a quiet from before the worker was built is kept, until resumed") {
    lifecycle life(0ms);
    life.apply(event::quiet_request, {cause_kind::signal, SIGTSTP});
    recorder::transport wire;
    wire.give(make_job("a"));
    worker worker(recorder::options(), wire, life);
    worker.register_handler("work", [](job_context&) {});
    REQUIRE(worker.start());
    REQUIRE(wire.wait_for("beat", 1, "quiet"));
    CHECK(wire.calls("fetch").empty());
    life.apply(event::resume_request, {cause_kind::signal, SIGCONT});
    REQUIRE(wire.wait_for("ack", 1));
    REQUIRE(worker.stop(recorder::guard));
    recorder::check_last_word(wire);
}

// However close on the heels of its quiet, and of the one before.
TEST_CASE("stopping: no resume of an outside lifecycle is lost") {
    lifecycle life(0ms);
    recorder::transport wire;
    worker worker(recorder::options(), wire, life);
    worker.register_handler("work", [](job_context&) {});
    REQUIRE(worker.start());
    for (std::size_t round = 0; round < 300; ++round) {
        CAPTURE(round);
        for (std::size_t i = 0; i <= round % 3; ++i) {
            life.apply(event::quiet_request, {cause_kind::signal, SIGTSTP});
            if (i == 0)
                wire.give(make_job(std::to_string(round)));  // for a FETCH that only the resume can bring
            life.apply(event::resume_request, {cause_kind::signal, SIGCONT});
        }
        REQUIRE(wire.wait_for("ack", round + 1));
    }
    REQUIRE(worker.stop(recorder::guard));
    recorder::check_last_word(wire);
}

TEST_CASE("stopping: on the third signal a worker that does not own its process stops retrying") {
    worker_options options = recorder::options();
    options.times.stop_timeout = 200s;
    busy_worker busy(options, until_cancelled);
    busy.wire.refuse("fail", 1000, {errc::unavailable, 0, "down"});
    busy.signal();
    busy.signal();
    REQUIRE(busy.wire.wait_for("fail", 2));
    busy.signal();
    REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
    CHECK(busy.body->exit_code() == exit_status::unreported);
    CHECK(busy.body->report().unreported == std::vector<std::string>{"a"});
    recorder::check_last_word(busy.wire);
}

TEST_CASE("stopping: on the third signal all remaining jobs are named") {
    constexpr int jobs = 30;
    recorder::transport wire;
    wire.refuse("fail", 100000, {errc::unavailable, 0, "down"});
    for (int i = 0; i < jobs; ++i) wire.give(make_job("j" + std::to_string(i)));
    recorder::counter began;
    lifecycle life{0ms};
    std::string named;
    worker_options options = recorder::options(jobs);
    options.times.stop_timeout = 200s;
    options.log.level = log_level::error;
    options.log.hook = [&](const log_record& record) {
        if (record.message != "third stop signal: leaving at once") return;
        for (const log_field& each : record.fields) {
            if (each.name == "job_ids") named = "," + each.value + ",";
        }
    };
    worker worker(options, wire, life);
    worker.register_handler("work", [&](job_context& job) {
        began.add();
        CHECK(!job.sleep_for(1h));
    });
    REQUIRE(worker.start());
    REQUIRE(began.wait_for(jobs));
    life.apply(event::stop_signal, sigterm);
    life.apply(event::stop_signal, sigterm);
    REQUIRE(wire.wait_for("fail", 2));
    life.apply(event::stop_signal, sigterm);
    REQUIRE(worker.wait(deadline_after(recorder::guard)));
    for (int i = 0; i < jobs; ++i) CHECK(named.find(",j" + std::to_string(i) + ",") != std::string::npos);
}

TEST_CASE("stopping: an unanswered FETCH is logged along with the unreported jobs") {
    recorder::transport wire;
    wire.give(make_job("a"));
    recorder::event in_fetch;
    recorder::event notified;
    wire.on.fail = [&](const fail_request&, time_point) {
        CHECK(notified.wait());
        return result<settled>(error{errc::unavailable, 0, "down"});
    };
    wire.on.fetch = [&](std::size_t) {
        if (wire.calls("fetch").size() < 2) return;
        in_fetch.set();
        CHECK(notified.wait());
    };
    worker_options options = recorder::options(2);
    options.times.stop_timeout = 500ms;
    options.log.level = log_level::warn;
    options.log.hook = [&](const log_record& record) {
        if (record.message.find("a FETCH is still unanswered") == 0) notified.set();
    };
    worker worker(options, wire);
    worker.register_handler("work", until_cancelled);
    REQUIRE(worker.start());
    REQUIRE(in_fetch.wait());
    worker.request_stop_and_cancel();
    REQUIRE(worker.wait(deadline_after(recorder::guard)));
    CHECK(notified.is_set());
    CHECK(worker.report().unreported == std::vector<std::string>{"a"});
    CHECK(worker.exit_code() == exit_status::unreported);
}

TEST_CASE("stopping: jobs that still wait for a thread are requeued, not interrupted") {
    recorder::generous_transport wire({"b", "c"});
    wire.give(make_job("a"));
    worker_options options = recorder::options(1);
    options.dialect.requeue_interrupted = false;
    worker worker(options, wire);
    const shared_event began = make_event();
    const shared_event let_go = make_event();
    const shared_event returned = make_event();
    worker.register_handler("work", [=](job_context&) {  // deaf
        began->set();
        let_go->wait();
        returned->set();
    });
    REQUIRE(worker.start());
    REQUIRE(began->wait());
    CHECK(worker.stop_and_cancel(recorder::guard));
    let_go->set();
    REQUIRE(returned->wait());
    CHECK_FALSE(wire.settlements("a").at(0).requeue);
    for (const char* const id : {"b", "c"}) {
        REQUIRE(wire.settlements(id).size() == 1);
        CHECK(wire.settlements(id)[0].requeue);
        CHECK(wire.settlements(id)[0].error.details_json == "{\"reason\":\"not_started\"}");
    }
    CHECK(worker.report().interrupted == 1);
    CHECK(worker.report().requeued == 2);
}

TEST_CASE("stopping: the third signal ends a stop that waits for a FETCH alone") {
    lifecycle life(0ms);
    recorder::transport wire;
    recorder::event asked, may_answer;
    wire.on.fetch = [&](std::size_t) {
        asked.set();
        may_answer.wait();
    };
    worker_options options = recorder::options();
    options.times.stop_timeout = 200s;
    worker worker(options, wire, life);
    worker.register_handler("work", [](job_context&) {});
    REQUIRE(worker.start());
    REQUIRE(asked.wait());
    for (int i = 0; i < 3; ++i) life.apply(event::stop_signal, sigterm);
    CHECK(worker.wait(deadline_after(recorder::guard)));
    may_answer.set();
}

TEST_CASE("stopping: stop_and_cancel() starts the hard stage at once, whatever is left of the grace period") {
    for (const bool in_the_drain : {false, true}) {
        CAPTURE(in_the_drain);
        const shared_event let_go = make_event();
        const shared_event returned = make_event();
        busy_worker busy(recorder::options(), [=](job_context&) {  // deaf
            let_go->wait();
            returned->set();
        });
        if (in_the_drain) CHECK(busy.body->request_stop());
        const stop_result ended = busy.body->stop_and_cancel(recorder::guard);  // of a grace period of 1 h
        CHECK(ended);
        CHECK(busy.settlement().error.code == "ShutdownError");
        CHECK(busy.settlement().error.details_json.find("\"cancelled\"") != std::string::npos);
        recorder::check_last_word(busy.wire);
        let_go->set();
        REQUIRE(returned->wait());
    }
}

TEST_CASE("stopping: without a limit the drain ends with its jobs, or when they are cancelled") {
    worker_options options = recorder::patient();
    options.times.shutdown_grace_period = no_limit;
    CHECK(validate(options));
    busy_worker busy(options, [](job_context& job) {
        while (!job.stop_requested()) std::this_thread::yield();
        CHECK(job.deadline() == time_point::max());
        until_cancelled(job);
    });
    CHECK(busy.body->stop(20ms).status == stop_status::timed_out);
    CHECK(busy.body->phase() == phase::draining);
    CHECK(busy.body->stop_and_cancel(recorder::guard));
    CHECK(busy.settlement().error.details_json.find("\"grace_period_ms\":null") != std::string::npos);
}

TEST_CASE("stopping: on_shutdown steps run after the last report, and are in the report") {
    recorder::transport wire;
    const shared_event let_go = make_event();
    const shared_event returned = make_event();
    {
        worker worker(recorder::options(), wire);
        worker.register_handler("work", [](job_context&) {});
        bool last_word = false;
        CHECK(worker.on_shutdown("flush", [&] {
            recorder::check_last_word(wire);
            last_word = true;
        }));
        const auto hangs = [=] {
            let_go->wait();
            returned->set();
        };
        CHECK(worker.on_shutdown("hangs", hangs, 1ms));
        CHECK(worker.on_shutdown("close", [] {}));
        REQUIRE(worker.start());
        CHECK_FALSE(worker.on_shutdown("late", [] {}));
        CHECK(worker.stop());
        CHECK(last_word);
        const std::vector<step_result> steps = worker.report().steps;
        REQUIRE(steps.size() == 3);
        CHECK(steps[0].status == step_status::done);
        CHECK(steps[1].name == "hangs");
        CHECK(steps[1].status == step_status::timed_out);
        CHECK(steps[2].status == step_status::done);
    }
    let_go->set();
    REQUIRE(returned->wait());
}

TEST_CASE("stopping: on_shutdown steps wait for handlers that saw their cancellation") {
    lifecycle life{0ms};
    recorder::transport wire;
    wire.give(make_job("a"));
    worker worker(recorder::options(), wire, life);
    const shared_event began = make_event();
    const shared_event step_ran = make_event();
    const auto overtaken = std::make_shared<std::atomic<bool>>(true);
    worker.register_handler("work", [=, &wire](job_context& job) {
        began->set();
        until_cancelled(job);
        CHECK(wire.wait_for("fail", 1));
        *overtaken = step_ran->wait_until(deadline_after(200ms));  // the step has all that time to overtake
    });
    CHECK(worker.on_shutdown("step", [=] { step_ran->set(); }));
    REQUIRE(worker.start());
    REQUIRE(began->wait());
    life.apply(event::stop_signal, sigterm);
    life.apply(event::stop_signal, sigterm);
    REQUIRE(worker.wait(deadline_after(recorder::guard)));
    CHECK(step_ran->is_set());
    CHECK_FALSE(*overtaken);
}

TEST_CASE("stopping: on_shutdown steps of a worker without a log write nothing") {
    int ends[2];
    REQUIRE(::pipe2(ends, O_NONBLOCK) == 0);
    const int saved = ::dup(2);
    ::dup2(ends[1], 2);
    {
        recorder::transport wire;
        worker worker(recorder::options(), wire);
        worker.register_handler("work", [](job_context&) {});
        CHECK(worker.on_shutdown("step", [] {}));
        CHECK(worker.start());
        CHECK(worker.stop());
    }
    ::dup2(saved, 2);
    char written = 0;
    CHECK(::read(ends[0], &written, 1) == -1);
    for (const int end : {saved, ends[0], ends[1]}) ::close(end);
}

TEST_CASE("stopping: the log names the queues at the start, jobs in the drain, and the sums at the end") {
    struct seen_log {
        recorder::event drain;  // with the time that is left of it
        std::atomic<bool> names_queues{false};
        std::atomic<bool> names_threads{false};
        std::string end;  // the fields of the last record
    };
    const auto log = std::make_shared<seen_log>();
    worker_options options = recorder::options();
    options.queues = {"default", "other"};
    options.progress_interval = 10ms;
    options.log.level = log_level::debug;
    options.log.hook = [log](const log_record& record) {
        if (record.message == "threads have not ended; leaving without them") log->names_threads = true;
        for (const log_field& each : record.fields) {
            if (record.message == "draining" && each.name == "grace_left_ms") log->drain.set();
            if (record.message == "worker stopped") log->end += each.name + " ";
            if (each.name == "queues" && each.value == "default,other") log->names_queues = true;
        }
    };
    busy_worker busy(options, [log](job_context&) { CHECK(log->drain.wait()); });
    busy.signal();
    REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
    CHECK(log->names_queues);
    CHECK(log->end ==
          "status claimed completed failed interrupted requeued gone unreported uptime_ms stop_ms mode "
          "cause ");
    CHECK_FALSE(log->names_threads);
}

TEST_CASE("stopping: wait() returns when the worker cannot start") {
    recorder::transport wire;
    worker_options options = recorder::options();
    const auto taken = http_server::start("127.0.0.1:0", [](const http_request&) { return http_response(); });
    REQUIRE(taken);
    options.health_address = taken->address();
    options.parts.add(operating());
    for (int i = 0; i < 20; ++i) {
        worker tested(options, wire);
        tested.register_handler("work", [](job_context&) {});
        std::thread waiter([&] { CHECK(tested.stop().status == stop_status::never_started); });
        CHECK_FALSE(tested.start());
        waiter.join();
    }
}

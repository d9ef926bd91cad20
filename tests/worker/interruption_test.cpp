// Interruptions that are not the plain drain: a job's own timeout, stuck jobs, the termination mode, River's stages.
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>

#include "busy_worker.hpp"
#include "files.hpp"

using namespace ojs;
using namespace std::chrono_literals;
using recorder::busy_worker;
using recorder::make_event;
using recorder::make_job;
using recorder::shared_event;
using recorder::sigterm;

namespace {

job with_timeout(std::chrono::milliseconds timeout) {
    job out = make_job("a");
    out.timeout = timeout;
    return out;
}

// Collects what a worker logs and reports; outlives the worker.
struct captured_log {
    struct entries {
        mutable std::mutex mutex;
        std::condition_variable more_lines;
        std::vector<std::string> lines;
        std::vector<stuck_job> stuck;
        recorder::counter stuck_calls;
    };
    std::shared_ptr<entries> all = std::make_shared<entries>();

    void listen(worker_options& options) const {
        options.log.level = log_level::debug;
        options.log.hook = [all = all](const log_record& record) {
            const std::lock_guard<std::mutex> held(all->mutex);
            all->lines.push_back(std::string(to_string(record.level)) + " " + std::string(record.message));
            all->more_lines.notify_all();
            for (const log_field& f : record.fields) {
                if (f.name == "stack" || f.name == "elapsed_ms") all->lines.push_back(f.name + " " + f.value);
            }
        };
        options.on_stuck_job = [all = all](const stuck_job& job) {
            {
                const std::lock_guard<std::mutex> held(all->mutex);
                all->stuck.push_back(job);
            }
            all->stuck_calls.add();
            return job.default_action;
        };
    }
    bool has(const std::string& line) const { return count(line) > 0; }
    long count(const std::string& line) const {
        const std::lock_guard<std::mutex> held(all->mutex);
        return count_held(line);
    }
    bool waits_for(const std::string& line) const {
        std::unique_lock<std::mutex> held(all->mutex);
        return all->more_lines.wait_for(held, recorder::guard, [&] { return count_held(line) > 0; });
    }
    std::vector<stuck_job> stuck() const {
        const std::lock_guard<std::mutex> held(all->mutex);
        return all->stuck;
    }

  private:
    long count_held(const std::string& line) const {
        return std::count_if(all->lines.begin(), all->lines.end(),
                             [&](const std::string& each) { return each.find(line) == 0; });
    }
};

struct mode_file {
    void write(const std::string& text) const { std::ofstream(path, std::ios::trunc) << text << "\n"; }
    const test::temporary_folder own;
    const std::string path = own.file("termination-type");
};

void until_cancelled(job_context& job) {
    CHECK(!job.sleep_for(1h));
}

}  // namespace

TEST_CASE("timeout: the job is cancelled; returning nothing is a FAIL that uses up an attempt") {
    captured_log log;
    worker_options options = recorder::options();
    log.listen(options);
    const auto why = std::make_shared<std::atomic<cancel_reason>>(cancel_reason::none);
    busy_worker busy(
        options,
        [why](job_context& job) {
            until_cancelled(job);
            *why = job.token().reason();
            CHECK_FALSE(job.stop_requested());
        },
        {}, with_timeout(5ms));
    REQUIRE(busy.wire.wait_for("fail", 1));
    CHECK(*why == cancel_reason::timeout);
    CHECK(busy.settlement().error.code == "timeout");
    CHECK(busy.settlement().error.retryable);
    CHECK_FALSE(busy.settlement().requeue);
    CHECK(busy.detail("reason") == "timeout");
    CHECK(busy.detail("timeout_ms") == "5");
    CHECK(log.waits_for("warn job cancelled: its timeout is over"));
    REQUIRE(busy.body->stop(recorder::guard));
    CHECK(busy.body->report().failed == 1);
    CHECK(busy.body->report().interrupted == 0);
}

TEST_CASE("revoked: a job that the backend cancels is cancelled here, and not retried") {
    captured_log log;
    worker_options options = recorder::options();
    log.listen(options);
    const auto why = std::make_shared<std::atomic<cancel_reason>>(cancel_reason::none);
    const shared_event listens = make_event();
    const shared_event called = make_event();
    busy_worker busy(options, [why, listens, called](job_context& job) {
        const cancel_registration kept = job.on_cancel([called] { called->set(); });
        listens->set();
        until_cancelled(job);
        REQUIRE(called->wait());
        *why = job.token().reason();
    });
    REQUIRE(listens->wait());
    CHECK(busy.wire.revoke("of somebody else"));
    CHECK(busy.wire.revoke("a"));
    CHECK(busy.wire.revoke("a"));  // harmless to repeat
    REQUIRE(busy.wire.wait_for("fail", 1));
    CHECK(*why == cancel_reason::revoked);
    CHECK(busy.settlement().error.code == "cancelled");
    CHECK_FALSE(busy.settlement().error.retryable);
    CHECK_FALSE(busy.settlement().requeue);
    CHECK(busy.detail("reason") == "revoked");
    CHECK(log.waits_for("info job cancelled by its backend"));
    REQUIRE(busy.body->stop(recorder::guard));
    CHECK(busy.body->report().failed == 1);
    CHECK_FALSE(busy.wire.revoke("a"));  // nobody is called any more
}

TEST_CASE("revoked: the handler's outcome counts, and a stop does not hand such a job back") {
    SUBCASE("done is done") {
        busy_worker busy(recorder::options(), [](job_context& job) {
            until_cancelled(job);
            return outcome::done("1");
        });
        busy.wire.revoke("a");
        REQUIRE(busy.wire.wait_for("ack", 1));
    }
    SUBCASE("a handler that is deaf to it, until the stop") {
        const shared_event over = make_event();
        busy_worker busy(recorder::options(), [over](job_context&) { over->wait(); });
        busy.wire.revoke("a");
        busy.signal();
        busy.signal();
        REQUIRE(busy.wire.wait_for("fail", 1));
        CHECK(busy.settlement().error.code == "cancelled");
        CHECK_FALSE(busy.settlement().requeue);
        over->set();
    }
}

TEST_CASE("timeout: the handler's outcome counts, an exception is a timeout, and callbacks are called") {
    SUBCASE("done is done") {
        busy_worker busy(
            recorder::options(),
            [](job_context& job) {
                until_cancelled(job);
                return outcome::done("1");
            },
            {}, with_timeout(5ms));
        REQUIRE(busy.wire.wait_for("ack", 1));
    }
    SUBCASE("thrown") {
        busy_worker busy(
            recorder::options(),
            [](job_context& job) -> outcome {
                until_cancelled(job);
                throw std::runtime_error("gave up");
            },
            {}, with_timeout(5ms));
        REQUIRE(busy.wire.wait_for("fail", 1));
        CHECK(busy.settlement().error.code == "timeout");
        CHECK(busy.settlement().error.message.find("gave up") != std::string::npos);
    }
    SUBCASE("a callback hears of it") {
        const shared_event heard = make_event();
        busy_worker busy(
            recorder::options(),
            [heard](job_context& job) {
                const cancel_registration kept = job.on_cancel([heard] { heard->set(); });
                CHECK(heard->wait());
            },
            {}, with_timeout(5ms));
        REQUIRE(busy.wire.wait_for("fail", 1));
        CHECK(busy.settlement().error.code == "timeout");
    }
}

TEST_CASE("timeout: each of many jobs has its own clock, and those in time are not touched") {
    recorder::transport wire;
    worker_options options = recorder::options(8);
    for (int i = 0; i < 40; ++i) {
        job each = make_job("job-" + std::to_string(i), i % 2 == 0 ? "late" : "in-time");
        each.timeout = i % 2 == 0 ? std::chrono::milliseconds(1 + i % 7) : std::chrono::milliseconds(1h);
        wire.give(std::move(each));
    }
    worker worker(options, wire);
    worker.register_handler("late", until_cancelled);
    worker.register_handler("in-time", [](job_context& job) { CHECK_FALSE(job.cancel_requested()); });
    REQUIRE(worker.start());
    REQUIRE(wire.wait_for("fail", 20));
    REQUIRE(wire.wait_for("ack", 20));
    REQUIRE(worker.stop(recorder::guard));
    for (const recorder::call& each : wire.calls("fail")) CHECK(each.error.code == "timeout");
    CHECK(worker.report().claimed == 40);
}

TEST_CASE("timeout: a job that was cancelled before does not change") {
    captured_log log;
    worker_options options = recorder::patient();
    options.stuck_after = 1h;
    log.listen(options);
    constexpr std::chrono::milliseconds timeout = 1s;
    busy_worker busy(
        options,
        [=](job_context& job) {
            until_cancelled(job);
            std::this_thread::sleep_for(timeout);  // it is the passing of time that is meant
            CHECK(job.token().reason() == cancel_reason::cancelled);
        },
        {}, with_timeout(timeout));
    busy.body->request_stop_and_cancel();
    REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
    CHECK(busy.settlement().error.code == "ShutdownError");
    CHECK_FALSE(log.has("warn job cancelled: its timeout is over"));
}

int mappings() {
    std::ifstream maps("/proc/self/maps");
    std::string line;
    int lines = 0;
    while (std::getline(maps, line)) ++lines;
    return lines;
}

TEST_CASE("timeout: thousands with a callback each leave no thread behind") {
    constexpr int jobs = 3000;
    const int before = mappings();
    recorder::transport wire;
    for (int i = 0; i < jobs; ++i) {
        job each = make_job("job-" + std::to_string(i));
        each.timeout = 1ms;
        wire.give(std::move(each));
    }
    worker worker(recorder::options(16), wire);
    worker.register_handler("work", [](job_context& job) {
        const shared_event heard = make_event();
        const cancel_registration kept = job.on_cancel([heard] { heard->set(); });
        CHECK(heard->wait());
    });
    REQUIRE(worker.start());
    REQUIRE(wire.wait_for("fail", jobs));
    // A stack that nobody gave back is two.
    CHECK(mappings() < before + jobs);
    REQUIRE(worker.stop(recorder::guard));
    CHECK(worker.report().failed == jobs);
}

TEST_CASE("stuck: a job that outlives its cancellation is logged once, and once more when it is abandoned") {
    captured_log log;
    worker_options options = recorder::options();
    options.stuck_after = 10ms;
    log.listen(options);
    const shared_event let_go = make_event();
    busy_worker busy(
        options, [=](job_context&) { static_cast<void>(let_go->wait()); }, {}, with_timeout(5ms));
    REQUIRE(log.all->stuck_calls.wait_for(1));
    CHECK(log.has("warn job is stuck"));
    CHECK(log.has("elapsed_ms "));
    stuck_job first = log.stuck()[0];
    CHECK(first.id == "a");
    CHECK(first.type == "work");
    CHECK(first.cancelled >= 10ms);
    CHECK(first.age >= first.cancelled);
    CHECK_FALSE(first.abandoned);
    CHECK(first.count == 1);
    busy.signal();
    busy.signal();
    REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
    const std::vector<stuck_job> all = log.stuck();
    REQUIRE(all.size() == 2);
    CHECK(all[1].abandoned);
    CHECK(all[1].count == 1);
    CHECK(log.has("warn job abandoned"));
    CHECK(busy.body->report().stuck == std::vector<std::string>{"a"});
    CHECK(busy.settlement().error.code == "timeout");  // its own fault, whichever thread reports it
    CHECK_FALSE(busy.settlement().requeue);
    let_go->set();
}

TEST_CASE("stuck: a listener may throw, and a job that returns in time is not stuck") {
    captured_log log;
    worker_options options = recorder::options();
    options.stuck_after = 10ms;
    log.listen(options);
    const shared_event let_go = make_event();
    const shared_event thrown = make_event();
    options.on_stuck_job = [thrown](const stuck_job&) -> stuck_action {
        thrown->set();
        throw std::runtime_error("listener");
    };
    busy_worker busy(
        options, [=](job_context&) { CHECK(let_go->wait()); }, {}, with_timeout(1ms));
    REQUIRE(thrown->wait());
    let_go->set();
    REQUIRE(busy.body->stop(recorder::guard));
    CHECK(log.has("error on_stuck_job threw"));

    captured_log quiet_log;
    worker_options patient = recorder::options();
    quiet_log.listen(patient);
    busy_worker prompt(patient, until_cancelled);
    REQUIRE(prompt.body->stop_and_cancel(recorder::guard));
    CHECK(quiet_log.stuck().empty());
}

namespace {

worker_options for_stuck(std::int64_t concurrency, const captured_log& log) {
    worker_options out = recorder::options(concurrency);
    out.stuck_after = 10ms;
    out.poll_interval = 10ms;
    out.heartbeat_interval = 10ms;
    log.listen(out);
    return out;
}

// A worker whose job "a" is deaf to its cancellation until `let_go`, and whose jobs of type "other" can be given later.
struct deaf_worker {
    deaf_worker(worker_options options, std::function<void(job_context&)> other)
        : body(std::move(options), wire) {
        body.register_handler("work", [this](job_context&) {
            static_cast<void>(let_go->wait());
            returned->set();
        });
        body.register_handler("other", std::move(other));
        wire.give(with_timeout(1ms));
        REQUIRE(body.start());
    }
    const shared_event let_go = make_event();
    const shared_event returned = make_event();
    recorder::transport wire;
    worker body;
};

}  // namespace

TEST_CASE("stuck: without a listener a worker stops if all its handlers are stuck") {
    captured_log log;
    worker_options options = for_stuck(1, log);
    options.on_stuck_job = nullptr;
    deaf_worker deaf(options, [](job_context&) {});
    CHECK(log.waits_for("error handlers are stuck; the worker stops"));
    CHECK(deaf.body.stop_and_cancel(recorder::guard));
    deaf.let_go->set();
    REQUIRE(deaf.returned->wait());
}

TEST_CASE(
    "stuck: a deaf job is reported after its timeout, a new thread has its slot, and its late result is "
    "dropped") {
    captured_log log;
    recorder::counter together;
    deaf_worker deaf(for_stuck(2, log), [&](job_context&) {
        together.add();
        CHECK(together.wait_for(2));  // both slots are there, beside the deaf handler
    });
    REQUIRE(deaf.wire.wait_for("fail", 1));
    deaf.wire.give(make_job("b", "other"));
    deaf.wire.give(make_job("c", "other"));
    REQUIRE(deaf.wire.wait_for("ack", 2));
    const recorder::call report = deaf.wire.settlements("a").at(0);
    CHECK(report.error.code == "timeout");
    CHECK(report.error.retryable);
    CHECK_FALSE(report.requeue);
    CHECK(deaf.body.report().stuck == std::vector<std::string>{"a"});
    const std::size_t beats = deaf.wire.calls("beat").size();
    REQUIRE(deaf.wire.wait_for("beat", beats + 2));
    CHECK(deaf.wire.calls("beat").back().active.empty());  // nobody renews its lease
    CHECK_FALSE(deaf.returned->is_set());
    deaf.let_go->set();
    REQUIRE(log.waits_for("warn a stuck handler has returned; its result is dropped"));
    REQUIRE(deaf.body.stop(recorder::guard));
    CHECK(deaf.body.exit_code() == 0);
    CHECK(deaf.wire.settlements("a").size() == 1);
    CHECK(deaf.body.report().stuck.empty());
    CHECK(deaf.body.report().failed == 1);
    CHECK(deaf.body.report().completed == 2);
}

TEST_CASE("stuck: a slot that is to be kept takes no job until the handler returns") {
    captured_log log;
    worker_options options = for_stuck(1, log);
    const shared_event answered = make_event();
    options.on_stuck_job = [answered](const stuck_job& job) {
        CHECK(job.default_action == stuck_action::stop);  // all are stuck
        answered->set();
        return stuck_action::keep;
    };
    deaf_worker deaf(std::move(options), [](job_context&) {});
    REQUIRE(deaf.wire.wait_for("fail", 1));
    REQUIRE(answered->wait());
    deaf.wire.give(make_job("b", "other"));
    const std::size_t fetches = deaf.wire.calls("fetch").size();
    REQUIRE(deaf.wire.wait_for("beat", deaf.wire.calls("beat").size() + 5));
    CHECK(deaf.wire.calls("fetch").size() == fetches);
    deaf.let_go->set();
    REQUIRE(deaf.wire.wait_for("ack", 1));
    CHECK(deaf.returned->is_set());
    CHECK(deaf.body.stop(recorder::guard));
}

TEST_CASE("stuck: a worker all of whose handlers are stuck drains, and ends with a status of its own") {
    captured_log log;
    deaf_worker deaf(for_stuck(1, log), [](job_context&) {});
    REQUIRE(deaf.body.wait(deadline_after(recorder::guard)));
    CHECK(log.has("error handlers are stuck; the worker stops"));
    CHECK(deaf.body.exit_code() == 75);
    CHECK(deaf.body.report().stuck == std::vector<std::string>{"a"});
    CHECK(deaf.body.report().unreported.empty());
    CHECK(deaf.body.stop(recorder::guard).status == stop_status::ended);
    deaf.let_go->set();
    CHECK(deaf.returned->wait());
}

TEST_CASE("stuck: a callback that blocks delays neither other jobs nor the stop") {
    captured_log log;
    worker_options options = for_stuck(2, log);
    options.times.stop_timeout = 500ms;
    const shared_event asked = make_event();
    const shared_event answer = make_event();
    options.on_stuck_job = [=](const stuck_job&) {
        asked->set();
        static_cast<void>(answer->wait());
        return stuck_action::replace;
    };
    deaf_worker deaf(std::move(options), [](job_context&) {});
    REQUIRE(asked->wait());
    deaf.wire.give(make_job("b", "other"));
    REQUIRE(deaf.wire.wait_for("ack", 1));
    REQUIRE(deaf.body.quiet());
    REQUIRE(deaf.wire.wait_for("beat", 1, "quiet"));
    CHECK(deaf.body.stop(recorder::guard));
    CHECK(deaf.body.report().stuck == std::vector<std::string>{"a"});
    answer->set();
    deaf.let_go->set();
    CHECK(deaf.returned->wait());
}

#if OJS_SHUTDOWN_USE_UNWIND
TEST_CASE("stuck: the log says where the thread is, where the signals are ours") {
    captured_log log;
    worker_options options = recorder::options();
    options.stuck_after = 10ms;
    options.parts.add(operating());
    log.listen(options);
    const shared_event let_go = make_event();
    lifecycle unused;
    const result<signals> installed = signals::install(unused);
    REQUIRE(installed);
    busy_worker busy(
        options, [=](job_context&) { CHECK(let_go->wait()); }, {}, with_timeout(5ms));
    REQUIRE(log.all->stuck_calls.wait_for(1));
    CHECK(log.has("stack "));
    CHECK(log.has("stack program+0x"));
    busy.life.apply(event::report_request, {});
    let_go->set();
    REQUIRE(busy.body->stop(recorder::guard));
    CHECK(unused.report_requests() == 0);  // our own SIGTTIN is nobody's wish for a report
}

TEST_CASE("stuck: reading a thread's stack interrupts no read() of its handler") {
    captured_log log;
    worker_options options = recorder::options();
    options.stuck_after = 10ms;
    options.parts.add(operating());
    log.listen(options);
    lifecycle unused;
    const result<signals> installed = signals::install(unused);
    REQUIRE(installed);
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    std::atomic<ssize_t> got{-2};
    busy_worker busy(
        options,
        [&](job_context&) {
            char byte = 0;
            got = ::read(ends[0], &byte, 1);
        },
        {}, with_timeout(5ms));
    REQUIRE(log.all->stuck_calls.wait_for(1));
#ifndef __SANITIZE_THREAD__  // which keeps the signal until the read() is over
    CHECK(log.has("stack program+0x"));
#endif
    REQUIRE(::write(ends[1], "x", 1) == 1);
    REQUIRE(busy.body->stop(recorder::guard));
    CHECK(got == 1);
    for (const int each : ends) ::close(each);
}
#endif

TEST_CASE("termination mode: NORMAL_SHUTDOWN drains, and logs the file and the deadline") {
    const mode_file file;
    file.write("NORMAL_SHUTDOWN");
    captured_log log;
    worker_options options = recorder::options();
    options.termination_mode_file = file.path;
    options.times.shutdown_grace_period = 3550s;
    log.listen(options);
    const shared_event let_go = make_event();
    busy_worker busy(options, [=](job_context&) { CHECK(let_go->wait()); });
    busy.signal();
    REQUIRE(log.waits_for("info Received SIGTERM"));
    CHECK(busy.body->phase() == phase::draining);
    let_go->set();
    REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
    CHECK(busy.settlement().what == "ack");
    CHECK(log.has("info File " + file.path + " contains NORMAL_SHUTDOWN, using graceful shutdown"));
    CHECK(log.has("info Received SIGTERM. Grace period: 3550s (until 2"));
    CHECK_FALSE(log.has("warn Spot instance"));
}

TEST_CASE("termination mode: SPOT_RECLAIM, no file, and SIGUSR1 hand every job back at once") {
    const mode_file file;
    captured_log log;
    worker_options options = recorder::options();
    options.termination_mode_file = file.path;
    options.dialect.requeue_interrupted = false;  // a reclaim does so whatever the dialect
    log.listen(options);
    event asked = event::stop_signal;
    SUBCASE("the file says so") {
        file.write("SPOT_RECLAIM");
    }
    SUBCASE("no file") {
        ::unlink(file.path.c_str());
    }
    SUBCASE("SIGUSR1, whatever the file says") {
        file.write("NORMAL_SHUTDOWN");
        asked = event::reclaim;
    }
    busy_worker busy(options, until_cancelled);
    busy.life.apply(asked, {cause_kind::signal, asked == event::reclaim ? SIGUSR1 : SIGTERM});
    REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
    CHECK(busy.settlement().what == "fail");
    CHECK(busy.settlement().requeue);
    CHECK(busy.detail("reason") == "spot_reclaim");
    CHECK(log.has("warn Spot instance reclamation detected"));
    CHECK(log.has("warn Initiating immediate shutdown to requeue job before VM termination"));
    CHECK_FALSE(log.has("info Received SIGTERM"));
    recorder::check_last_word(busy.wire);
}

TEST_CASE("termination mode: only a stop by signal reads the file, and none when it is off") {
    const mode_file file;
    file.write("SPOT_RECLAIM");
    worker_options options = recorder::options();
    const shared_event let_go = make_event();
    const auto work = [=](job_context&) { CHECK(let_go->wait()); };
    SUBCASE("stop()") {
        options.termination_mode_file = file.path;
        busy_worker busy(options, work);
        busy.body->request_stop();
        REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
        let_go->set();
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.settlement().what == "ack");
    }
    SUBCASE("the policy is off") {
        busy_worker busy(options, work);
        busy.signal();
        REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
        let_go->set();
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.settlement().what == "ack");
    }
}

TEST_CASE("termination mode: a reclaim in the drain, and none where the first signal wins") {
    worker_options options = recorder::options();
    const shared_event let_go = make_event();
    const auto work = [=](job_context& job) {
        while (!let_go->is_set() && job.sleep_for(1ms)) {
        }
    };
    SUBCASE("reclaim") {
        busy_worker busy(options, work);
        busy.signal();
        REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
        busy.life.apply(event::reclaim, {cause_kind::signal, SIGUSR1});
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.detail("reason") == "spot_reclaim");
    }
    SUBCASE("the first signal wins, also over a drain that nobody signalled") {
        const mode_file file;
        file.write("SPOT_RECLAIM");
        options.dialect.first_signal_wins = true;
        options.termination_mode_file = file.path;
        busy_worker busy(options, work);
        busy.body->request_stop();
        REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
        SUBCASE("SIGTERM asks the file") {
            busy.signal();
        }
        SUBCASE("SIGUSR1") {
            busy.life.apply(event::reclaim, {cause_kind::signal, SIGUSR1});
        }
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.detail("reason") == "spot_reclaim");
    }
    SUBCASE("the first signal wins, and SIGTERM over such a drain lets it go on if the file says so") {
        const mode_file file;
        file.write("NORMAL_SHUTDOWN");
        options.dialect.first_signal_wins = true;
        options.termination_mode_file = file.path;
        captured_log log;
        log.listen(options);
        busy_worker busy(options, work);
        busy.body->request_stop();
        REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
        for (int i = 0; i < 4; ++i) busy.signal();
        REQUIRE(log.waits_for("info Received SIGTERM"));
        let_go->set();
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.settlement().what == "ack");
    }
    SUBCASE("the first signal wins") {
        options.dialect.first_signal_wins = true;
        busy_worker busy(options, work);
        busy.signal();
        REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
        CHECK(busy.body->phase() == phase::draining);
        for (int i = 0; i < 3; ++i) busy.signal();
        busy.life.apply(event::reclaim, {cause_kind::signal, SIGUSR1});
        CHECK(busy.body->phase() == phase::draining);
        let_go->set();
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.settlement().what == "ack");
    }
}

TEST_CASE("reclaim_wait: handlers may bring their work to an end before the job is requeued") {
    worker_options options = recorder::options();
    options.times.reclaim_wait = 4s;
    busy_worker busy(options, [](job_context& job) {
        until_cancelled(job);
        return outcome::interrupted("the child is gone");
    });
    busy.life.apply(event::reclaim, {cause_kind::signal, SIGUSR1});
    REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
    CHECK(busy.settlement().error.message.find("the child is gone") != std::string::npos);
    CHECK(busy.settlement().requeue);
}

TEST_CASE("cancel_lead: jobs are cancelled inside the grace period, and may still return a result") {
    worker_options options = recorder::options();
    options.times.shutdown_grace_period = 1h;
    options.times.cancel_lead = 1h - 5ms;
    busy_worker busy(options, [](job_context& job) {
        until_cancelled(job);
        CHECK(job.token().reason() == cancel_reason::grace_period_expired);
        return outcome::done("\"saved\"");
    });
    busy.signal();
    REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
    CHECK(busy.settlement().result_json == "\"saved\"");
}

TEST_CASE("river: the preset's stages") {
    worker_options options;
    options.use(dialect::river());
    CHECK(options.times.shutdown_grace_period == 10s);
    CHECK(options.times.cancel_wait == 10s);
    CHECK(options.times.stop_timeout > options.times.cancel_wait);
    CHECK(validate(options));
    options.use(dialect::spot_controller());
    CHECK(options.times.shutdown_grace_period == 3550s);
    CHECK(options.times.cancel_lead == 10s);
    CHECK(options.times.cancel_wait == 0s);
    CHECK(options.termination_mode_file == "/tmp/termination-type");
    CHECK(validate(options));
    options.use(dialect::graceful_shutdown());
    CHECK(options.times.shutdown_grace_period == 30s);
    CHECK(options.times.cancel_lead == 0s);
    CHECK(options.termination_mode_file.empty());
}

namespace {

worker_options river_options() {
    worker_options out = recorder::options();
    const std::chrono::milliseconds grace = out.times.shutdown_grace_period;
    out.use(dialect::river());
    out.times.shutdown_grace_period = grace;
    return out;
}

}  // namespace

TEST_CASE("river: a soft stop waits for the job; the second signal cancels it and waits for its result") {
    const shared_event let_go = make_event();
    const auto soft = [=](job_context& job) {
        CHECK(let_go->wait());
        CHECK_FALSE(job.cancel_requested());
    };
    SUBCASE("soft") {
        busy_worker busy(river_options(), soft);
        busy.signal();
        REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
        let_go->set();
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.settlement().what == "ack");
        CHECK(busy.body->exit_code() == 0);
    }
    SUBCASE("hard: the result of a cancelled job is still reported") {
        busy_worker busy(river_options(), [](job_context& job) {
            until_cancelled(job);
            return outcome::done("\"partial\"");
        });
        busy.signal();
        busy.signal();
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.settlement().result_json == "\"partial\"");
        CHECK(busy.body->exit_code() == 0);
    }
    SUBCASE("the trap: a job that returns without a word after it was cancelled is no success") {
        busy_worker busy(river_options(), until_cancelled);
        busy.signal();
        busy.signal();
        REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
        CHECK(busy.settlement().what == "fail");
        CHECK(busy.settlement().error.retryable);
    }
}

TEST_CASE("river: a job that ignores its cancellation is reported, named, and has its own exit status") {
    captured_log log;
    worker_options options = river_options();
    options.times.cancel_wait = 10ms;
    log.listen(options);
    const shared_event let_go = make_event();
    busy_worker busy(options, [=](job_context&) { static_cast<void>(let_go->wait()); });
    busy.signal();
    busy.signal();
    REQUIRE(busy.body->wait(deadline_after(recorder::guard)));
    CHECK(busy.body->exit_code() == exit_status::stuck);
    CHECK(busy.settlement().what == "fail");
    REQUIRE(log.stuck().size() == 1);
    CHECK(log.stuck()[0].abandoned);
    CHECK(log.stuck()[0].id == "a");
    let_go->set();
}

TEST_CASE("interruption: jobs whose timeout exceeds the grace period are logged once per type") {
    captured_log log;
    recorder::transport wire;
    worker_options options = recorder::options();
    log.listen(options);
    options.times.shutdown_grace_period = 30s;
    recorder::counter done;
    worker tested(options, wire);
    for (const char* type : {"long", "longer"})
        tested.register_handler(type, [&](job_context&) { done.add(); });
    tested.register_handler("known", [&](job_context&) { done.add(); }, {true});
    const auto give = [&](const char* id, const char* type, std::chrono::milliseconds timeout) {
        job one = make_job(id, type);
        one.timeout = timeout;
        wire.give(std::move(one));
    };
    give("a", "long", 30s);
    give("b", "long", 31s);
    give("c", "long", 32s);
    give("d", "longer", 1h);
    give("e", "known", 1h);
    REQUIRE(tested.start());
    REQUIRE(done.wait_for(5));
    tested.request_stop();
    REQUIRE(tested.wait(deadline_after(recorder::guard)));
    CHECK(log.count("warn jobs of this type may take longer than the grace period") == 2);
}

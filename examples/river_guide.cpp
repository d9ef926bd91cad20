// River's "realistic shutdown code", line by line, to control each stage yourself. options.apply_profile(river()) and worker.run()
// do the same: see river_stages.cpp.
//
//   build/river_guide [good|deaf|short] [STAGE]     the job, and the length of a stage ("500ms"; default: 10s)
#include <signal.h>

#include <cstdio>
#include <string>
#include <thread>

#include "ojs_memory.hpp"

namespace {
using namespace std::chrono_literals;

void log(const char* text) {
    std::puts(text);
    std::fflush(stdout);
}

// <-sigintOrTerm, or the deadline, or the end of the worker: false.
bool await_stop(ojs::signals& signals, ojs::time_point deadline, const ojs::cancel_token& until) {
    for (;;) {
        const int number = signals.wait(deadline, until).number;
        if (number == SIGINT || number == SIGTERM) return true;
        if (number == 0) return false;
    }
}

void stop_by_signals(ojs::worker& worker, ojs::signals& sigint_or_term, std::chrono::milliseconds stage) {
    const ojs::cancel_token stopped = worker.stopped_token();
    if (!await_stop(sigint_or_term, ojs::time_point::max(), stopped)) return;
    log("Received SIGINT/SIGTERM; initiating soft stop (try to wait for jobs to finish)");

    worker.request_stop();
    const bool again = await_stop(sigint_or_term, ojs::deadline_after(stage), stopped);
    if (worker.stopped()) return log("Soft stop succeeded");
    log(again ? "Received SIGINT/SIGTERM again; initiating hard stop (cancel everything)"
              : "Soft stop timeout; initiating hard stop (cancel everything)");
    if (!worker.stop_and_cancel(ojs::deadline_after(stage)))
        log("Hard stop timeout; ignoring stop procedure and exiting unsafely");
}

void run_job(ojs::job_context& job) {
    log("  job: started");
    if (job.type() == "short") return static_cast<void>(job.sleep_for(1s));
    if (job.type() == "deaf") return static_cast<void>(ojs::cancel_token().sleep_for(1min));
    if (!job.sleep_for(1min)) log("  job: cancelled, returning");
}
}  // namespace

int main(int argc, char** argv) {
    const std::string type = argc > 1 ? argv[1] : "good";
    const auto stage = ojs::parse_duration(argc > 2 ? argv[2] : "10s");
    if (argc > 3 || !stage || (type != "good" && type != "deaf" && type != "short")) {
        return ojs::report_startup_error(
            {ojs::errc::invalid_argument, 0, "usage: river_guide [good|deaf|short] [STAGE]"});
    }
    ojs::lifecycle signalled;  // stop_by_signals() acts on it
    auto sigint_or_term = ojs::signals::install(signalled);
    if (!sigint_or_term) return ojs::report_startup_error(sigint_or_term.error());

    ojs::worker_options options;
    options.times.shutdown_grace_period = ojs::no_limit;  // Stop() never cancels
    options.times.cancel_grace = *stage;                  // StopAndCancel() waits this long for jobs
    options.times.stop_timeout = *stage + 5s;
    options.log.level = ojs::log_level::error;
    ojs::memory_transport queue;
    queue.push(type);
    ojs::worker worker(options, queue);
    worker.register_handler(type, run_job);
    const ojs::result<void> started = worker.start();
    if (!started) return ojs::report_startup_error(started.error());
    log("Working; press Ctrl-C to stop");

    std::thread stopper([&] { stop_by_signals(worker, *sigint_or_term, *stage); });
    stopper.join();
    // <-riverClient.Stopped(), but this exits where the guide waits for a deaf job.
    if (!worker.stopped()) std::_Exit(70);
    return worker.exit_code();
}

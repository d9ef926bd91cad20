// The three stages of a stop, as in River: wait for the jobs, then cancel them, then exit.
//
//   build/river_stages [good|slow|deaf|short] [STAGE]
//
// Runs one job that takes a minute. Press Ctrl-C once, twice, three times, or wait for the next stage. STAGE is the timeout
// of each (default 10s):
//   good  returns at once when it is cancelled (the default)
//   slow  takes three more seconds when it is cancelled, to clean up
//   deaf  ignores its cancellation: the fault that the third stage is for
//   short takes one second, so that the first stage is enough
#include <cstdio>
#include <string>

#include "ojs_memory.hpp"

namespace {
using namespace std::chrono_literals;

void print(const char* text) {
    std::printf("%s\n", text);
    std::fflush(stdout);
}

ojs::outcome good(ojs::job_context& job) {
    print("  job: started");
    if (job.sleep_for(1min)) return ojs::outcome::done();
    print("  job: cancelled, returning");
    return ojs::outcome::interrupted();
}

ojs::outcome slow(ojs::job_context& job) {
    print("  job: started");
    if (job.sleep_for(1min)) return ojs::outcome::done();
    print("  job: cancelled, cleaning up");
    static_cast<void>(ojs::cancel_token().sleep_for(3s));  // a token that is never cancelled: a plain sleep
    print("  job: cleaned up, returning");
    return ojs::outcome::interrupted();
}

ojs::outcome deaf(ojs::job_context&) {
    print("  job: started");
    static_cast<void>(ojs::cancel_token().sleep_for(1min));
    return ojs::outcome::done();
}

ojs::outcome brief(ojs::job_context& job) {
    print("  job: started");
    return job.sleep_for(1s) ? ojs::outcome::done() : ojs::outcome::interrupted();
}

constexpr struct {
    const char* type;
    ojs::outcome (*handler)(ojs::job_context&);
} jobs[] = {{"good", good}, {"slow", slow}, {"deaf", deaf}, {"short", brief}};

bool is_known(const std::string& type) {
    for (const auto& job : jobs) {
        if (type == job.type) return true;
    }
    return false;
}

// Prints each change of the lifecycle in River's words.
void print_stage(const ojs::lifecycle_state& now) {
    if (now.phase == ojs::phase::draining) {
        print("Received SIGINT/SIGTERM; initiating soft stop (try to wait for jobs to finish)");
    }
    if (now.phase != ojs::phase::stopping) return;
    if (now.last_event == ojs::event::drained) print("Soft stop succeeded");
    if (now.last_event == ojs::event::stop_signal)
        print("Received SIGINT/SIGTERM again; initiating hard stop (cancel everything)");
    if (now.last_event == ojs::event::grace_expired)
        print("Soft stop timeout; initiating hard stop (cancel everything)");
}

// Prints errors, and in River's words that the worker leaves a job's handler.
void print_record(const ojs::log_record& record, const std::string& type) {
    if (record.level >= ojs::log_level::error)
        return ojs::write_log_line(2, ojs::format_log_record(record, ojs::log_format::text));
    for (const ojs::log_field& field : record.fields) {
        if (field.name != "job_ids") continue;  // "handlers have not returned; ..."
        print("Hard stop timeout; ignoring stop procedure and exiting unsafely");
        std::printf("  abandoned: job %s (%s)\n", field.value.c_str(), type.c_str());
        std::fflush(stdout);
    }
}
}  // namespace

int main(int argc, char** argv) {
    const std::string type = argc > 1 ? argv[1] : "good";
    const auto stage = ojs::parse_duration(argc > 2 ? argv[2] : "10s");
    if (argc > 3 || !is_known(type) || !stage) {
        return ojs::report_startup_error(
            {ojs::errc::invalid_argument, 0, "usage: river_stages [good|slow|deaf|short] [STAGE]"});
    }
    ojs::worker_options options;
    options.profile.stop.stuck_exit_status = ojs::exit_status::stuck;
    options.times.shutdown_grace_period = options.times.cancel_grace = *stage;
    options.times.stop_timeout = *stage + 5s;
    options.log.level = ojs::log_level::warn;
    options.log.hook = [&type](const ojs::log_record& record) { print_record(record, type); };
    options.on_transition = print_stage;
    ojs::memory_transport queue;
    queue.push(type);
    ojs::worker worker(options, queue);
    for (const auto& job : jobs) worker.register_handler(job.type, job.handler);
    print("Working; press Ctrl-C to stop");
    return worker.run();
}

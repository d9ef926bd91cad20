// A worker on River's queue in PostgreSQL, next to River's own in Go. Link with -lpq.
//
//     DATABASE_URL=postgres://localhost/app OJS_QUEUES=default OJS_CONCURRENCY=10 build/river_worker
//
// RIVER_SCHEMA: where River's tables are, if not on the search_path. Kinds, whose args are an object:
//   noop     {}           done at once
//   sleep    {"ms":N}     returns at once when cancelled
//   spin     {"ms":N}     ignores its cancellation
//   fail     {}           fails each time
//   snooze   {"ms":N}     is snoozed for that time once, then done
//   cancel   {}           cancels itself
//   discard  {}           fails without a retry
//
// Ctrl-C stops in River's three stages: a soft stop of OJS_SHUTDOWN_GRACE_PERIOD (10 s), which waits for jobs; a hard stop,
// which cancels them and waits 10 s more; and an exit that does not wait. Another Ctrl-C begins the next stage.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "ojs_river.hpp"

namespace {
using std::chrono::milliseconds;

std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::string() : value;
}

// "ms" of the job's argument, an object; 0 if it is missing.
milliseconds requested_time(const ojs::job_context& job) {
    const auto ms = ojs::json_view(job.args_json()).element(0).member("ms").number();
    return milliseconds(ms && *ms > 0 && *ms < 1e9 ? static_cast<long long>(*ms) : 0);
}

void spin(ojs::job_context& job) {
    const ojs::time_point end = ojs::deadline_after(requested_time(job));
    while (ojs::steady_clock::now() < end) {
    }
}

void add_handlers(ojs::worker& worker, ojs::river_transport& river) {
    worker.register_handler("noop", [](ojs::job_context&) {});
    worker.register_handler("sleep", [](ojs::job_context& job) {
        return job.sleep_for(requested_time(job)) ? ojs::outcome::done() : ojs::outcome::interrupted();
    });
    worker.register_handler("spin", spin);
    worker.register_handler("fail", [](ojs::job_context&) { return ojs::outcome::retry("this kind always fails"); });
    worker.register_handler("snooze", [&river](ojs::job_context& job) {
        return job.meta("snoozes").empty() ? river.snooze(job, requested_time(job)) : ojs::outcome::done();
    });
    worker.register_handler("cancel", [&river](ojs::job_context& job) { return river.cancel(job, "not needed"); });
    worker.register_handler("discard",
                            [](ojs::job_context&) { return ojs::outcome::discard("this kind never succeeds"); });
}

ojs::result<ojs::worker_options> read_options() {
    ojs::result<ojs::worker_options> options = ojs::worker_options::from_environment();
    if (!options) return options;
    const milliseconds grace = options->times.shutdown_grace_period;
    const bool grace_is_set = !variable("OJS_SHUTDOWN_GRACE_PERIOD").empty() || !variable("OJS_GRACE_PERIOD").empty() ||
                              !variable("OJS_SHUTDOWN_TIMEOUT").empty();
    options->apply_profile(ojs::river_profile());
    if (grace_is_set) options->times.shutdown_grace_period = grace;
    return options;
}
}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && argv[1] == std::string("--help")) {
        std::puts(
            "usage: DATABASE_URL=postgres://HOST/DATABASE river_worker\n"
            "Runs jobs of River's queue: kinds noop, sleep, spin, fail, snooze, cancel, discard.");
        return 0;
    }
    if (argc > 1)
        return ojs::report_startup_error({ojs::errc::invalid_argument, 0, "unexpected argument; see --help", 0, {}});
    ojs::result<ojs::worker_options> options = read_options();
    if (!options) return ojs::report_startup_error(options.error());
    ojs::river_options river_options;
    river_options.schema = variable("RIVER_SCHEMA");
    const auto format = ::isatty(STDERR_FILENO) != 0 ? ojs::log_format::text : ojs::log_format::json;  // as the worker
    river_options.log = [format](const ojs::log_record& record) {
        ojs::write_log_line(STDERR_FILENO, ojs::format_log_record(record, format));
    };
    const auto river = ojs::river_transport::create(variable("DATABASE_URL"), river_options);
    if (!river) return ojs::report_startup_error(river.error());
    ojs::worker worker(std::move(*options), **river);
    add_handlers(worker, **river);
    return worker.run();
}

// The kinds of examples/river_worker.cpp and a few more, each run written down: for river_test.py and river_chaos.py.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "ojs_ops.hpp"
#include "ojs_river.hpp"

namespace {
std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
}

// A line of a file that several processes append to, by one write.
void note(int file, const char* event, const ojs::job_context& job) {
    const std::string line = std::string(event) + " " + job.id() + " " + std::to_string(job.attempt()) + " " +
                             std::to_string(::getpid()) + " " + job.type() + "\n";
    if (file >= 0 && ::write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::abort();
}

// {"ms": N}, which the worker shows as [{"ms": N}].
std::chrono::milliseconds asked_time(const ojs::job_context& job) {
    const std::string args = job.args_json();
    const std::size_t at = args.find("\"ms\"");
    const std::size_t digits = at == std::string::npos ? at : args.find_first_of("0123456789", at);
    return std::chrono::milliseconds(digits == std::string::npos ? 0 : std::atoll(args.c_str() + digits));
}

ojs::outcome spin(ojs::job_context& job) {
    const ojs::time_point end = ojs::steady_clock::now() + asked_time(job);
    while (ojs::steady_clock::now() < end) {
    }
    return ojs::outcome::done();
}
}  // namespace

int main() {
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_startup_error(options.error());
    const auto times = options->times;
    options->apply_profile(ojs::river_profile());
    options->extensions.add(ojs::ops());
    if (!variable("OJS_SHUTDOWN_GRACE_PERIOD").empty())
        options->times.shutdown_grace_period = times.shutdown_grace_period;
    if (!variable("OJS_STOP_TIMEOUT").empty()) options->times.stop_timeout = times.stop_timeout;
    ojs::river_options of_river;
    of_river.log = [](const ojs::log_record& record) {
        ojs::write_log_line(2, ojs::format_log_record(record, ojs::log_format::automatic));
    };
    const auto river = ojs::river_transport::create(variable("DATABASE_URL"), std::move(of_river));
    if (!river) return ojs::report_startup_error(river.error());
    ojs::river_transport& queue = **river;
    const int trace = ::open(variable("RIVER_TEST_TRACE").c_str(), O_WRONLY | O_APPEND | O_CREAT, 0644);

    ojs::worker worker(*options, queue);
    const auto traced = [&](const char* kind, auto work) {
        worker.register_handler(kind, [trace, work](ojs::job_context& job) {
            note(trace, "begin", job);
            ojs::outcome decided = work(job);
            note(trace, "end", job);
            return decided;
        });
    };
    traced("noop", [](ojs::job_context&) { return ojs::outcome::done(); });
    traced("sleep", [](ojs::job_context& job) {
        return job.sleep_for(asked_time(job)) ? ojs::outcome::done() : ojs::outcome::interrupted();
    });
    traced("spin", spin);
    traced("spin_fail", [](ojs::job_context& job) {
        static_cast<void>(spin(job));
        return ojs::outcome::retry("failed as asked");
    });
    traced("fail", [](ojs::job_context&) { return ojs::outcome::retry("failed as asked"); });
    traced("discard", [](ojs::job_context&) { return ojs::outcome::discard("discarded as asked"); });
    traced("cancel", [&queue](ojs::job_context& job) { return queue.cancel(job, "cancelled as asked"); });
    traced("snooze", [&queue](ojs::job_context& job) { return queue.snooze(job, asked_time(job)); });
    return worker.run();
}

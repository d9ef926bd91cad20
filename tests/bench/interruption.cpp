// termination_decision: how long it takes to learn that the machine goes away, and to act on it.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

#include "bench.hpp"

namespace bench {
namespace {

constexpr int rounds = 30;
constexpr double ns_in_us = 1000;

// A queue of one job that notes when its FAIL is sent.
class one_job : public ojs::memory_transport {
  public:
    ojs::result<ojs::settled> fail(const ojs::fail_request& request, ojs::time_point deadline) override {
        failed_at = monotonic_ns();
        return ojs::memory_transport::fail(request, deadline);
    }
    std::atomic<std::int64_t> failed_at{0};
};

// From the signal until the FAIL of the only job goes out, in microseconds.
double reclaim_once(int number, const std::string& file) {
    ojs::lifecycle life;
    ojs::signal_options signal_options;
    signal_options.reclaim = true;
    const auto installed = ojs::signals::install(life, signal_options);
    if (!installed) throw failure(installed.error().text);
    ojs::worker_options options;
    options.url = "memory:";
    options.log.level = ojs::log_level::off;
    options.termination_mode_file = file;
    one_job queue;
    queue.push("wait");
    std::atomic<bool> begun{false};
    ojs::worker worker(options, queue, life);
    worker.register_handler("wait", [&](ojs::job_context& job) {
        begun = true;
        static_cast<void>(job.sleep_for(guard));
    });
    if (!worker.start()) throw failure("the worker did not start");
    while (!begun) ::usleep(100);
    const std::int64_t began = monotonic_ns();
    ::pthread_kill(::pthread_self(), number);
    if (!worker.wait(ojs::deadline_after(guard))) throw failure("the worker did not stop");
    return static_cast<double>(queue.failed_at - began) / ns_in_us;
}

template <class Read>
double time_reads(Read read) {
    constexpr int times = 1000;
    const std::int64_t began = monotonic_ns();
    for (int i = 0; i < times; ++i) read();
    return static_cast<double>(monotonic_ns() - began) / times / ns_in_us;
}

void read_barely(const std::string& file) {
    char text[4096];
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ::read(fd, text, sizeof text) < 0) throw failure("cannot read " + file);
    ::close(fd);
}

}  // namespace

void termination_decision(table& out) {
    const std::string file = scratch("termination-type");
    std::ofstream(file) << "SPOT_RECLAIM\n";
    out.add_ratio("termination-mode file read and judged", "us",
                  interleave(
                      rounds, [&] { return time_reads([&] { ojs::read_termination_mode(file); }); },
                      [&] { return time_reads([&] { read_barely(file); }); }));
    out.add_ratio("SIGTERM, SPOT_RECLAIM -> FAIL sent", "us",
                  interleave(
                      rounds, [&] { return reclaim_once(SIGTERM, file); },
                      [&] { return reclaim_once(SIGUSR1, file); }));
}

}  // namespace bench

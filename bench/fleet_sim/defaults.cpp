// Prints as JSON what decides when a worker sends requests, in milliseconds: its options' defaults, and samples of its random
// delays. The names are those of Inputs in inputs.py.
#include <cstdio>
#include <vector>

#include "ojs_shutdown.hpp"

using namespace ojs;

namespace {
constexpr int samples = 2000;
constexpr int steps = 12;  // of a back-off, more than any takes to reach its maximum

void print(const char* name, std::chrono::nanoseconds value) {
    std::printf("\"%s\":%lld,\n", name, static_cast<long long>(value / std::chrono::milliseconds(1)));
}

template <class Sample>
void print_samples(Sample sample) {
    std::printf("[");
    for (int i = 0; i < samples; ++i)
        std::printf("%s%lld", i == 0 ? "" : ",", static_cast<long long>(sample().count()));
    std::printf("]");
}

// Per step, the delay before that retry. `make()` gives a fresh back-off: a function that returns its next delay.
template <class Make>
void print_backoff(const char* name, Make make) {
    std::printf("\"%s\":[", name);
    std::vector<decltype(make())> all;
    for (int i = 0; i < samples; ++i) all.push_back(make());
    for (int step = 0; step < steps; ++step) {
        auto next = all.begin();
        if (step > 0) std::printf(",");
        print_samples([&next] { return (*next++)(); });
    }
    std::printf("],\n");
}

// What a FETCH that fails leaves as the time of the next.
auto fetch_backoff(const worker_options& defaults) {
    return [schedule = detail::fetch_schedule(defaults.poll_interval, defaults.heartbeat_interval)]() mutable {
        schedule.schedule_next(error{errc::unreachable, 0, ""}, 0, false, schedule.due());
        return std::chrono::duration_cast<std::chrono::milliseconds>(schedule.due() - steady_clock::now());
    };
}
auto report_backoff() {
    return [tries = detail::report_tries()]() mutable { return tries.delays.next(); };
}
}  // namespace

int main() {
    const worker_options defaults;
    std::printf("{");
    print("grace_period", defaults.times.shutdown_grace_period);
    print("stop_timeout", defaults.times.stop_timeout);
    print("heartbeat_interval", defaults.heartbeat_interval);
    print("poll_interval", defaults.poll_interval);
    print("visibility_timeout", defaults.visibility_timeout);
    print("request_timeout", defaults.request_timeout);
    print("last_beat_time", detail::last_beat_time(defaults.times));
    print_backoff("fetch_backoff", [&] { return fetch_backoff(defaults); });
    print_backoff("report_backoff", report_backoff);
    std::printf("\"retry_after\":");
    print_samples([] { return detail::backoff({}, {}).next(std::chrono::seconds(1)); });
    std::printf(",\"first_gap\":");
    print_samples([&] { return defaults.heartbeat_interval - detail::random_half(defaults.heartbeat_interval); });
    std::printf(",\"concurrency\":%d}\n", static_cast<int>(defaults.concurrency));
}

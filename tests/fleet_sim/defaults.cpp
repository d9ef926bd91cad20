// Prints as JSON what decides when a worker sends requests: its options' defaults, and samples of its random delays.
#include <cstdio>
#include <type_traits>
#include <vector>

#include "ojs_shutdown.hpp"

using namespace ojs;

namespace {

constexpr int samples = 2000;
constexpr int steps = 12;  // of a back-off, more than any takes to reach its maximum

// Prints the numbers and durations of visit_options().
struct number_printer {
    template <class Value, class... Constraints>
    void operator()(const char* name, const char*, Value& value, Constraints...) {
        if constexpr (std::is_same_v<Value, std::chrono::milliseconds>)
            print(name, value.count());
        else if constexpr (std::is_same_v<Value, std::int64_t>)
            print(name, value);
    }
    static void print(const char* name, std::int64_t value) {
        std::printf("\"%s\":%lld,", name, static_cast<long long>(value));
    }
};

template <class Sample>
void print_samples(Sample sample) {
    std::printf("[");
    for (int i = 0; i < samples; ++i)
        std::printf("%s%lld", i == 0 ? "" : ",", static_cast<long long>(sample().count()));
    std::printf("]");
}

// Per step, the delay before that retry.
void print_backoff(const char* name, detail::backoff_range range) {
    std::printf("\"%s\":[", name);
    std::vector<detail::backoff> all(samples, detail::backoff(range));
    for (int step = 0; step < steps; ++step) {
        auto next = all.begin();
        if (step > 0) std::printf(",");
        print_samples([&next] { return (next++)->next(); });
    }
    std::printf("],");
}

template <class Sample>
void print_list(const char* name, Sample sample) {
    std::printf("\"%s\":", name);
    print_samples(sample);
    std::printf(",");
}

}  // namespace

int main() {
    worker_options defaults;
    number_printer numbers;
    std::printf("{\"options\":{");
    detail::visit_options(defaults, numbers);
    std::printf("\"\":0},");
    print_backoff("fetch_backoff", detail::fetch_backoff);
    print_backoff("report_backoff", detail::report_backoff);
    print_backoff("last_beat_backoff", detail::last_beat_backoff);
    print_list("retry_after", [] { return detail::backoff({}).next(std::chrono::seconds(1)); });
    print_list("first_gap", [&] { return detail::beat_schedule(defaults.heartbeat_interval).gap_after(1); });
    number_printer::print("last_beat_timeout", detail::last_beat_timeout.count());
    number_printer::print("last_beat_time", detail::last_beat_time(defaults.times.stop_timeout).count());
    number_printer::print(
        "min_try_time", std::chrono::duration_cast<std::chrono::milliseconds>(detail::min_try_time).count());
    number_printer::print("max_request_gap", detail::beat_schedule::max_request_gap.count());
    std::printf("\"\":0}\n");
}

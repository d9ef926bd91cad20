// sim [--seconds N] [--first SEED|random] [--failures N]: schedules from that seed on, for so long; a failure is shrunk.
// sim --seed SEED [--ITEMS N] [--CALLS N] [--FAULTS N] [--SWITCHES N] [--trace]: one of them, the same every time.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "atomic.hpp"

#include "ojs_shutdown.hpp"
#include "system.hpp"

namespace {
// Of all processes.
struct totals {
    std::uint64_t next_seed;
    std::uint64_t running;  // the seed of the run in progress
    std::uint64_t schedules, steps, switches, items;
    double virtual_seconds;
    std::uint64_t failures;
};
totals* sum;

std::unique_ptr<sim::system> make(std::uint64_t seed, const sim::limits& most) {
    const std::uint64_t kind = seed % 10;
    if (kind == 3) return sim::make_group(seed, most);
    if (kind == 7) return sim::make_sequence(seed, most);
    if (kind == 5) return sim::make_loop(seed, most);
    return sim::make_worker(seed, most);
}

sim::plan plan_of(std::uint64_t seed, const sim::limits& most) {
    sim::random from(seed ^ 0x1234);
    sim::plan out;
    out.seed = seed;
    out.priority_changes = from.one_in(2) ? -1 : static_cast<int>(from.below(4));
    out.expected_steps = 200U << from.below(6);
    out.switch_one_in = 2U << from.below(6);
    out.switches = most.switches;
    return out;
}

struct outcome {
    sim::system* ran;  // it lasts: fibers of a run that was given up still use it
    sim::ending how;
};
outcome run_one(std::uint64_t seed, const sim::limits& most) {
    outcome out;
    out.ran = make(seed, most).release();
    out.how = sim::run(plan_of(seed, most), [&] { out.ran->run(); });
    out.ran->check_end(out.how);
    return out;
}

// What a process does once is done before a schedule counts, so that each is the same in any process.
void warm_up() {
    const bool traced = std::exchange(sim::traces, false);
    static_cast<void>(run_one(2, {}));
    sim::traces = traced;
}

outcome run_first(std::uint64_t seed, const sim::limits& most) {
    warm_up();
    return run_one(seed, most);
}

// The wait status of a child that ends with the status that `body` returns.
template <class Body>
int in_child(const Body& body) {
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) {
        const int status = body();
        std::fflush(stdout);
        ::_exit(status);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
}

// Lowers `limit` as far as the run still fails.
void lower(std::uint64_t seed, sim::limits& most, std::uint64_t sim::limits::*limit, std::uint64_t highest) {
    const auto fails_with = [&](std::uint64_t value) {
        sim::limits tried = most;
        tried.*limit = value;
        return in_child([&] { return run_first(seed, tried).ran->violations.empty() ? 0 : 1; }) != 0;
    };
    std::uint64_t passing = 0;
    if (fails_with(0)) return static_cast<void>(most.*limit = 0);
    if (!fails_with(highest)) return;  // it must stay without a limit
    while (highest - passing > 1) {
        const std::uint64_t middle = passing + (highest - passing) / 2;
        (fails_with(middle) ? highest : passing) = middle;
    }
    most.*limit = highest;
}

struct option {
    const char* name;
    std::uint64_t sim::limits::*limit;
    std::uint64_t highest;
};
constexpr option options[] = {{"ITEMS", &sim::limits::items, 8},
                              {"CALLS", &sim::limits::calls, 8},
                              {"FAULTS", &sim::limits::faults, 64},
                              {"SWITCHES", &sim::limits::switches, 1U << 20}};

void report(const char* verdict, std::uint64_t seed, const sim::limits& most, const outcome& done) {
    std::printf("%s seed %lu: %s\n", verdict, seed, done.ran->describe().c_str());
    for (const std::string& each : done.ran->violations) std::printf("  %s\n", each.c_str());
    if (sim::traces || done.ran->violations.empty()) return;
    std::printf("  again: make sim SEED=%lu TRACE=1", seed);
    for (const option& each : options)
        if (most.*each.limit != UINT64_MAX) std::printf(" %s=%lu", each.name, most.*each.limit);
    std::printf("\n");
}

void shrink(std::uint64_t seed) {
    sim::limits most;
    for (const option& each : options) lower(seed, most, each.limit, each.highest);
    in_child([&] {
        report("shrunk", seed, most, run_first(seed, most));
        return 0;
    });
}

// In a child, until one fails, or its process cannot be used for another.
int run_many(const std::function<bool()>& is_over) {
    warm_up();
    for (bool goes_on = true; goes_on && !is_over();) {
        sum->running = sum->next_seed++;
        const outcome done = run_one(sum->running, {});
        ++sum->schedules;
        sum->steps += done.how.steps;
        sum->switches += done.how.switches;
        sum->items += done.ran->items;
        sum->virtual_seconds += static_cast<double>(done.how.time) / sim::second;
        if (!done.ran->violations.empty()) return report("FAILED", sum->running, {}, done), 1;
        goes_on = done.how.how == sim::ending::kind::returned;
        if (goes_on) delete done.ran;
    }
    return 0;
}

int explore(double seconds, std::uint64_t first, std::uint64_t max_failures) {
    sum->next_seed = first;
    const auto began = std::chrono::steady_clock::now();
    const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
    while (passed() < seconds && sum->failures < max_failures) {
        const int status = in_child([&] { return run_many([&] { return passed() >= seconds; }); });
        if (status == 0) continue;
        ++sum->failures;
        if (WIFSIGNALED(status))
            std::printf("FAILED seed %lu: killed by signal %d\n  again: make sim SEED=%lu TRACE=1\n", sum->running,
                        WTERMSIG(status), sum->running);
        shrink(sum->running);
    }
    std::printf(
        "%lu schedules from %lu on in %.1f s (%.0f a second), %.1f virtual hours, %lu steps, %lu switches, "
        "%lu claims: %lu failed\n",
        sum->schedules, first, passed(), static_cast<double>(sum->schedules) / passed(), sum->virtual_seconds / 3600,
        sum->steps, sum->switches, sum->items, sum->failures);
    return sum->failures == 0 ? 0 : 1;
}

int replay(std::uint64_t seed, const sim::limits& most) {
    return in_child([&] {
        const outcome done = run_first(seed, most);
        const bool held = done.ran->violations.empty();
        report(held ? "held" : "FAILED", seed, most, done);
        std::printf("%lu steps, %lu switches, %.6f virtual s\n", done.how.steps, done.how.switches,
                    static_cast<double>(done.how.time) / sim::second);
        return held ? 0 : 1;
    });
}

int usage() {
    std::fprintf(stderr,
                 "usage: sim [--seconds N] [--first SEED|random] [--failures N]\n"
                 "       sim --seed SEED [--ITEMS N] [--CALLS N] [--FAULTS N] [--SWITCHES N] [--trace]\n");
    return 64;
}
}  // namespace

int main(int argc, char** argv) {
    double seconds = 60;
    std::uint64_t first = 1, failures = 1, seed = 0;
    sim::limits most;
    for (int i = 1; i < argc; ++i) {
        const std::string flag = argv[i];
        if (flag == "--trace") {
            sim::traces = true;
            continue;
        }
        char* end = argv[i];
        const std::string value = i + 1 < argc ? argv[i + 1] : "";
        std::uint64_t number = i + 1 < argc ? std::strtoull(argv[++i], &end, 10) : 0;
        if (flag == "--first" && value == "random")
            number = std::random_device{}() + 1ULL;
        else if (value.empty() || *end != '\0')
            return usage();
        bool is_known = true;
        if (flag == "--seconds")
            seconds = static_cast<double>(number);
        else if (flag == "--first")
            first = number;
        else if (flag == "--failures")
            failures = number;
        else if (flag == "--seed")
            seed = number;
        else
            is_known = false;
        for (const option& each : options)
            if (flag == std::string("--") + each.name) most.*each.limit = number, is_known = true;
        if (!is_known) return usage();
    }
    // Nothing makes up for a wake-up that is missing.
    ojs::detail::max_sleep_ms = ojs::no_limit.count();
    sum = static_cast<totals*>(
        ::mmap(nullptr, sizeof(totals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    const int status = seed != 0 ? replay(seed, most) : explore(seconds, first, failures);
    return status == 0 ? 0 : 1;
}

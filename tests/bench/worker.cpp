// throughput, settled_to_gone, term_to_gone, forced_stop, idle_wakeups, memory: workers as processes of their own.
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <filesystem>

#include "bench.hpp"

namespace bench {
namespace {

constexpr double ns_in_ms = 1e6;

void sleep_until(std::int64_t monotonic) {
    const timespec until{static_cast<time_t>(monotonic / 1000000000),
                         static_cast<long>(monotonic % 1000000000)};
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
    }
}

void require_status(const ended& end, const child& of) {
    if (end.status == 0) return;
    throw failure("a worker ended with status " + std::to_string(end.status) + ": " + of.errors());
}

// ---- throughput ----

constexpr int measured_jobs = 8000;
// The warm-up, and what our worker still takes between its last measured job and the SIGTERM that follows it.
constexpr int more_jobs = 2000;

double rate_printed_by(child& client) {
    return measured_jobs / (static_cast<double>(std::stoll(client.await_line("took "))) / 1e9);
}

double our_rate(backend& jobs, int concurrency) {
    jobs.push("bench", measured_jobs + more_jobs);
    child worker(self_as("noop_worker", {std::to_string(measured_jobs)}),
                 worker_environment(jobs, concurrency, new_worker_id()));
    const double rate = rate_printed_by(worker);
    worker.signal(SIGTERM);
    require_status(worker.wait(), worker);
    return rate;
}

double bare_client_rate(int port, int concurrency) {
    child client(self_as("bare_client",
                         {std::to_string(port), std::to_string(concurrency), std::to_string(measured_jobs)}));
    const double rate = rate_printed_by(client);
    require_status(client.wait(), client);
    return rate;
}

double bare_rate(backend& jobs, int concurrency) {
    jobs.push("bench", measured_jobs + more_jobs);
    return bare_client_rate(jobs.port(), concurrency);
}

void throughput_at(int concurrency, table& out) {
    constexpr int rounds = 9;
    backend jobs;
    const paired rates = interleave(
        rounds, [&] { return our_rate(jobs, concurrency); }, [&] { return bare_rate(jobs, concurrency); });
    out.add_ratio("no-op jobs a second, concurrency " + std::to_string(concurrency), "/s", rates,
                  at_least(0.8));
}

void backend_at(int concurrency, const char* kept, const std::vector<std::string>& flags, table& out) {
    constexpr int rounds = 9;
    backend jobs(flags);
    child floor(self_as("bare_server"));
    const int port = std::stoi(floor.await_line("listening on 127.0.0.1:"));
    const paired rates = interleave(
        rounds, [&] { return bare_rate(jobs, concurrency); },
        [&] { return bare_client_rate(port, concurrency); });
    const std::string name =
        "dev_backend " + std::string(kept) + ", jobs a second for " + std::to_string(concurrency);
    out.add_ratio(name, "/s", rates, flags.empty() ? at_least(0.5) : target{});
    floor.signal(SIGTERM);
    require_status(floor.wait(), floor);
}

// ---- the end of a process ----

constexpr int ends = 31;

// Milliseconds from the ACK to the end.
double settled_to_gone_once(backend& jobs) {
    const std::string id = new_worker_id();
    jobs.push("bench", 1);
    child worker(self_as("draining_worker"), worker_environment(jobs, 10, id));
    worker.await_line("working");
    worker.signal(SIGTERM);
    const ended end = worker.wait();
    require_status(end, worker);
    const std::vector<std::string> acks = jobs.ledger("ack", "\"from\":\"" + id + "\"");
    if (acks.size() != 1) throw failure("not one ACK but " + std::to_string(acks.size()));
    return static_cast<double>(end.at_ns - number_after(acks.front(), "\"mono_ns\":")) / ns_in_ms;
}

double term_until_gone(child& process) {
    await_asleep(process.pid());
    const std::int64_t sent = monotonic_ns();
    process.signal(SIGTERM);
    const ended end = process.wait();
    require_status(end, process);
    return static_cast<double>(end.at_ns - sent) / ns_in_ms;
}

double idle_worker_end(backend& jobs) {
    const std::string id = new_worker_id();
    child worker(self_as("noop_worker", {"1"}), worker_environment(jobs, 10, id));
    jobs.await_in_ledger("beat", id);
    jobs.await_in_ledger("fetch", id);
    return term_until_gone(worker);
}

double bare_process_end() {
    child process(self_as("bare_process"));
    process.await_line("ready");
    return term_until_gone(process);
}

// ---- 1,000 jobs in flight ----

constexpr int in_flight = 1000;

// Milliseconds from the second SIGTERM to the last FAIL.
double forced_stop_once(milliseconds delay) {
    constexpr milliseconds gap{1};
    backend jobs({"--max-connections", "2000"}, true);
    jobs.push("bench", in_flight);
    const std::string id = new_worker_id();
    environment settings = worker_environment(jobs, in_flight, id);
    settings["OJS_REPEAT_SIGNAL_GAP"] = std::to_string(gap.count()) + "ms";
    child worker(self_as("sleeping_worker", {std::to_string(in_flight)}), settings);
    worker.await_line("all asleep");
    jobs.set_delay(delay);
    worker.signal(SIGTERM);
    worker.await_line("phase draining");
    sleep_until(monotonic_ns() +
                std::chrono::nanoseconds(2 * gap).count());  // or it would count as the same event
    const std::int64_t sent = monotonic_ns();
    worker.signal(SIGTERM);
    const ended end = worker.wait();
    std::int64_t last = 0;
    const std::vector<std::string> fails = jobs.ledger("nack", "\"status\":200");
    for (const std::string& each : fails) last = std::max(last, number_after(each, "\"recv_mono_ns\":"));
    if (fails.size() != in_flight) throw failure("not 1,000 FAILs but " + std::to_string(fails.size()));
    require_status(end, worker);
    return static_cast<double>(last - sent) / ns_in_ms;
}

// ---- idle ----

std::int64_t context_switches(pid_t process) {
    std::int64_t out = 0;
    const std::string tasks = "/proc/" + std::to_string(process) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
        for (const std::int64_t each : numbers_after(read_file(task.path() / "status"), "_ctxt_switches:"))
            out += each;
    }
    return out;
}

struct idle_counts {
    std::int64_t switches;
    std::int64_t beats;
    std::int64_t polls;
};

idle_counts count_idle(const backend& jobs, const child& worker, const std::string& id) {
    await_asleep(worker.pid());
    return {context_switches(worker.pid()), static_cast<std::int64_t>(jobs.ledger("beat", id).size()),
            static_cast<std::int64_t>(jobs.ledger("fetch", id).size())};
}

}  // namespace

void throughput(table& out) {
    for (const int concurrency : {1, 10, 64}) {
        progress("throughput, concurrency " + std::to_string(concurrency));
        throughput_at(concurrency, out);
    }
}

void backend_rate(table& out) {
    for (const int concurrency : {1, 10, 64}) {
        progress("backend_rate, concurrency " + std::to_string(concurrency));
        backend_at(concurrency, "in memory", {}, out);
        backend_at(concurrency, "with --store", {"--store", scratch("store-" + std::to_string(concurrency))},
                   out);
    }
}

void settled_to_gone(table& out) {
    backend jobs({}, true);
    samples times;
    for (int i = 0; i < ends; ++i) times.push_back(settled_to_gone_once(jobs));
    out.add("last settlement -> process gone", "ms", times, at_most(10));
}

void term_to_gone(table& out) {
    backend jobs({}, true);
    const paired times = interleave(
        ends, [&] { return idle_worker_end(jobs); }, bare_process_end);
    out.add("idle SIGTERM -> process gone", "ms", times.ours, at_most(10), times.floor);
}

void forced_stop(table& out) {
    constexpr int rounds = 5;
    samples prompt;
    samples late;
    for (int i = 0; i < rounds; ++i) {
        prompt.push_back(forced_stop_once(milliseconds(0)));
        late.push_back(forced_stop_once(milliseconds(50)));
    }
    out.add("1,000 FAILs of a forced stop, 0 ms added", "ms", prompt);
    out.add("1,000 FAILs of a forced stop, 50 ms added", "ms", late, at_most(1000));
}

void idle_wakeups(table& out) {
    constexpr std::int64_t seconds = 20;
    constexpr double to_minute = 60.0 / seconds;
    backend jobs({}, true);
    const std::string id = new_worker_id();
    child worker(self_as("noop_worker", {"1"}), worker_environment(jobs, 10, id));
    jobs.await_in_ledger("beat", id);
    jobs.await_in_ledger("fetch", id);
    const std::int64_t began = monotonic_ns();
    const idle_counts before = count_idle(jobs, worker, id);
    sleep_until(began + seconds * 1000000000);
    const idle_counts after = count_idle(jobs, worker, id);
    const std::int64_t all = after.switches - before.switches;
    const std::int64_t beats = after.beats - before.beats;
    const std::int64_t polls = after.polls - before.polls;
    out.add("idle wake-ups a minute, less beats, polls", "",
            samples{static_cast<double>(all - 2 * (beats + polls)) * to_minute}, at_most(10));
    out.note("idle: " + std::to_string(all) + " context switches, " + std::to_string(beats) + " beats and " +
             std::to_string(polls) + " polls in " + std::to_string(seconds) + " s");
}

}  // namespace bench

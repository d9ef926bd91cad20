// rolling_jobs, rolling_requests: what is lost while a launcher replaces a group under load, which must be nothing.
#include <atomic>
#include <fstream>
#include <map>
#include <thread>

#include "../support/router.hpp"
#include "bench.hpp"
#include "fleet.hpp"

namespace bench {
namespace {

constexpr int group_size = 8;

// One surge after the other: alone, and three at a time.
samples replace_often(fleet& of, int rounds) {
    samples out;
    for (int i = 0; i < rounds; ++i) out.push_back(of.replace(i % 2 == 0 ? 1 : 3));
    return out;
}

// Of a version, each in a way of its own: at once, soon, after it was ready, never ready.
constexpr const char* faults[] = {"exit 3", "sleep 0.3; exit 3",
                                  "\"$0\" \"$@\" & sleep 0.7; kill -9 $!; exit 3", "exec sleep 600"};

// ---- jobs ----

// Pushes jobs until it is stopped.
class job_load {
  public:
    explicit job_load(backend& to) : thread_([this, &to] { work(to); }) {}
    job_load(const job_load&) = delete;
    job_load& operator=(const job_load&) = delete;
    ~job_load() { stop(); }
    int stop() {
        ends_ = true;
        if (thread_.joinable()) thread_.join();
        return pushed_;
    }

  private:
    void work(backend& to) {
        while (!ends_) {
            to.push("fleet.job", 3);
            pushed_ += 3;
            std::this_thread::sleep_for(15ms);
        }
    }
    std::atomic<bool> ends_{false};
    int pushed_ = 0;
    std::thread thread_;
};

// How often each job's handler came to its end.
std::map<std::string, int> read_done(const std::string& path) {
    std::map<std::string, int> out;
    std::ifstream file(path);
    for (std::string id; std::getline(file, id);) ++out[id];
    return out;
}

}  // namespace

void rolling_jobs(table& out) {
    const int rounds = share_of(100);
    backend jobs({}, true);
    const std::string done = scratch("done");
    ojs::group_options group = group_of(group_size, {program("fleet"), "--worker", done});
    group.process.child.environment = {"OJS_URL=" + jobs.url(), "OJS_CONCURRENCY=4",
                                       "OJS_POLL_INTERVAL=20ms"};
    fleet workers(group);
    job_load load(jobs);
    const samples took = replace_often(workers, rounds);
    const int pushed = load.stop();
    jobs.await_jobs_in("completed", pushed);
    workers.stop();

    int doubled = 0;
    const std::map<std::string, int> finished = read_done(done);
    for (const auto& each : finished) doubled += each.second > 1 ? 1 : 0;
    const auto acks = static_cast<double>(jobs.ledger("ack", "\"status\":200").size());
    const auto name = std::to_string(rounds) + " rolls of 8 workers: ";
    out.add(name + "jobs lost", "", {static_cast<double>(pushed) - static_cast<double>(finished.size())},
            at_most(0));
    out.add(name + "jobs doubled", "", {static_cast<double>(doubled)}, at_most(0));
    out.add(name + "each", "ms", took);
    out.note("rolling_jobs: " + std::to_string(pushed) + " jobs, " + text_of(acks) + " ACKs, " +
             std::to_string(jobs.jobs_in("requeued")) + " requeued, " + workers.warnings());
}

void rolling_requests(table& out) {
    const int rounds = share_of(100);
    test::router router;
    fleet servers(
        group_of(group_size, {program("keyvalue_runner"), "--work-duration", "2ms"}),
        [&](const ojs::process_info& of) { router.add(of); },
        [&](const ojs::process_info& of) { router.remove(of); });
    test::requests clients(router, 4);
    const samples took = replace_often(servers, rounds);
    for (int i = 0; i < share_of(10); ++i)
        servers.fail_to_replace(i % group_size, faults[static_cast<std::size_t>(i) % 4]);
    const int ready = servers->group(group_name)->ready;
    clients.stop();
    const int fewest = router.fewest();
    const int passed_on = router.passed_on();
    servers.stop();
    if (clients.failed() > 0) out.note("rolling_requests: the first that failed: " + clients.failure());

    const auto name = std::to_string(rounds) + " rolls of 8 servers: ";
    out.add(name + "requests failed", "", {static_cast<double>(clients.failed())}, at_most(0));
    out.add(name + "fewest ready", "", {static_cast<double>(fewest)}, at_least(group_size));
    out.add("and " + std::to_string(share_of(10)) + " taken back half-way: ready", "",
            {static_cast<double>(ready)}, at_least(group_size));
    out.add(name + "each", "ms", took);
    out.note("rolling_requests: " + std::to_string(clients.sent()) + " requests, " +
             std::to_string(passed_on) + " passed on, " + servers.warnings());
}

}  // namespace bench

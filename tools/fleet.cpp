// Three groups of workers on one spool, and a launcher that replaces each group one by one while jobs come in. At the end
// it counts: every job was done once, or the exit status is 1.
//
//   build/fleet                 (or make fleet-demo)
//   build/fleet --worker FILE   one of the workers, as the launcher starts it: notes the jobs it did in FILE
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "ojs_launcher.hpp"
#include "ojs_spool.hpp"

namespace {
using namespace std::chrono_literals;

constexpr const char* group_names[] = {"mail", "images", "reports"};
constexpr int workers_each = 3;
constexpr int rounds = 3;
constexpr auto work_timeout = 60s;  // for all enqueued jobs

// ---- a worker ----

ojs::outcome do_job(ojs::job_context& job, int ledger) {
    if (!job.sleep_for(100ms)) return ojs::outcome::interrupted();
    const std::string line = job.id() + "\n";
    const bool noted = ::write(ledger, line.data(), line.size()) == static_cast<ssize_t>(line.size());
    return noted ? ojs::outcome::done() : ojs::outcome::retry("the ledger cannot be written");
}

int be_worker(const char* path) {
    const int ledger = ::open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_startup_error(options.error());
    options->transports.add(ojs::spool());
    ojs::lifecycle life;
    ojs::worker worker(*options, life);
    worker.register_handler("fleet.job", [ledger](ojs::job_context& job) { return do_job(job, ledger); });
    auto coordinator = ojs::shutdown_coordinator::start_for(worker, life);
    if (!coordinator) return ojs::report_startup_error(coordinator.error());
    return worker.run();
}

// ---- the fleet ----

// The folder of the demo; removed at the end, unless something failed.
class place {
  public:
    place() : path_(::mkdtemp(name_)) {}
    place(const place&) = delete;
    place& operator=(const place&) = delete;
    ~place() {
        std::error_code ignored;
        if (!kept_) std::filesystem::remove_all(path_, ignored);
    }
    void keep() {
        kept_ = true;
        std::printf("the log of the workers: %s\n", log().c_str());
    }
    std::string log() const { return path_ + "/log"; }
    std::string spool() const { return path_ + "/spool"; }
    std::string ledger() const { return path_ + "/done"; }

  private:
    char name_[32] = "/tmp/ojs-fleet-XXXXXX";
    std::string path_;
    bool kept_ = false;
};

ojs::group_options group(const char* name, const char* program, const place& where) {
    ojs::group_options out;
    out.name = name;
    out.desired = workers_each;
    out.min_healthy = workers_each - 1;
    out.min_ready_time = 200ms;
    out.process.child.command = {program, "--worker", where.ledger()};
    out.process.child.environment = {"OJS_URL=spool:" + where.spool(), std::string("OJS_QUEUES=") + name,
                                     "OJS_CONCURRENCY=4", "OJS_POLL_INTERVAL=50ms"};
    out.process.child.errors = ojs::child_stream::file(where.log());
    out.process.readiness_interval = 50ms;
    out.process.shutdown.poll_interval = 50ms;
    return out;
}

// Enqueues jobs in every queue until it is stopped.
class load {
  public:
    explicit load(const place& where) : thread_([this, spool = where.spool()] { work(spool); }) {}
    // The number of enqueued jobs; -1: an enqueue failed.
    int stop() {
        ends_.cancel(ojs::cancel_reason::cancelled);
        if (thread_.joinable()) thread_.join();
        return failed_ ? -1 : count_;
    }
    ~load() { stop(); }

  private:
    void work(const std::string& spool) {
        while (!failed_ && ends_.token().sleep_for(5ms)) {
            for (const char* queue : group_names) {
                ojs::spool_job job;
                job.type = "fleet.job";
                job.queue = queue;
                failed_ = failed_ || !ojs::spool_enqueue(spool, job);
                ++count_;
            }
        }
    }
    ojs::cancel_source ends_;
    int count_ = 0;
    bool failed_ = false;
    std::thread thread_;
};

// How often each job was done.
std::map<std::string, int> read_ledger(const place& where) {
    std::map<std::string, int> out;
    std::ifstream file(where.ledger());
    for (std::string id; std::getline(file, id);) ++out[id];
    return out;
}

void await_done(const place& where, int count) {
    const auto end = ojs::steady_clock::now() + work_timeout;
    while (static_cast<int>(read_ledger(where).size()) < count && ojs::steady_clock::now() < end)
        std::this_thread::sleep_for(50ms);
}

bool await_ready(const ojs::launcher& fleet) {
    const auto end = ojs::steady_clock::now() + work_timeout;
    for (const char* name : group_names) {
        for (auto now = fleet.group(name); now && now->ready < workers_each; now = fleet.group(name)) {
            if (ojs::steady_clock::now() >= end) return false;
            std::this_thread::sleep_for(20ms);
        }
    }
    return true;
}

bool replace_all(ojs::launcher& fleet) {
    for (const char* name : group_names) {
        const auto now = fleet.group(name);
        if (!now) return false;
        const auto report = fleet.rollout(name, now->options);
        const std::string why = report ? report->error : report.error().text;
        const int replaced = report ? report->replaced : 0;
        std::printf("%-8s replaced %d of %d%s%s\n", name, replaced, workers_each, why.empty() ? "" : ": ", why.c_str());
        std::fflush(stdout);
        if (replaced != workers_each) return false;
    }
    return true;
}

bool account(const place& where, int enqueued) {
    int doubled = 0;
    const std::map<std::string, int> done = read_ledger(where);
    for (const auto& each : done) doubled += each.second > 1 ? 1 : 0;
    const int lost = enqueued - static_cast<int>(done.size());
    std::printf("enqueued %d, done %zu, lost %d, doubled %d\n", enqueued, done.size(), lost, doubled);
    return enqueued > 0 && lost == 0 && doubled == 0;
}

int run_fleet(const char* program) {
    place where;
    ojs::lifecycle life;
    const auto signals = ojs::signals::install(life);  // Ctrl-C stops the fleet and its workers
    if (!signals) return ojs::report_startup_error(signals.error());
    ojs::launcher_options options;
    options.log.level = ojs::log_level::error;
    for (const char* name : group_names) options.groups.push_back(group(name, program, where));
    ojs::launcher fleet(std::move(options), life);
    load jobs(where);
    const ojs::result<void> started = fleet.start();
    if (!started) return ojs::report_startup_error(started.error());
    bool replaced = await_ready(fleet);
    for (int round = 0; replaced && round < rounds; ++round) replaced = replace_all(fleet);
    const int enqueued = jobs.stop();
    if (replaced) await_done(where, enqueued);
    fleet.request_stop();
    fleet.wait();
    const bool well = account(where, enqueued) && replaced && fleet.exit_code() == 0;
    if (!well) where.keep();
    return well ? 0 : 1;
}
}  // namespace

int main(int argc, char** argv) {
    if (argc == 3 && argv[1] == std::string("--worker")) return be_worker(argv[2]);
    if (argc == 2 && argv[1] == std::string("--help")) {
        std::puts(
            "usage: fleet\nReplaces three groups of workers under load, and counts the jobs.\n"
            "Exit status: 0 if no job was lost, else 1.");
        return 0;
    }
    if (argc > 1) return ojs::report_startup_error({ojs::errc::invalid_argument, 0, "no arguments; see --help"});
    return run_fleet(argv[0]);
}

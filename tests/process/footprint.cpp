// What the library takes from a process that uses it: at rest, at work, for a job, and for what a backend sends.
#if defined(__linux__) && !defined(__SANITIZE_THREAD__)  // there the programs are those of another configuration
#include <signal.h>
#include <sys/mman.h>

#include <cstdlib>

#include "harness.hpp"
#include "programs/footprint.hpp"

namespace {
// The program footprint; what it takes, by its own counts and by /proc.
class footprint {
  public:
    footprint(const char* what, int slots, const environment& extra) {
        const std::string path = scratch_file("counts");
        const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        REQUIRE(::ftruncate(file, sizeof(taken)) == 0);
        void* const shared = ::mmap(nullptr, sizeof(taken), PROT_READ, MAP_SHARED, file, 0);
        ::close(file);
        REQUIRE(shared != MAP_FAILED);
        counts_ = static_cast<const taken*>(shared);
        environment all = extra;
        all.insert({{"TEST_COUNTS", path}, {"OJS_LOG_LEVEL", "off"}, {"OJS_CONCURRENCY", std::to_string(slots)}});
        program_ = process({program("footprint"), what, std::to_string(slots)}, all);
    }
    footprint(const footprint&) = delete;
    footprint& operator=(const footprint&) = delete;
    ~footprint() { ::munmap(const_cast<taken*>(counts_), sizeof(taken)); }

    const taken& counts() const { return *counts_; }
    process& of() { return program_; }

    // How many of each there are: threads beside the main one by name, open descriptors but files by kind.
    std::map<std::string, int> threads() const {
        std::map<std::string, int> out;
        each_in("task", [&](const std::filesystem::path& task) {
            std::string name;
            std::getline(std::ifstream(task / "comm"), name);
            if (task.filename() != std::to_string(program_.pid()) && !name.empty()) ++out[name];
        });
        return out;
    }
    std::map<std::string, int> descriptors() const {
        std::map<std::string, int> out;
        each_in("fd", [&](const std::filesystem::path& fd) {
            std::error_code gone;
            std::string kind = std::filesystem::read_symlink(fd, gone);
            kind = kind.substr(0, kind.rfind(':'));
            if (!gone && kind.front() != '/') ++out[kind];
        });
        return out;
    }
    // Those that it handles, of the ones that a program may want; a sanitizer has others.
    std::set<int> signals() const {
        const std::uint64_t caught = mask("SigCgt:");
        std::set<int> out;
        for (const int number : {SIGHUP, SIGINT, SIGPIPE, SIGALRM, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD, SIGCONT, SIGTSTP,
                                 SIGTTIN, SIGTTOU}) {
            if ((caught >> (number - 1) & 1U) != 0) out.insert(number);
        }
        return out;
    }

    // All is given back; but a stop signal stays handled, as signals.hpp says.
    void check_stop(const std::set<int>& stop_signals) {
        program_.signal(SIGTERM);
        REQUIRE(program_.prints("ended"));
        CHECK(threads().empty());
        CHECK(descriptors().empty());
        CHECK(signals() == stop_signals);
        CHECK((mask("SigBlk:") & (1U << (SIGTERM - 1))) == 0);
        CHECK(counts_->heap == 0);
        CHECK(program_.end_by(SIGUSR2) == 0);
    }

  private:
    template <class Visit>
    void each_in(const char* folder, Visit visit) const {
        std::error_code gone;
        const std::string path = "/proc/" + std::to_string(program_.pid()) + "/" + folder;
        for (const auto& each : std::filesystem::directory_iterator(path, gone)) visit(each.path());
    }
    std::uint64_t mask(const std::string& name) const {
        std::ifstream status("/proc/" + std::to_string(program_.pid()) + "/status");
        for (std::string line; std::getline(status, line);) {
            if (line.rfind(name, 0) == 0) return std::stoull(line.substr(name.size()), nullptr, 16);
        }
        return 0;
    }

    const taken* counts_ = nullptr;
    process program_;
};

constexpr long size = 1000000;  // of a response: large beside all else that a worker holds
using counted = std::map<std::string, int>;
const std::set<int> all_signals = {SIGHUP, SIGINT, SIGTERM, SIGCONT, SIGTSTP, SIGTTIN};
}  // namespace

TEST_CASE("footprint: signals, lifecycle and barrier take no thread, a pipe, five handlers and 100 bytes") {
    footprint core("core", 0, {});
    CHECK(eventually([&] { return core.descriptors() == counted{{"pipe", 2}}; }));
    CHECK(eventually([&] { return core.signals() == std::set<int>{SIGINT, SIGTERM, SIGCONT, SIGTSTP, SIGTTIN}; }));
    CHECK(core.threads().empty());
    CHECK(core.counts().heap < 100);
    core.check_stop({SIGTERM, SIGINT});
}

TEST_CASE("footprint: a loop takes one thread a consumer, two pipes and 10 kB, and frees them at its end") {
    footprint loop("loop", 10, {});
    CHECK(eventually([&] { return loop.threads() == counted{{"ojs-consumer", 10}}; }));
    CHECK(loop.descriptors() == counted{{"pipe", 4}});
    CHECK(loop.signals() == all_signals);
    CHECK(loop.counts().heap < 10000);
    CHECK(loop.counts().stacks == 10);
    loop.check_stop({SIGHUP, SIGTERM, SIGINT});
}

TEST_CASE("worker: of two slots that start at once one gets no thread -> soon all slots run jobs") {
    process short_of_threads({program("thread_shortage")}, {});
    CHECK(short_of_threads.wait() == 0);
}

TEST_CASE("footprint: a worker takes 2 threads and 16 kB, a job at most a thread, a socket and 4 kB") {
    backend jobs;
    for (const int slots : {10, 64}) {
        CAPTURE(slots);
        footprint worker("worker", slots, {{"OJS_URL", jobs.url()}, {"OJS_POLL_INTERVAL", "20ms"}});
        const auto takes = [&](int job_threads) {
            return worker.threads() == counted{{"ojs-job", job_threads}, {"ojs-service", 1}};
        };
        // FETCH and heartbeats share a connection unless they meet.
        const auto check = [&](int sockets, long heap) {
            counted found = worker.descriptors();
            CHECK(found["socket"] <= sockets);
            found.erase("socket");
            CHECK(found == counted{{"pipe", 4}});
            CHECK(worker.counts().heap < heap);
        };
        // At rest one thread waits for jobs.
        CHECK(eventually([&] { return takes(1) && worker.descriptors().count("socket") == 1; }));
        check(2, 16000);
        CHECK(worker.signals() == all_signals);
        const gate held;
        jobs.push("test.gate", held.args(), slots);
        CHECK(eventually([&] { return takes(slots); }));
        check(slots + 1, 16000 + 4000 * slots);
        CHECK(worker.counts().stacks == 1 + slots);
        held.open();
        CHECK(eventually([&] { return jobs.summary()["completed"].number >= slots; }));
        worker.check_stop({SIGHUP, SIGTERM, SIGINT});
    }
}

// At one slot each job has its own FETCH and ACK. More slots share FETCHes, and take less.
TEST_CASE("footprint: a job that does nothing takes at most 24 allocations, 22 locks and 20 clock reads") {
    backend server;
    server.push("test.count", "[]", 1300);
    footprint worker("worker", 1,
                     {{"OJS_URL", server.url()}, {"OJS_HEARTBEAT_INTERVAL", "1m"}, {"OJS_VISIBILITY_TIMEOUT", "10m"}});
    REQUIRE(worker.of().prints("clock reads", std::chrono::seconds(100)));  // 1,200 jobs, below a sanitizer too
    double each[3] = {};
    const std::string found = worker.of().output().substr(worker.of().output().find("a job: "));
    REQUIRE(std::sscanf(found.c_str(), "a job: %lf allocations, %lf locks, %lf clock", each, each + 1, each + 2) == 3);
    // A heartbeat, or a thread that had to wait, is a small part of one.
    const double most[3] = {24, 22, 20};
    for (int i = 0; i < 3; ++i) {
        CAPTURE(i);
        CHECK(each[i] > 1);
        CHECK(each[i] < most[i] + 0.5);
    }
}

TEST_CASE("footprint: a response of the backend takes at most six times its size, with any content") {
    const auto filled = [](std::string text, const std::string& unit, const std::string& last, long length = size) {
        while (static_cast<long>(text.size() + unit.size() + last.size()) <= length) text += unit;
        return text + last;
    };
    const std::string job = R"({"jobs":[{"id":"j1","type":"test.keep","args":[true,)";
    const struct {
        const char* name;
        std::string fetch;
        std::string beat;
        long limit;
        const char* report;  // the first one; empty: none
        const char* log = "worker started";
    } rows[] = {
        {"objects", filled(job, "{},", "0]}]}"), "", 6 * size, "/ack {\"job_id\":\"j1\",\"result\":true}"},
        {"malformed", filled(job, "{},", "1e]}]}"), "", 6 * size, "/nack {\"job_id\":\"j1\","},
        {"many jobs", filled("{\"jobs\":[", "{},", "{}]}"), "", 6 * size, "", "jobs it may have claimed come back"},
        {"a heartbeat's list", job + "0]}]}", filled("{\"jobs_extended\":[", "\"\",", "\"j1\"]}"), 6 * size,
         "/ack {\"job_id\":\"j1\","},
        {"above the limit", filled(job, "{},", "0]}]}", 8 * size), "", 16 * 1024 * 1024, "",
         "jobs it may have claimed come back"},
    };
    for (const auto& row : rows) {
        CAPTURE(row.name);
        // FETCH and BEAT are answered once with the given bodies, then as by a backend with nothing to do.
        std::mutex mutex;
        std::vector<std::string> reports;
        std::string fetch = row.fetch;
        std::string beat = row.beat;
        const auto server = ojs::http_server::start("127.0.0.1:0", [&](const ojs::http_request& request) {
            const std::lock_guard<std::mutex> held(mutex);
            ojs::http_response out;
            const bool fetches = request.target == "/ojs/v1/workers/fetch";
            if (fetches || request.target == "/ojs/v1/workers/heartbeat")
                std::swap(out.body, fetches ? fetch : beat);
            else
                reports.push_back(request.target + " " + request.body);
            if (out.body.empty()) out.body = fetches ? "{\"jobs\":[]}" : "{}";
            return out;
        });
        REQUIRE(server);
        // A job of this size may take its time, also in the stop.
        footprint worker("worker", 1,
                         settings_from("OJS_HEARTBEAT_INTERVAL=20ms OJS_POLL_INTERVAL=20ms OJS_LOG_LEVEL=info "
                                       "OJS_VISIBILITY_TIMEOUT=10m OJS_REQUEST_TIMEOUT=2m OJS_STOP_TIMEOUT=2m "
                                       "OJS_URL=http://" +
                                       server->address()));
        // It takes seconds of a processor, of which a busy machine gives few.
        constexpr milliseconds parsing_guard{120000};
        CHECK(eventually(
            [&] {
                const std::lock_guard<std::mutex> held(mutex);
                return fetch.empty() && beat.empty() && worker.of().count(row.log) > 0 &&
                       reports.empty() == (row.report[0] == '\0');
            },
            parsing_guard));
        worker.of().signal(SIGTERM);
        CHECK(worker.of().prints("ended", parsing_guard));
        INFO(worker.of().output());
        CHECK((reports.empty() ? std::string() : reports.front()).find(row.report) != std::string::npos);
        CHECK(worker.counts().peak < row.limit);
    }
}
#endif

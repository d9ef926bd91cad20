// The calls of one worker, for the cases of a transport's own.
#pragma once

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "trial.hpp"

namespace transport_contract {
using test::eventually;

// SIGSTOP. Returns when all threads of the process stand still: until then they go on, one by one.
inline bool stand_still(pid_t id) {
    if (id <= 0 || ::kill(id, SIGSTOP) != 0) return false;
    return eventually([id] {
        for (const auto& each : std::filesystem::directory_iterator("/proc/" + std::to_string(id) + "/task")) {
            std::ifstream file(each.path() / "stat");
            const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
            if (text.find(") T ") == std::string::npos) return false;
        }
        return true;
    });
}

// A queue of its own for each case and run.
inline std::string new_queue() {
    static const auto run = std::chrono::system_clock::now().time_since_epoch().count();
    static std::atomic<int> number{0};
    return "own-" + std::to_string(run) + "-" + std::to_string(++number);
}

// What open_NAME() gave; throws its error.
template <class Ref>
std::shared_ptr<ojs::transport> share(const ojs::result<Ref>& opened) {
    if (!opened) throw std::runtime_error(opened.error().text);
    return {opened->get(), [kept = *opened](ojs::transport*) {}};
}

inline std::string name_of(const ojs::result<ojs::settle_result>& answer) {
    if (!answer) return answer.error().text;
    return *answer == ojs::settle_result::gone ? "gone" : "accepted";
}

struct lone_worker {
    lone_worker(std::shared_ptr<ojs::transport> to, const std::string& queue, const std::string& name = "alone")
        : wire(std::move(to)) {
        identity.worker_id = name;
        identity.queues = {queue};
        identity.concurrency = 4;
        identity.visibility_timeout = long_lease;
    }

    ojs::result<jobs> fetch(std::size_t count = 1) { return wire->fetch({{&identity, nullptr}, count, {}}, soon()); }
    ojs::job fetch_one() {
        const ojs::result<jobs> got = fetch();
        if (!got || got->size() != 1) throw std::runtime_error(got ? "no job came" : got.error().text);
        return got->front();
    }
    // Fetches until that many came: from elsewhere, or once a lease ends.
    jobs await(std::size_t count) {
        jobs out;
        const bool came = eventually([&] {
            const ojs::result<jobs> got = fetch(count - out.size());
            if (got) out.insert(out.end(), got->begin(), got->end());
            return out.size() >= count;
        });
        if (!came) throw std::runtime_error("no job came");
        return out;
    }
    ojs::job await_one() { return await(1).front(); }

    ojs::job_request about(const ojs::job& job) const {
        return {{&identity, nullptr}, job.id, job.claim, job.attempt, &job};
    }
    ojs::result<ojs::settle_result> try_ack(const ojs::job& job, ojs::time_point deadline = soon()) {
        return wire->ack({about(job), ""}, deadline);
    }
    ojs::result<ojs::settle_result> try_fail(const ojs::job& job, const ojs::job_error& why, bool requeue = false) {
        return wire->fail({about(job), why, requeue, ""}, soon());
    }
    // The name of the result, or the error's text.
    std::string ack(const ojs::job& job) { return name_of(try_ack(job)); }
    std::string fail(const ojs::job& job, bool retryable = true) {
        return name_of(try_fail(job, {"handler_error", "no", retryable, "{}"}));
    }
    std::string requeue(const ojs::job& job, const char* code = "interrupted") {
        return name_of(try_fail(job, {code, "no", true, "{}"}, true));
    }
    ojs::result<ojs::heartbeat_response> beat(const ojs::job& job) {
        return wire->heartbeat({{&identity, nullptr}, "running", {job.id}, {job.claim}, false}, soon());
    }
    ojs::result<ojs::heartbeat_response> beat_without_jobs() {
        return wire->heartbeat({{&identity, nullptr}, "running", {}, {}, false}, soon());
    }
    bool renews(const ojs::job& job) {
        const auto got = beat(job);
        if (!got) throw std::runtime_error(got.error().text);
        return got->jobs_extended == texts{job.id};
    }
    bool confirms(const ojs::job& job) {
        const auto got = wire->confirm_claim(about(job), soon());
        if (!got) throw std::runtime_error(got.error().text);
        return *got;
    }

    ojs::worker_identity identity;
    std::shared_ptr<ojs::transport> wire;
};
}  // namespace transport_contract

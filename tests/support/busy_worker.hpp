// A worker with a job in its handler, and the job's settlement.
#pragma once

#include "recorder.hpp"

namespace recorder {
using shared_event = std::shared_ptr<event>;

inline shared_event make_event() { return std::make_shared<event>(); }

// A second signal cancels the jobs at once.
inline void force(ojs::lifecycle& life) {
    for (int i = 0; i < 2; ++i) send(life, SIGTERM);
}

inline void until_cancelled(ojs::job_context& job) { CHECK(!job.sleep_for(1h)); }

// A worker with one job, which is in its handler when the constructor returns.
struct busy_worker {
    template <class Handler>
    busy_worker(ojs::worker_options options, Handler handler, ojs::handler_options how = {},
                ojs::job job = make_job("a"))
        : busy_worker() {
        wire.give(std::move(job));
        body = std::make_unique<ojs::worker>(std::move(options), wire, life);
        const shared_event began = make_event();
        body->register_handler(
            "work",
            [began, handler](ojs::job_context& job) mutable {
                began->set();
                return handler(job);
            },
            how);
        REQUIRE(body->start());
        REQUIRE(began->wait());
    }

    template <class Handler>
    busy_worker(ojs::worker_options options, ojs::job job, Handler handler)
        : busy_worker(std::move(options), std::move(handler), {}, std::move(job)) {}

    void signal() { send(life, SIGTERM); }
    void force() { recorder::force(life); }
    call settlement() const {
        const std::vector<call> all = wire.settlements("a");
        REQUIRE(all.size() == 1);
        return all[0];
    }
    std::string settled() const { return wire.settled("a"); }
    std::string detail(const char* key) const { return parse(settlement().error.details_json).get(key).to_str(); }

    ojs::lifecycle life{0ms};
    transport wire;
    std::unique_ptr<ojs::worker> body;

  private:
    busy_worker() = default;
};
}  // namespace recorder

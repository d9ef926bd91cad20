// The transports of this process put through what every transport must do.
#include <memory>
#include <string>
#include <vector>

#include "contract/doctest.hpp"
#include "spool_dir.hpp"

namespace {

using transport_contract::job_state;
using transport_contract::new_job;
using transport_contract::traits;
using names = std::vector<std::string>;

class memory_subject : public transport_contract::subject {
  public:
    traits can() const override {
        traits out;
        out.knows_holder = false;         // all workers are one
        out.jobs_outlive_worker = false;  // as the queue is the transport
        return out;
    }
    std::shared_ptr<ojs::transport> connect(const ojs::worker_identity& /*as*/) override { return queue_; }
    std::string push(const new_job& what) override {
        return queue_->push(what.type, what.args_json, what.max_attempts, what.queue);
    }
    job_state state_of(const std::string& id) override {
        for (const ojs::memory_job& each : queue_->jobs()) {
            if (each.job.id != id) continue;
            if (each.state == "available") return job_state::waiting;
            if (each.state == "active") return job_state::running;
            return each.state == "completed" ? job_state::completed : job_state::discarded;
        }
        return job_state::absent;
    }

  private:
    const std::shared_ptr<ojs::memory_transport> queue_ = std::make_shared<ojs::memory_transport>();
};

TEST_CASE("contract: memory_transport") {
    const names left_out = transport_contract::check_all([] { return std::make_unique<memory_subject>(); });
    CHECK(left_out == names{"a late word about an earlier run is gone", "what stands still and goes on again",
                            "a lost answer to ACK or FAIL counts once", "a lost answer to FETCH costs no job",
                            "news of work comes after a push",
                            "the jobs of a dead worker come back, those it settled do not",
                            "a lease that ran out: the late worker hears that the job is gone"});
}

}  // namespace

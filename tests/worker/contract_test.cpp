// The contract of transports, for those of this process.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "contract/doctest.hpp"

namespace {

using transport_contract::job_state;
using transport_contract::new_job;
using transport_contract::traits;
using names = std::vector<std::string>;

class memory_subject : public transport_contract::subject {
  public:
    traits can() const override {
        traits out;
        out.first_in_first_out = out.keeps_args_text = out.holds_nul = out.any_type = true;
        out.requeue_spares_attempt = out.saves_checkpoints = out.passes_checkpoints = true;
        out.largest_args = 200 * 1024;
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

  protected:
    const std::shared_ptr<ojs::memory_transport> queue_ = std::make_shared<ojs::memory_transport>();
};

// One that can do less: it stands for queues that are like that, and shows that the cases ask for no more.
class modest_transport : public ojs::transport {
  public:
    explicit modest_transport(ojs::memory_transport& queue) : queue_(queue) {}

    ojs::result<std::vector<ojs::job>> fetch(const ojs::fetch_request& request,
                                             ojs::time_point deadline) override {
        auto got = queue_.fetch(request, deadline);
        if (!got) return got;
        for (ojs::job& each : *got) each.args_json = " " + each.args_json + "\n";
        return got;
    }
    ojs::result<ojs::settled> ack(const ojs::ack_request& request, ojs::time_point deadline) override {
        return queue_.ack(request, deadline);
    }
    ojs::result<ojs::settled> fail(const ojs::fail_request& request, ojs::time_point deadline) override {
        ojs::fail_request plain;
        plain.job_id = request.job_id;
        plain.error = request.error;
        plain.error.retryable = request.error.retryable || request.requeue;
        return queue_.fail(plain, deadline);
    }
    ojs::result<ojs::heartbeat_response> heartbeat(const ojs::heartbeat_request& request,
                                                   ojs::time_point deadline) override {
        return queue_.heartbeat(request, deadline);
    }

  private:
    ojs::memory_transport& queue_;
};

class modest_subject : public memory_subject {
  public:
    traits can() const override { return {}; }
    std::shared_ptr<ojs::transport> connect(const ojs::worker_identity& /*as*/) override {
        return std::make_shared<modest_transport>(*queue_);
    }
};

// By both, because they are in memory.
const names not_in_memory = {
    "a late report of an earlier run is gone",           "a backend that freezes and continues",
    "an ACK or FAIL whose response is lost counts once", "a FETCH whose response is lost loses no job",
    "on_work_available is called after a push",          "the unsettled jobs of a dead worker come back",
    "after its lease a worker's reports are gone"};

TEST_CASE("contract: memory_transport") {
    const names left_out = transport_contract::check_all([] { return std::make_unique<memory_subject>(); });
    CHECK(left_out == not_in_memory);
}

TEST_CASE("contract: a transport with only the required functions") {
    names expected = not_in_memory;
    expected.insert(expected.begin(), "first in, first out");
    expected.insert(expected.begin() + 2, "a checkpoint travels with the FAIL");
    CHECK(transport_contract::check_all([] { return std::make_unique<modest_subject>(); }) == expected);
}

}  // namespace

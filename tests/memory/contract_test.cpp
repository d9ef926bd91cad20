// The contract of transports, for those of this process; and the order of memory_transport, and what it keeps.
#include "contract/doctest.hpp"
#include "test.hpp"

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
        out.requeue_spares_attempt = out.passes_checkpoints = out.tells_of_work = true;
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

  private:
    const std::shared_ptr<ojs::memory_transport> queue_ = std::make_shared<ojs::memory_transport>();
};

TEST_CASE("contract: memory_transport passes every case that applies to a queue in memory") {
    CHECK(transport_contract::check_all([] { return std::make_unique<memory_subject>(); }) ==
          names{"a late report of an earlier run is gone", "a backend that freezes and continues",
                "an ACK or FAIL whose response is lost counts once", "a FETCH whose response is lost loses no job",
                "the unsettled jobs of a dead worker come back"});
}

std::vector<std::string> claim(memory_transport& queue, std::size_t count,
                               std::vector<std::string> queues = {"default"}) {
    ojs::worker_identity worker;
    worker.queues = std::move(queues);
    ojs::fetch_request request;
    request.worker = &worker;
    request.count = count;
    const auto answer = queue.fetch(request, time_point::max());
    REQUIRE(answer);
    std::vector<std::string> ids;
    for (const ojs::job& each : *answer) ids.push_back(each.id);
    return ids;
}

settle_result ack(memory_transport& queue, const std::string& id) {
    return queue.ack({{{}, id}, "1"}, time_point::max()).value_or(settle_result::gone);
}

settle_result fail(memory_transport& queue, const std::string& id, bool retryable, bool requeue = false) {
    ojs::fail_request request;
    request.job_id = id;
    request.error = {"handler_error", "no", retryable, "{}"};
    request.requeue = requeue;
    return queue.fail(request, time_point::max()).value_or(settle_result::gone);
}

std::vector<std::string> states(const memory_transport& queue) {
    std::vector<std::string> out;
    for (const memory_job& each : queue.jobs()) out.push_back(each.job.id + " " + each.state);
    return out;
}

// [WP 6.3]
TEST_CASE("memory_transport: fetch() takes queues in the requested order, and a requeued job keeps its place") {
    memory_transport queue;
    queue.push("t", "[]", 3, "low");   // job-1
    queue.push("t", "[]", 3, "high");  // job-2
    queue.push("t", "[]", 3, "high");  // job-3
    queue.push("t", "[]", 3, "high");  // job-4
    CHECK(claim(queue, 1, {"nobody's"}).empty());
    CHECK(claim(queue, 0, {"high"}).empty());
    CHECK(claim(queue, 2, {"high", "low"}) == names{"job-2", "job-3"});
    CHECK(fail(queue, "job-2", false, true) == settle_result::accepted);
    CHECK(claim(queue, 9, {"high", "low"}) == names{"job-2", "job-4", "job-1"});
    CHECK(claim(queue, 9, {"high", "low"}).empty());
    CHECK(states(queue) == names{"job-1 active", "job-2 active", "job-3 active", "job-4 active"});
}

TEST_CASE("memory_transport: every unsettled job is kept, and settled jobs only up to the limit, latest first") {
    memory_transport queue(2);
    for (int i = 0; i < 5; ++i) queue.push("t");
    CHECK(claim(queue, 4) == names{"job-1", "job-2", "job-3", "job-4"});
    CHECK(ack(queue, "job-3") == settle_result::accepted);
    CHECK(fail(queue, "job-2", false) == settle_result::accepted);
    CHECK(queue.jobs()[1].error.message == "no");
    CHECK(queue.jobs()[1].settlements == 1);
    CHECK(states(queue) ==
          names{"job-1 active", "job-2 discarded", "job-3 completed", "job-4 active", "job-5 available"});
    CHECK(ack(queue, "job-4") == settle_result::accepted);  // job-3 was the first to be settled
    CHECK(states(queue) == names{"job-1 active", "job-2 discarded", "job-4 completed", "job-5 available"});
    CHECK(ack(queue, "job-3") == settle_result::gone);
    CHECK(ack(queue, "job-1") == settle_result::accepted);
    CHECK(states(queue) == names{"job-1 completed", "job-4 completed", "job-5 available"});
    CHECK(queue.push("t") == "job-6");  // no id comes twice
    CHECK(claim(queue, 9) == names{"job-5", "job-6"});

    memory_transport nothing_kept(0);
    nothing_kept.push("t");
    CHECK(claim(nothing_kept, 1) == names{"job-1"});
    CHECK(ack(nothing_kept, "job-1") == settle_result::accepted);
    CHECK(nothing_kept.jobs().empty());
}
}  // namespace

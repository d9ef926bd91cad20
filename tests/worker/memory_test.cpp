// The queue in this process: its order, and what it keeps.

#include "recorder.hpp"

namespace {

using ojs::memory_job;
using ojs::memory_transport;
using ojs::settled;
using ojs::time_point;

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

settled ack(memory_transport& queue, const std::string& id) {
    return queue.ack({id, "1"}, time_point::max()).value_or(settled::gone);
}

settled fail(memory_transport& queue, const std::string& id, bool retryable, bool requeue = false) {
    ojs::fail_request request;
    request.job_id = id;
    request.error = {"handler_error", "no", retryable, "{}"};
    request.requeue = requeue;
    return queue.fail(request, time_point::max()).value_or(settled::gone);
}

std::vector<std::string> states(const memory_transport& queue) {
    std::vector<std::string> out;
    for (const memory_job& each : queue.jobs()) out.push_back(each.job.id + " " + each.state);
    return out;
}

using texts = std::vector<std::string>;

TEST_CASE(
    "memory: queues in the order asked for, each in its own order, and a job that comes back in its place") {
    memory_transport queue;
    queue.push("t", "[]", 3, "low");   // job-1
    queue.push("t", "[]", 3, "high");  // job-2
    queue.push("t", "[]", 3, "high");  // job-3
    queue.push("t", "[]", 3, "high");  // job-4
    CHECK(claim(queue, 1, {"nobody's"}).empty());
    CHECK(claim(queue, 0, {"high"}).empty());
    CHECK(claim(queue, 2, {"high", "low"}) == texts{"job-2", "job-3"});
    CHECK(fail(queue, "job-2", false, true) == settled::accepted);
    CHECK(claim(queue, 9, {"high", "low"}) == texts{"job-2", "job-4", "job-1"});
    CHECK(claim(queue, 9, {"high", "low"}).empty());
    CHECK(states(queue) == texts{"job-1 active", "job-2 active", "job-3 active", "job-4 active"});
}

TEST_CASE("memory: only an active job is settled, and only by its own id") {
    memory_transport queue;
    queue.push("t");
    CHECK(ack(queue, "job-1") == settled::gone);
    CHECK(claim(queue, 1) == texts{"job-1"});
    for (const char* other :
         {"", "1", "job-", "job-0", "job-01", "job-2", "job-1 ", "Job-1", "job-18446744073709551617"}) {
        CAPTURE(other);
        CHECK(ack(queue, other) == settled::gone);
        CHECK(fail(queue, other, true) == settled::gone);
    }
    CHECK(ack(queue, "job-1") == settled::accepted);
    CHECK(ack(queue, "job-1") == settled::gone);
    CHECK(fail(queue, "job-1", true) == settled::gone);
    CHECK(queue.jobs()[0].result_json == "1");
}

TEST_CASE("memory: keeps only the last settled jobs, and all others") {
    memory_transport queue(2);
    for (int i = 0; i < 5; ++i) queue.push("t");
    CHECK(claim(queue, 4) == texts{"job-1", "job-2", "job-3", "job-4"});
    CHECK(ack(queue, "job-3") == settled::accepted);
    CHECK(fail(queue, "job-2", false) == settled::accepted);
    CHECK(states(queue) ==
          texts{"job-1 active", "job-2 discarded", "job-3 completed", "job-4 active", "job-5 available"});
    CHECK(ack(queue, "job-4") == settled::accepted);  // job-3 was the first to be settled
    CHECK(states(queue) == texts{"job-1 active", "job-2 discarded", "job-4 completed", "job-5 available"});
    CHECK(ack(queue, "job-3") == settled::gone);
    CHECK(ack(queue, "job-1") == settled::accepted);
    CHECK(states(queue) == texts{"job-1 completed", "job-4 completed", "job-5 available"});
    CHECK(queue.push("t") == "job-6");  // no id comes twice
    CHECK(claim(queue, 9) == texts{"job-5", "job-6"});

    memory_transport nothing_kept(0);
    nothing_kept.push("t");
    CHECK(claim(nothing_kept, 1) == texts{"job-1"});
    CHECK(ack(nothing_kept, "job-1") == settled::accepted);
    CHECK(nothing_kept.jobs().empty());
}

}  // namespace

// A worker that stands still, as in a frozen VM or cgroup: what its backend sent meanwhile is not lost.
#include "harness.hpp"
#include "raw_peer.hpp"

using namespace test;

namespace {

// A backend that hands out one job. Before it responds to a FETCH, it freezes the worker, until request_timeout is over.
class freezing_backend {
  public:
    explicit freezing_backend(milliseconds request_timeout) : freeze_time_(request_timeout * 3 / 2) {}
    ~freezing_backend() {
        server_.reset();
        for (std::thread& each : connections_) each.join();
    }

    std::string url() const { return server_->url(); }
    void begin(process& worker) {
        worker_ = &worker;
        begun.set();
    }

    event begun;
    event acked;

  private:
    void serve(int fd) {
        for (std::string request; !(request = peer::read_message(fd)).empty();) {
            const bool is_fetch = request.find("POST /ojs/v1/workers/fetch ") == 0;
            if (request.find("POST /ojs/v1/workers/ack ") == 0) acked.set();
            if (!is_fetch || !hand_out(fd)) peer::send_text(fd, peer::ok(is_fetch ? "{\"jobs\":[]}" : "{}"));
        }
        ::close(fd);
    }
    // False: it is handed out already.
    bool hand_out(int fd) {
        const std::lock_guard<std::mutex> held(mutex_);
        begun.wait();
        if (is_handed_out_) return false;
        worker_->freeze();
        char byte = 0;
        // On a busy machine the worker may have given up before.
        is_handed_out_ = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0;
        if (is_handed_out_)
            peer::send_text(fd, peer::ok("{\"jobs\":[{\"id\":\"019df2f5-1d5d-7a94-9d4b-0d9ab9b1c7f5\","
                                         "\"type\":\"test.result\",\"queue\":\"default\",\"args\":[1],"
                                         "\"attempt\":1,\"max_attempts\":1}]}"));
        std::this_thread::sleep_for(freeze_time_);  // it is the passing of time that is meant
        worker_->signal(SIGCONT);
        return true;
    }

    const milliseconds freeze_time_;
    process* worker_ = nullptr;
    std::mutex mutex_;
    bool is_handed_out_ = false;
    std::vector<std::thread> connections_;
    std::optional<peer::server> server_{
        std::in_place,
        [this](int fd, int) { connections_.emplace_back([this, own = ::dup(fd)] { serve(own); }); }};
};

}  // namespace

// [GS 7.1 (b)]
TEST_CASE("worker: frozen past request_timeout while a FETCH response arrives -> its job runs and is acked") {
    freezing_backend jobs(milliseconds(1000));
    process worker = start_worker(jobs.url(), "w", {{"OJS_REQUEST_TIMEOUT", "1s"}, {"OJS_CONCURRENCY", "1"}});
    jobs.begin(worker);
    CHECK(jobs.acked.wait());
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
}

// [GS 5.3 (c)]
TEST_CASE("worker: frozen past the end of its stop -> it still sends its last heartbeat") {
    backend jobs;
    const gate closed;
    const std::string id = jobs.push_one("test.gate", closed.args());
    const milliseconds stop_timeout(1000);
    process worker =
        start_worker(jobs.url(), "w", {{"OJS_STOP_TIMEOUT", "1s"}, {"OJS_SHUTDOWN_GRACE_PERIOD", "0s"}});
    REQUIRE(jobs.reaches(id, "active"));
    jobs.self().freeze();  // so that the stop takes all of its time
    worker.signal(SIGTERM);
    REQUIRE(eventually([&] { return phase_moment(worker, "stopping") > 0; }));
    worker.freeze();
    std::this_thread::sleep_for(stop_timeout * 3 / 2);  // it is the passing of time that is meant
    jobs.self().signal(SIGCONT);
    worker.signal(SIGCONT);
    CHECK(jobs.event(beat_in_state("w", "terminate")).has("event"));
    CHECK(worker.wait() != process::running);
}

// dev_backend's stream of a queue's events, and a worker whose next poll is an hour away. [OJS realtime 2, 5]
#include "harness.hpp"
#include "raw_peer.hpp"

namespace {
// A client of one stream.
class stream {
  public:
    explicit stream(const backend& jobs) : client_(jobs.port()) {
        client_.send("GET /ojs/v1/queues/default/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    // Whether `text` arrives after what was read before.
    bool gets(const std::string& text) {
        std::size_t at = unread_.find(text);
        const ojs::time_point end = peer::soon();  // heartbeats keep coming
        while (at == std::string::npos && ojs::steady_clock::now() < end && peer::read_some(client_.fd, unread_))
            at = unread_.find(text);
        if (at != std::string::npos) unread_.erase(0, at + text.size());
        return at != std::string::npos;
    }
    bool opens() { return gets("HTTP/1.1 200 OK\r\n") && gets("\r\n\r\nretry: 3000\n\n"); }
    struct event {
        std::string id;
        std::string type;
        json data;
    };
    event next() {
        event out;
        if (!gets("id: ")) return out;
        out.id = line();
        if (gets("event: ")) out.type = line();
        if (gets("data: ")) out.data = json::parse(line());
        return out;
    }
    std::string rest() { return unread_ + client_.rest(); }

  private:
    std::string line() {
        while (unread_.find('\n') == std::string::npos && peer::read_some(client_.fd, unread_)) continue;
        const std::string out = unread_.substr(0, unread_.find('\n'));
        unread_.erase(0, out.size());
        return out;
    }

    peer::client client_;
    std::string unread_;
};

ojs::worker_options events_only(const backend& jobs) {
    ojs::worker_options options;
    options.url = jobs.url();
    options.poll_interval = std::chrono::hours(1);
    options.http_events = ojs::queue_events();
    options.log.level = ojs::log_level::off;
    return options;
}
}  // namespace

TEST_CASE("queue events: an idle worker runs a pushed or retried job without waiting for its next poll") {
    backend jobs;
    counter runs;
    ojs::worker worker(events_only(jobs));
    worker.register_handler("once", [&](ojs::job_context&) { runs.add(); });
    worker.register_handler("twice", [&](ojs::job_context& job) {
        runs.add();
        return job.attempt() == 1 ? ojs::outcome::retry("again") : ojs::outcome::done();
    });
    REQUIRE(worker.start());
    for (int i = 1; i <= 20; ++i) {
        jobs.push_one("once", "[]");
        REQUIRE(runs.wait_for(i));
    }
    const std::string id = jobs.push_one("twice", "[]");
    CHECK(runs.wait_for(22));
    CHECK(jobs.reaches(id, "completed"));
    worker.stop();
    CHECK(worker.exit_code() == 0);
}

TEST_CASE("dev_backend: each subscriber gets every event of its queue, unless that subscriber does not read") {
    backend jobs;
    stream one(jobs);
    stream other(jobs);
    REQUIRE(one.opens());
    REQUIRE(other.opens());
    jobs.push("a.b", "[]", 1, R"(,"queue":"elsewhere")");
    const std::string id = jobs.push_one("a.b", "[]");
    for (stream* each : {&one, &other}) {
        const stream::event got = each->next();
        CHECK(got.id.rfind("evt_", 0) == 0);
        CHECK(got.type == "job.state_changed");
        CHECK(got.data["job_id"].text == id);
        CHECK(got.data["queue"].is("default"));
        CHECK(got.data["type"].is("a.b"));
        CHECK(got.data["to"].is("available"));
        CHECK(got.data["count"].number == 1);
    }
    peer::client idle(jobs.port());
    idle.send("GET /ojs/v1/queues/default/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    REQUIRE(peer::readable(idle.fd));
    const auto is_disconnected = [&] {
        pollfd here{idle.fd, 0, 0};
        return ::poll(&here, 1, 0) > 0;
    };
    const std::string long_type(8000, 'a');  // so that few events fill the buffers
    std::int64_t announced = 0;
    std::int64_t pushed = 0;
    const bool ended = eventually([&] {
        jobs.push(long_type, "[]", 2);
        for (pushed += 2; announced < pushed;) {
            const stream::event got = one.next();
            REQUIRE(got.data.has("count"));
            announced += got.data["count"].number;
        }
        return is_disconnected();
    });
    CHECK(ended);
    CHECK(announced == pushed);
}

TEST_CASE("dev_backend: an event stream sends heartbeats, and server.shutdown as its last event") {
    backend jobs({"--stream-heartbeat", "20ms"});
    stream to(jobs);
    REQUIRE(to.opens());
    CHECK(to.gets(":heartbeat\n\n:heartbeat\n\n"));
    jobs.self().signal(SIGTERM);
    CHECK(to.gets("event: server.shutdown\ndata: {\"reason\":\"shutdown\",\"grace_period_ms\":0}\n\n"));
    CHECK(to.rest().empty());
    CHECK(jobs.self().wait() == 0);
}

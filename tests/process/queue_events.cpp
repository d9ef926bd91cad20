// dev_backend's stream of a queue's events: what subscribers receive, and when the stream ends. [OJS realtime 2, 5]
#include <time.h>

#include <deque>

#include "harness.hpp"
#include "raw_peer.hpp"

using namespace test;

namespace {

std::uint16_t port_of(const backend& jobs) {
    return static_cast<std::uint16_t>(std::stoi(jobs.url().substr(jobs.url().rfind(':') + 1)));
}

// A client of one stream.
class stream {
  public:
    explicit stream(const backend& jobs, const std::string& more = "", const std::string& query = "")
        : client_(port_of(jobs)) {
        client_.send("GET /ojs/v1/queues/default/events" + query + " HTTP/1.1\r\nHost: localhost\r\n" + more +
                     "\r\n");
    }
    // Whether `text` arrives after what was read before.
    bool gets(const std::string& text) {
        std::size_t at = unread_.find(text);
        const ojs::time_point end = peer::soon();  // heartbeats keep coming
        while (at == std::string::npos && ojs::steady_clock::now() < end &&
               peer::read_some(client_.fd, unread_))
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
    // Whether the next event is that jobs have become available; `from` is the previous state of the first.
    bool announces(const char* from) {
        const event got = next();
        CAPTURE(got.type);
        return got.type == "job.state_changed" && got.data["from"].is(from) && got.data["to"].is("available");
    }
    std::string rest() { return unread_ + client_.rest(); }
    bool closed() const { return client_.closed(); }  // nothing else arrives
    int socket() const { return client_.fd; }

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

// An open stream of a queue that no worker has asked yet.
stream open_stream(backend& jobs, const std::string& more = "", const std::string& query = "") {
    REQUIRE(jobs.post("/ojs/v1/workers/fetch", R"({"queues":["default"],"worker_id":"w"})").has("jobs"));
    return stream(jobs, more, query);
}

std::string claim(backend& jobs) {
    return jobs.post("/ojs/v1/workers/fetch", R"({"queues":["default"],"worker_id":"w"})")["jobs"]
        .items.at(0)["id"]
        .text;
}

void fail(backend& jobs, const std::string& id, const std::string& more = "") {
    const json said =
        jobs.post("/ojs/v1/workers/nack",
                  R"({"job_id":")" + id + R"(","error":{"code":"x","message":"m"})" + more + "}");
    REQUIRE(said["acknowledged"].flag);
}

std::string in_six_seconds() {
    const std::time_t then = std::time(nullptr) + 6;
    tm utc{};
    gmtime_r(&then, &utc);
    char text[40];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return text;
}

int status_of(const backend& jobs, const std::string& queue) {
    const auto got = ask(jobs.url(), "GET", "/ojs/v1/queues/" + queue + "/events");
    REQUIRE(got);
    return got->status;
}

}  // namespace

TEST_CASE("dev_backend: an enqueued job sends an event with its id to each subscriber of its queue") {
    backend jobs;
    stream one = open_stream(jobs);
    stream other = open_stream(jobs);
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
}

TEST_CASE(
    "dev_backend: a job available after retry, requeue, worker death, schedule or activation sends an "
    "event") {
    backend jobs({"--retry-delay", "20ms", "--dead-after", "500ms"});
    stream to = open_stream(jobs);
    REQUIRE(to.opens());
    const std::string id = jobs.push_one("a.b", "[]");
    CHECK(to.announces("available"));
    fail(jobs, claim(jobs));
    CHECK(to.announces("retryable"));
    fail(jobs, claim(jobs), R"(,"requeue":true)");
    CHECK(to.announces("active"));
    REQUIRE(claim(jobs) == id);
    jobs.post("/ojs/v1/workers/heartbeat", R"({"worker_id":"w","active_jobs":[]})");
    CHECK(to.announces("active"));
    jobs.push("a.b", "[]", 1, ",\"scheduled_at\":\"" + in_six_seconds() + "\"");
    CHECK(to.announces("scheduled"));
    const std::string pending = jobs.push("a.b", "[]", 1, R"(,"pending":true)").front();
    CHECK(ask(jobs.url(), "POST", "/ojs/v1/jobs/" + pending + "/activate", "{}")->status == 200);
    CHECK(to.announces("pending"));
}

TEST_CASE("dev_backend: a paused queue hands out no job until it is resumed, and both send an event") {
    backend jobs;
    stream to = open_stream(jobs);
    REQUIRE(to.opens());
    jobs.post("/ojs/v1/queues/default/pause", "{}");
    CHECK(to.next().type == "queue.paused");
    const std::string id = jobs.push_one("a.b", "[]");
    CHECK(to.announces("available"));
    CHECK(jobs.post("/ojs/v1/workers/fetch", R"({"queues":["default"],"worker_id":"w"})")["jobs"]
              .items.empty());
    CHECK(json::parse(jobs.get("/ojs/v1/queues"))["queues"].items.at(0)["status"].is("paused"));
    jobs.post("/ojs/v1/queues/default/resume", "{}");
    const stream::event got = to.next();
    CHECK(got.type == "queue.resumed");
    CHECK(got.data["queue"].is("default"));
    CHECK(claim(jobs) == id);
}

TEST_CASE("dev_backend: event_types limits the stream to events of these types") {
    backend jobs;
    stream to = open_stream(jobs, "Last-Event-ID: evt_1\r\n", "?event_types=x,queue.resumed");
    REQUIRE(to.opens());
    jobs.push_one("a.b", "[]");
    jobs.post("/ojs/v1/queues/default/pause", "{}");
    jobs.post("/ojs/v1/queues/default/resume", "{}");
    CHECK(to.next().type == "queue.resumed");
}

TEST_CASE("dev_backend: a stream with Last-Event-ID begins with a gap event since that event") {
    backend jobs;
    stream first = open_stream(jobs);
    REQUIRE(first.opens());
    jobs.push_one("a.b", "[]");
    const stream::event seen = first.next();
    stream again(jobs, "Last-Event-ID: " + seen.id + "\r\n");
    REQUIRE(again.opens());
    const stream::event gap = again.next();
    CHECK(gap.type == "system.gap");
    CHECK(gap.id > seen.id);
    CHECK(gap.data["channel"].is("queue:default"));
    CHECK(gap.data["gap_start"].text == seen.data["timestamp"].text);
    stream unknown(jobs, "Last-Event-ID: 7\r\n");
    REQUIRE(unknown.opens());
    CHECK(unknown.next().type == "system.gap");
}

TEST_CASE("dev_backend: the event stream of an unknown queue responds 404 until a job is pushed to it") {
    backend jobs;
    CHECK(status_of(jobs, "default") == 404);
    CHECK(ask(jobs.url(), "POST", "/ojs/v1/queues/default/pause", "{}")->status == 404);
    CHECK(ask(jobs.url(), "POST", "/ojs/v1/queues/default/events", "{}")->status == 405);
    jobs.push_one("a.b", "[]");
    stream to(jobs);
    CHECK(to.opens());
}

TEST_CASE("dev_backend: a subscriber that disconnects does not stop the events of the others") {
    backend jobs;
    stream stays = open_stream(jobs);
    REQUIRE(stays.opens());
    {
        stream leaves = open_stream(jobs);
        REQUIRE(leaves.opens());
        peer::reset(leaves.socket());
    }
    stream leaves = open_stream(jobs);
    REQUIRE(leaves.opens());
    ::shutdown(leaves.socket(), SHUT_WR);
    CHECK(leaves.closed());
    jobs.push_one("a.b", "[]");
    CHECK(stays.announces("available"));
    fail(jobs, claim(jobs), R"(,"requeue":true)");
    CHECK(stays.announces("active"));
}

TEST_CASE("dev_backend: a subscriber that does not read is disconnected, while the others get every event") {
    backend jobs({"--stream-heartbeat", "300ms"});
    stream reads = open_stream(jobs);
    REQUIRE(reads.opens());
    peer::client idle(port_of(jobs));
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
            const stream::event got = reads.next();
            REQUIRE(got.data.has("count"));
            announced += got.data["count"].number;
        }
        return is_disconnected();
    });
    CHECK(ended);
    CHECK(announced == pushed);
}

TEST_CASE("dev_backend: an event stream without events sends a comment at each heartbeat interval") {
    backend jobs({"--stream-heartbeat", "20ms"});
    stream to = open_stream(jobs);
    REQUIRE(to.opens());
    CHECK(to.gets(":heartbeat\n\n:heartbeat\n\n"));
    jobs.push_one("a.b", "[]");
    CHECK(to.announces("available"));
}

TEST_CASE("dev_backend: a subscriber first served after a heartbeat interval is not disconnected") {
    backend jobs({"--stream-heartbeat", "1ms"});
    std::deque<stream> opened;
    for (int i = 0; i < 100; ++i) {
        jobs.push_one("a.b", "[]");
        opened.emplace_back(jobs);
        REQUIRE(opened.back().opens());
    }
}

TEST_CASE("dev_backend: shutdown ends event streams with server.shutdown and refuses new ones") {
    backend jobs({"--lame-duck", "30s"});
    stream to = open_stream(jobs);
    REQUIRE(to.opens());
    jobs.self().signal(SIGTERM);
    CHECK(to.gets("event: server.shutdown\ndata: {\"reason\":\"shutdown\",\"grace_period_ms\":0}\n\n"));
    CHECK(to.rest().empty());
    CHECK(status_of(jobs, "default") == 503);
}

TEST_CASE("dev_backend: shutdown with a subscriber that does not disconnect -> the backend exits with 0") {
    backend jobs;
    stream to = open_stream(jobs);
    REQUIRE(to.opens());
    jobs.self().signal(SIGTERM);
    CHECK(jobs.self().wait() == 0);
}

// queue_events(): the stream of a queue's events, and when it makes a worker FETCH. tests/fuzz splits streams anywhere.
#include "raw_peer.hpp"

namespace {
// "type|data" of each event, and the retry time.
std::string read_events(const std::string& stream) {
    detail::event_parser parser;
    std::string out;
    parser.feed(stream, [&](const detail::server_event& event) {
        out += (event.is_cut ? "cut:" : "") + event.type + "|" + event.data + ";";
    });
    return out + std::to_string(parser.retry().count());
}

// A server of event streams: the test accepts, reads and writes.
class event_server {
  public:
    // The next connection, with the request in `request`; the caller closes it.
    int accept() {
        std::unique_lock<std::mutex> held(mutex_);
        REQUIRE(changed_.wait_for(held, test::hang_guard, [&] { return !connections_.empty(); }));
        const int fd = connections_.front();
        connections_.erase(connections_.begin());
        held.unlock();
        request = peer::read_message(fd);
        return fd;
    }
    std::string request;
    std::string url() const { return server_.url(); }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<int> connections_;
    peer::server server_{[this](int fd, int) {
        const std::lock_guard<std::mutex> held(mutex_);
        connections_.push_back(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
        changed_.notify_all();
    }};
};

const std::string head = "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
const std::string job_event = "event: job.state_changed\ndata: {\"to\":\"available\"}\n\n";

// A listener whose calls are counted.
class listening {
  public:
    explicit listening(const std::string& url, const std::vector<std::string>& queues = {"default"},
                       http_client_options options = {}, detail::event_timeouts timeouts = {20s})
        : listener(detail::make_ref<detail::event_listener>(
              detail::make_ref<detail::http_exchange>(*detail::parse_url(url, true), std::move(options)), timeouts,
              queues)) {
        listener->set_callback([notified = notified] { notified->add(); });
        listener->start();
    }
    listening(const listening&) = delete;
    listening& operator=(const listening&) = delete;
    ~listening() { listener->stop(); }

    std::string notice() const { return std::string(record().message); }
    log_record record() const {
        log_record out;
        while (!listener->take_notice(out)) std::this_thread::yield();
        return out;
    }

    const std::shared_ptr<test::counter> notified = std::make_shared<test::counter>();
    const detail::ref<detail::event_listener> listener;
};
}  // namespace

TEST_CASE("event parser: a stream gives the events that the SSE standard defines") {
    const std::string bom = "\xEF\xBB\xBF";
    const std::pair<std::string, const char*> rows[] = {
        {"event: e\ndata: a\n\ndata: b\n\n", "e|a\n;|b\n;0"},
        {"event:e\rdata:a\r\rdata:b\r\r", "e|a\n;|b\n;0"},
        {"event: e\r\ndata: a\r\n\r\n", "e|a\n;0"},
        {bom + "data: a\n\n", "|a\n;0"},
        {"\n" + bom + "data: a\n\n", "0"},                // only at the start
        {"data: a\ndata:  b\ndata\n\n", "|a\n b\n\n;0"},  // several lines; one blank is cut
        {": heartbeat\n\n:\n\ndata: a\n\n", "|a\n;0"},
        {"event: e\n\ndata: a\n\n", "|a\n;0"},  // without data it is no event, and its type is forgotten
        {"id: 7\nretry: 3000\nunknown: x\ndata\n\n", "|\n;3000"},
        {"retry: 3s\n\nretry: -1\n\nretry: 3600001\n\n", "0"},
        {"retry: 10\n\nretry: x\n\n", "10"},
        {"data: a\n", "0"},  // not complete
    };
    for (const auto& row : rows) CHECK_MESSAGE(read_events(row.first) == row.second, row.first);
}

TEST_CASE("event parser: an event above the size limit is truncated, and the next event is read completely") {
    const std::string half(detail::max_event_size / 2, 'x');
    for (const std::string& text :
         {"data: " + half + half, "data: " + half + "\ndata: " + half + "x", "event: e\n:" + half + half + "x"}) {
        const std::string read = read_events(text + "\n\ndata: b\n\n");
        CHECK(read.substr(0, 4) == "cut:");
        CHECK(read.substr(read.size() - 6) == ";|b\n;0");
    }
    CHECK(read_events("data: " + half + "\n\n") == "|" + half + "\n;0");
}

TEST_CASE("queue events: an event announces work unless its type or state says otherwise") {
    const std::string change = "job.state_changed";
    const std::pair<detail::server_event, bool> rows[] = {{{change, R"({"to":"available","from":"scheduled"})"}, true},
                                                          {{change, R"({"to":"active"})"}, false},
                                                          {{change, R"({"to":"active"})", true}, true},
                                                          {{change, R"({"job_id":"x"})"}, true},
                                                          {{change, R"({"to":7})"}, true},
                                                          {{change, "not JSON"}, true},
                                                          {{"job.progress", R"({"progress":1})"}, false},
                                                          {{"queue.paused", "{}"}, false},
                                                          {{"queue.resumed", "{}"}, true},
                                                          {{"system.gap", "{}"}, true},
                                                          {{"server.shutdown", "{}"}, false},
                                                          {{"", ""}, true}};
    for (const auto& row : rows)
        CHECK_MESSAGE(detail::announces_work(row.first) == row.second, (row.first.type + row.first.data));
}

TEST_CASE("queue events: a FETCH after an event gets no job -> the FETCH after the next event is up to 8 ms later") {
    detail::announcement_schedule schedule;
    const time_point now = steady_clock::now();
    schedule.note_event(now);
    CHECK(schedule.due() == now);
    schedule.note_event(now + 1s);  // one call for a burst
    CHECK(schedule.due() == now);
    schedule.note_notified();
    CHECK(schedule.due() == time_point::max());
    steady_clock::duration latest{0};
    for (int i = 0; i < 200; ++i) {
        schedule.note_fetch_result(false);
        schedule.note_event(now);
        CHECK(schedule.due() >= now);
        latest = std::max(latest, schedule.due() - now);
        schedule.note_notified();
    }
    CHECK(latest > 1ms);
    CHECK(latest <= 8ms);
    schedule.note_fetch_result(true);
    schedule.note_event(now);
    CHECK(schedule.due() == now);
}

TEST_CASE("queue events: the worker is notified when a stream opens and when an event announces work") {
    const std::string chunked_head =
        "HTTP/1.1 200 OK\r\ncontent-type: Text/Event-Stream; charset=utf-8\r\n"
        "Transfer-Encoding: chunked\r\n\r\n";
    event_server server;
    http_client_options options;
    options.bearer_token = "secret";
    const listening here(server.url(), {"a b/c"}, options);
    const int fd = server.accept();
    CHECK(server.request.find("GET /ojs/v1/queues/a%20b%2Fc/events HTTP/1.1\r\n") == 0);
    CHECK(server.request.find("Authorization: Bearer secret\r\n") != std::string::npos);
    const auto send = [&](const std::string& text) {
        char size[16];
        std::snprintf(size, sizeof size, "%zx\r\n", text.size());
        CHECK(peer::send_text(fd, size + text + "\r\n"));
    };
    CHECK(!here.listener->is_announcing());
    CHECK(peer::send_text(fd, chunked_head));
    CHECK(here.notified->wait_for(1));
    CHECK(here.listener->is_announcing());
    send("event: job.state_changed\ndata: {\"to\":\"active\"}\n\n:heartbeat\n\n");  // says nothing
    send(job_event + job_event + job_event + "data: {\"to\":\"acti");               // a burst
    CHECK(here.notified->wait_for(2));
    send("ve\"}\n\n");
    send(job_event);
    CHECK(here.notified->wait_for(3));
    here.listener->stop();
    here.listener->start();  // by a FETCH that was in flight
    peer::send_text(fd, "0\r\n\r\n");
    CHECK(peer::read_to_end(fd).empty());  // closed
    CHECK(here.notified->count() == 3);
    ::close(fd);
}

TEST_CASE("queue events: a stream that ends, is silent or fails is opened again, which notifies the worker") {
    for (const std::string first_one : {"ends", "is silent", "fails"}) {
        CAPTURE(first_one);
        const bool opens = first_one != "fails", is_silent = first_one == "is silent";
        event_server server;
        detail::event_timeouts timeouts = {20s};
        if (is_silent) timeouts.silence = 50ms;
        const listening here(server.url(), {"default"}, {}, timeouts);
        const int first = server.accept();
        if (opens) {
            CHECK(peer::send_text(first, head + "retry: 1\n\n"));
            CHECK(here.notified->wait_for(1));
        }
        if (!is_silent) ::shutdown(first, SHUT_RDWR);
        if (opens) CHECK(here.notified->wait_for(2));  // a job may have come meanwhile
        if (!opens) CHECK(here.notice() == "queue events are unavailable; the worker polls");
        CHECK(!here.listener->is_announcing());
        const int second = server.accept();
        CHECK(peer::send_text(second, head));
        CHECK(here.notified->wait_for(opens ? 3 : 1));
        if (!opens) CHECK(here.notice() == "queue events are available again");
        ::close(first);
        ::close(second);
    }
}

TEST_CASE("queue events: a stream cannot be opened -> a notice gives the reason, and no work is announced") {
    const char* const none = "the backend has no queue events; the worker polls";
    const char* const not_now = "queue events are unavailable; the worker polls";
    const std::pair<const char*, const char*> rows[] = {
        {"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", none},
        {"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n", none},
        {"HTTP/1.1 501 No\r\nContent-Length: 0\r\n\r\n", none},
        {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", none},
        {"HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n", not_now},
        {"SSH-2.0-OpenSSH_9.2\r\n", not_now},
        {"", not_now}};
    for (const auto& row : rows) {
        CAPTURE(row.first);
        event_server server;
        const listening here(server.url());
        const int fd = server.accept();
        CHECK(peer::send_text(fd, row.first));
        ::shutdown(fd, SHUT_WR);
        const log_record notice = here.record();
        CHECK(notice.message == row.second);
        REQUIRE(notice.fields.size() == 2);
        CHECK(notice.fields[1].value.find("GET " + server.url() + "/ojs/v1/queues/default/events") == 0);
        CHECK(!here.listener->is_announcing());
        CHECK(here.notified->count() == 0);
        ::close(fd);
    }
}

TEST_CASE("queue events: a response without a complete head -> the notice names the request timeout") {
    event_server server;
    const listening here(server.url(), {"default"}, {}, {100ms});
    const int fd = server.accept();
    CHECK(peer::send_text(fd, "HTTP/1.1 200 OK\r\nContent-Ty"));
    const std::string name = "GET " + server.url() + "/ojs/v1/queues/default/events";
    CHECK(here.record().fields.at(1).value == name + ": no response within 100ms");
    ::close(fd);
}

TEST_CASE("queue events: with several queues, work is announced only while all their streams are open") {
    event_server server;
    const listening here(server.url(), {"a", "b"});
    const int first = server.accept();
    CHECK(peer::send_text(first, head));
    const int second = server.accept();
    CHECK(!here.listener->is_announcing());
    CHECK(peer::send_text(second, head));
    CHECK(here.notified->wait_for(1));
    CHECK(test::eventually([&] { return here.listener->is_announcing(); }));
    for (const int fd : {first, second}) {
        const int before = here.notified->count();
        CHECK(peer::send_text(fd, job_event));
        CHECK(here.notified->wait_for(before + 1));
    }
    ::shutdown(first, SHUT_RDWR);
    CHECK(test::eventually([&] { return !here.listener->is_announcing(); }));
    ::close(first);
    ::close(second);
}

TEST_CASE("queue events: stop() does not wait for a stream that has got no response") {
    event_server server;
    const listening here(server.url());
    const int fd = server.accept();
    const time_point began = steady_clock::now();
    here.listener->stop();
    CHECK(steady_clock::now() - began < 10s);  // the response has 20 s
    ::close(fd);
}

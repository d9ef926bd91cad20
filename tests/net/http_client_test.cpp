#include "processes.hpp"
#include "raw_peer.hpp"

namespace {
// What comes back when the peer answers the one request with `raw` and closes.
result<http_response> answered(const std::string& raw, const std::string& method = "GET", bool byte_by_byte = false) {
    peer::server server([&](int fd, int) {
        peer::read_message(fd);
        for (std::size_t at = 0; at < raw.size(); at += byte_by_byte ? 1 : raw.size()) {
            if (!peer::send_text(fd, raw.substr(at, byte_by_byte ? 1 : raw.size()))) return;
        }
    });
    http_client client = peer::make_client(server.url());
    http_request request = peer::get();
    request.method = method;
    return client.send(request, peer::call());
}

struct interruption : test::pipe_ends {
    void come() const { CHECK(::write(writer(), "x", 1) == 1); }
    http_call call(bool is_repeatable = false) const {
        http_call out = peer::call(peer::soon(), is_repeatable);
        out.interrupt_fd = reader();
        return out;
    }
};

TEST_CASE("http_client: each header is sent once; options replace the client's headers, a request does not") {
    std::string seen;
    peer::server server([&](int fd, int) {
        seen = peer::read_message(fd);
        peer::send_text(fd, peer::ok());
    });
    http_client_options options;
    options.bearer_token = "t0k";
    options.headers = {{"X-All", "1"}};
    http_client client = peer::make_client(server.url() + "/base/", options);
    options.headers = {{"user-agent", "u"}, {"AUTHORIZATION", "Basic b"}, {"host", "h"}};
    http_client replacing = peer::make_client(server.url(), options);
    CHECK(http_request().method == "GET");
    http_request request = peer::post("/x?y", "body");
    request.headers = {{"X-One", "2"},
                       {"content-length", "999"},
                       {"Transfer-Encoding", "chunked"},
                       {"Host", "evil"},
                       {"Authorization", "Basic evil"}};
    REQUIRE(client.send(request, peer::call()));
    CHECK(seen == "POST /base/x?y HTTP/1.1\r\nHost: " + server.url().substr(7) +
                      "\r\nUser-Agent: ojs_shutdown/" OJS_SHUTDOWN_VERSION
                      "\r\nAccept-Encoding: identity\r\n"
                      "X-All: 1\r\nAuthorization: Bearer t0k\r\nX-One: 2\r\nContent-Length: 4\r\n\r\nbody");
    REQUIRE(replacing.send(peer::get(), peer::call()));
    CHECK(seen ==
          "GET / HTTP/1.1\r\nAccept-Encoding: identity\r\nuser-agent: u\r\nAUTHORIZATION: Basic b\r\nhost: h\r\n\r\n");
}

TEST_CASE("http_client: a token file is read for each request; while the file is missing, the first token is sent") {
    const test::temporary_folder folder;
    std::string seen;
    peer::server server([&](int fd, int) {
        seen = peer::read_message(fd);
        peer::send_text(fd, peer::ok("ok", "Connection: close\r\n"));
    });
    http_client_options options;
    options.bearer_token = "over";
    options.bearer_token_file = folder.file("token");
    CHECK(http_client::create(server.url(), options).error().text.find(options.bearer_token_file + "' cannot") == 34);
    std::optional<http_client> client;
    for (const auto& [text, sent] : std::initializer_list<std::pair<const char*, std::string>>{
             {"t1\n", "t1"}, {" t2\r\n", "t2"}, {"", "t1"}, {"a\nb", "t1"}, {"t3", "t3"}}) {
        std::ofstream(options.bearer_token_file) << text;
        if (!client) client = peer::make_client(server.url(), options);
        REQUIRE(client->send(peer::get(), peer::call()));
        CHECK(seen.find("\r\nAuthorization: Bearer " + sent + "\r\n") != std::string::npos);
    }
}

TEST_CASE("http_client: a target, method, header or token that could break the request syntax is refused") {
    http_client client = peer::make_client("http://127.0.0.1:1");
    const auto check_refused = [&](const http_request& request) {
        CHECK(test::code_of(client.send(request, peer::call())) == errc::invalid_argument);
    };
    for (const std::string& bad : {std::string(), std::string("x"), std::string("/a b"), std::string("/a\r\nX: y"),
                                   std::string("/a\n"), std::string("/\x7f"), std::string("/a\0", 3)})
        check_refused(peer::get(bad));
    http_request request = peer::get();
    for (const char* bad : {"", "GET /", "G\r\n", "GET\n"}) {
        request.method = bad;
        check_refused(request);
    }
    request = peer::get();
    http_client_options options;
    for (const http_header& bad :
         {http_header{"A", "b\r\nC: d"}, http_header{"A", "b\n"}, http_header{"A\r\n", "b"}, http_header{"", "b"},
          http_header{"A:", "b"}, http_header{"A", std::string(1, '\0')}}) {
        request.headers = options.headers = {bad};
        check_refused(request);
        CHECK_FALSE(http_client::create("http://h", options));
    }
    for (const char* name : {"content-length", "Transfer-Encoding", "CONNECTION", "X-Twice"}) {
        options.headers = {{"x-twice", "1"}, {name, "identity"}};
        const result<http_client> refused = http_client::create("http://h", options);
        REQUIRE_FALSE(refused);
        CHECK(refused.error().text.find(name) != std::string::npos);
    }
    options.headers = {};
    options.bearer_token = "a\r\nb";
    CHECK_FALSE(http_client::create("http://h", options));
}

TEST_CASE("http_client: responses of every status and framing are returned as values") {
    const std::pair<std::string, std::string> responses[] = {
        {peer::ok("hello", "X-Y: z\r\n"), "200 hello z"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nab\r\n1\r\nc\r\n0\r\nT: t\r\n\r\n", "200 abc "},
        {"HTTP/1.0 200\r\n\r\nuntil the end", "200 until the end "},
        {"HTTP/1.1 200 OK\r\n\r\n{\"a\":[]}", "200 {\"a\":[]} "},
        {"HTTP/1.1 302 Found\r\nLocation: http://other/\r\nContent-Length: 0\r\n\r\n", "302  "},
        {"HTTP/1.1 204 No Content\r\n\r\n", "204  "},
        {"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n", "304  "},
        {"HTTP/1.1 503 No\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n", "503  "},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\n" + peer::ok("x"), "200 x "},
        {peer::ok("1e999"), "200 1e999 "}};
    for (const bool byte_by_byte : {false, true}) {
        for (const auto& each : responses) {
            CAPTURE(each.first);
            const result<http_response> got = answered(each.first, "GET", byte_by_byte);
            REQUIRE(got);
            CHECK(std::to_string(got->status) + " " + got->body + " " + std::string(find_header(got->headers, "x-y")) ==
                  each.second);
        }
    }
    CHECK(answered("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "HEAD")->body == "");
}

TEST_CASE("http_client: a truncated response fails as disconnected, a malformed response as bad_response") {
    std::string flood;
    for (int i = 0; i < 1000; ++i) flood += "HTTP/1.1 100 Continue\r\n\r\n";
    const std::pair<errc, std::vector<std::string>> rows[] = {
        {errc::disconnected,
         {"", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "HTTP/1.1 200 OK\r\nConte",
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "HTTP/1.1 200 OK\r\n\r\n{\"a\":[",
          "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", flood}},
        {errc::bad_response,
         {"garbage\r\n\r\n", "HTTP/1.1 2x0 OK\r\n\r\n", "HTTP/1.1 099 X\r\n\r\n", "HTTP/1.1 600 X\r\n\r\n",
          "HTTP/2.0 200 X\r\n\r\n", "HTTP/1.1  200 X\r\n\r\n", "HTTP/1.1 200 OK\r\nA b\r\n\r\n",
          "HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n", "HTTP/1.1 101 X\r\n\r\n" + peer::ok(),
          "HTTP/1.1 103 X\r\nContent-Length: 2\r\n\r\n" + peer::ok(), peer::ok("x", "Content-Encoding: gzip\r\n")}}};
    for (const auto& [code, texts] : rows) {
        for (const std::string& raw : texts) {
            const result<http_response> got = answered(raw);
            CAPTURE(raw.substr(0, 80));
            REQUIRE(test::code_of(got) == code);
            CHECK(got.error().text.find("127.0.0.1:") != std::string::npos);
            CHECK(got.error().text.size() < 200);
        }
    }
}

TEST_CASE("http_client: the deadline ends a request to a silent peer and closes the connection") {
    for (const bool is_interruptible : {false, true}) {
        std::atomic<bool> answers{false};
        peer::server server([&](int fd, int) {
            peer::read_message(fd);
            if (answers) peer::send_text(fd, peer::ok());
            peer::read_to_end(fd);  // the client closes first
        });
        http_client client = peer::make_client(server.url());
        const interruption never;
        http_call call = is_interruptible ? never.call() : peer::call();
        peer::expire_after_should_send(call, 2);  // the connection is there
        CHECK(test::code_of(client.send(peer::get(), call)) == errc::timed_out);
        CHECK(steady_clock::now() >= call.deadline);
        answers = true;
        CHECK(client.send(peer::get(), peer::call()));
        CHECK(server.connections() == 2);
    }
}

TEST_CASE("http_client: a missing listener, socket file or host fails as unreachable") {
    const peer::reserved_port port;
    const std::string url = "http://127.0.0.1:" + port.text();
    const result<http_response> got = peer::make_client(url).send(peer::get(), peer::call());
    REQUIRE(test::code_of(got) == errc::unreachable);
    CHECK(got.error().sys_errno == ECONNREFUSED);
    CHECK(got.error().text.find("GET " + url + "/: cannot connect to " + url.substr(7) + ": ") == 0);
    for (const char* other : {"unix:/nonexistent/socket", "http://does-not-exist.invalid"}) {
        const http_call call = peer::call(steady_clock::now() + 2s);
        CHECK(test::code_of(peer::make_client(other).send(peer::get(), call)) == errc::unreachable);
    }
}

TEST_CASE("http_client: a connection that announced its end, or received unexpected bytes, is not reused") {
    for (const std::string& answer :
         {peer::ok("x", "Connection: close\r\n"), peer::ok("x", "Connection: a\r\nConnection: b, CLOSE\r\n"),
          std::string("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx"), peer::ok("x") + "surplus",
          peer::ok("x") + peer::ok("HTTP/1.1 not requested"),
          std::string("HTTP/1.1 204 No\r\nContent-Length: 2\r\n\r\n"),
          std::string("HTTP/1.1 204 No\r\nContent-Length: 0\r\nContent-Length: x\r\n\r\n"),
          std::string("HTTP/1.1 304 No\r\nTransfer-Encoding: chunked\r\n\r\n")}) {
        CAPTURE(answer);
        peer::server server([&](int fd, int) {
            peer::read_message(fd);
            peer::send_text(fd, answer);
            peer::read_to_end(fd);  // the client closes first
        });
        {
            http_client client = peer::make_client(server.url());
            for (int i = 0; i < 2; ++i) {
                const result<http_response> got = client.send(peer::get(), peer::call());
                REQUIRE(got);
                CHECK(got->body == (got->status == 200 ? "x" : ""));
            }
        }
        CHECK(server.connections() == 2);
    }
}

TEST_CASE("http_client: an idle connection that the peer closed or sent bytes on gets no request") {
    for (const bool closes : {true, false}) {
        std::atomic<int> requests{0};
        test::event done;
        peer::server server([&](int fd, int connection) {
            requests += peer::read_message(fd).empty() ? 0 : 1;
            peer::send_text(fd, peer::ok(std::to_string(connection)));
            if (connection > 0) return;
            closes ? ::shutdown(fd, SHUT_RDWR) : peer::send_text(fd, peer::ok("not requested"));
            peer::await_arrival(fd);
            done.set();
            requests += closes || peer::read_message(fd).empty() ? 0 : 1;
        });
        http_client client = peer::make_client(server.url());
        REQUIRE(client.send(peer::get(), peer::call()));
        done.wait();
        CHECK(client.send(peer::post("/", "not to be sent twice"), peer::call(peer::soon(), true))->body == "1");
        CHECK(requests == 2);
        CHECK(server.connections() == 2);
    }
}

TEST_CASE("http_client: two responses to one request on a kept connection are an error") {
    peer::server twice([](int fd, int) {
        for (int i = 0; !peer::read_message(fd).empty(); ++i)
            peer::send_text(fd, i > 0 ? peer::ok("late") + peer::ok() : peer::ok());
    });
    http_client client = peer::make_client(twice.url());
    REQUIRE(client.send(peer::get(), peer::call()));
    CHECK(test::code_of(client.send(peer::get(), peer::call())) == errc::disconnected);
}

// As peer::server, but with a thread for each connection. What its clients keep open must have ended before.
class parallel_server {
  public:
    explicit parallel_server(peer::server::script play)
        : accepts_([this, play](int fd, int number) {
              connections_.all.emplace_back([play, number, copy = ::dup(fd)] {
                  play(copy, number);
                  ::close(copy);
              });
          }) {}
    const peer::server& operator*() const { return accepts_; }

  private:
    struct joined {
        ~joined() {
            for (std::thread& each : all) each.join();
        }
        std::vector<std::thread> all;
    };
    joined connections_;
    peer::server accepts_;  // ended first
};

TEST_CASE("http_client: a kept connection is dead -> all idle connections are closed") {
    constexpr int kept = 4;
    const struct {
        bool resets;  // else it is silent
        bool is_repeatable;
        std::optional<errc> failure;
    } rows[] = {{false, false, errc::timed_out},
                {false, true, errc::timed_out},
                {true, false, errc::disconnected},
                {true, true, {}}};
    for (const auto& row : rows) {
        CAPTURE(&row - rows);
        std::atomic<bool> dead{false};
        test::counter requests;
        test::counter ended;
        const parallel_server server([&](int fd, int number) {
            while (!peer::read_message(fd).empty() && !(dead && number < kept)) {
                requests.add();
                requests.wait_for(kept);  // so that each of them has a connection
                peer::send_text(fd, peer::ok());
            }
            row.resets ? peer::reset(fd) : static_cast<void>(peer::read_to_end(fd));
            ended.add();
        });
        http_client client = peer::make_client((*server).url());
        test::at_once(kept, [&](int) { CHECK(client.send(peer::get(), peer::call())); });
        CHECK((*server).connections() == kept);
        dead = true;
        http_call call = peer::call(peer::soon(), row.is_repeatable);
        if (!row.resets) peer::expire_after_should_send(call, 1);
        CHECK(test::code_of(client.send(peer::get(), call)) == row.failure);
        CHECK(ended.wait_for(kept));
        CHECK(client.send(peer::get(), peer::call()));
        CHECK((*server).connections() == kept + 1);
    }
}

TEST_CASE("http_client: a request on a kept connection gets no response -> connections idle since before are closed") {
    test::counter requests;
    test::event closed, end;
    const parallel_server server([&](int fd, int number) {
        while (!peer::read_message(fd).empty()) {
            if (requests.add() > 2 && number < 2) end.wait();
            requests.wait_for(2);
            peer::send_text(fd, peer::ok());
        }
        closed.set();
    });
    http_client client = peer::make_client((*server).url());
    const auto succeeds = [&](int) { CHECK(client.send(peer::get(), peer::call())); };
    test::at_once(2, succeeds);
    std::thread stalled(succeeds, 0);
    CHECK(requests.wait_for(3));
    CHECK(closed.wait());
    for (int i = 0; i < 2; ++i) succeeds(i);
    CHECK((*server).connections() == 3);
    end.set();
    stalled.join();
    succeeds(0);
    CHECK((*server).connections() == 3);
}

TEST_CASE("http_client: a request that times out on a new connection leaves idle connections open") {
    test::counter requests;
    const parallel_server server([&](int fd, int number) {
        while (!peer::read_message(fd).empty()) {
            if (requests.add() == 1) requests.wait_for(2);
            if (number == 0) peer::send_text(fd, peer::ok());
        }
    });
    http_client client = peer::make_client((*server).url());
    std::thread first([&] { CHECK(client.send(peer::get(), peer::call())); });
    CHECK(requests.wait_for(1));
    http_call call = peer::call();
    peer::expire_after_should_send(call, 2);  // the connection is there
    CHECK(test::code_of(client.send(peer::get(), call)) == errc::timed_out);
    first.join();
    CHECK(client.send(peer::get(), peer::call()));
    CHECK((*server).connections() == 2);
}

TEST_CASE("http_client: a body that is larger than the limit is a bad response, in any framing") {
    const struct {
        const char* response;  // the connection stays open
        bool succeeds = false;
    } rows[] = {{"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999\r\n\r\nabcde"},
                {"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef"},
                {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\nabcde"},
                {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\nde"},
                {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n1\r\n"},
                {"HTTP/1.1 200 OK\r\n\r\nabcdef"},
                {"HTTP/1.1 502 Bad\r\nContent-Length: 6\r\n\r\nabcdef"},
                {"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nabcdef"},
                {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde", true},
                {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n", true}};
    for (const auto& row : rows) {
        CAPTURE(row.response);
        peer::server server([&](int fd, int) {
            while (!peer::read_message(fd).empty()) peer::send_text(fd, row.response);
        });
        http_client_options options;
        options.max_body = 5;
        http_client client = peer::make_client(server.url(), options);
        for (int i = 0; i < 2; ++i) {
            const auto failure = test::code_of(client.send(peer::get(), peer::call()));
            CHECK(failure == (row.succeeds ? std::nullopt : std::optional<errc>(errc::bad_response)));
        }
        CHECK(server.connections() == (row.succeeds ? 1 : 2));
    }
}

TEST_CASE("http_client: a request whose connection breaks is sent again only if it is repeatable, at most once") {
    struct {
        bool is_repeatable;
        int answers_on;  // the connection that gets an answer; the ones before break
        bool with_reset;
        const char* sends;  // before it breaks
        int requests;
        std::optional<errc> failure;
        int may_send = 9;  // so often should_send is true: before it connects, and before it sends
    } const rows[] = {{false, 1, false, "", 1, errc::disconnected},
                      {false, 1, true, "", 1, errc::disconnected},
                      {false, 1, true, "HTTP/1.1 200 OK\r\n\r\nno leng", 1, errc::disconnected},
                      {true, 1, false, "", 2, {}},
                      {true, 1, true, "", 2, {}},
                      {true, 1, false, "HTTP/1.1 200 OK\r\nContent-Le", 2, {}},
                      {true, 2, false, "", 2, errc::disconnected},
                      {true, 2, false, "", 1, errc::disconnected, 2},  // and not cancelled: it was sent
                      {true, 2, true, "HTTP/1.1 200 OK\r\nContent-Le", 2, errc::disconnected},
                      {false, 0, false, "", 1, {}},
                      {true, 1, false, "garbage\r\n", 1, errc::bad_response}};
    for (const auto& row : rows) {
        CAPTURE(&row - rows);
        std::atomic<int> requests{0};
        peer::server server([&](int fd, int connection) {
            requests += peer::read_message(fd).empty() ? 0 : 1;
            peer::send_text(fd, connection == row.answers_on ? peer::ok() : row.sends);
            if (connection != row.answers_on && row.with_reset) peer::reset(fd);
        });
        http_call call = peer::call(peer::soon(), row.is_repeatable);
        call.should_send = [asked = 0, &row]() mutable { return ++asked <= row.may_send; };
        CHECK(test::code_of(peer::make_client(server.url()).send(peer::post("/", "x"), call)) == row.failure);
        CHECK(requests == row.requests);
    }
}

TEST_CASE("http_client: a request that is cancelled or past its deadline is not sent") {
    std::atomic<int> requests{0};
    peer::server server([&](int fd, int) {
        while (!peer::read_message(fd).empty()) {
            ++requests;
            peer::send_text(fd, peer::ok());
        }
    });
    {
        http_client client = peer::make_client(server.url());
        CHECK(test::code_of(client.send(peer::get(), peer::call(steady_clock::now()))) == errc::timed_out);
        CHECK(server.connections() == 0);
        http_call call = peer::call();
        for (const int until : {0, 1}) {  // given up before connecting; after it
            call.should_send = [asked = 0, until]() mutable { return asked++ < until; };
            CHECK(test::code_of(client.send(peer::get(), call)) == errc::cancelled);
        }
        CHECK(client.send(peer::get(), peer::call()));
    }
    CHECK(requests == 1);
}

TEST_CASE("http_client: a 413 before the end of a 4 MB body is returned, and an early 200 is an error") {
    const http_request request = peer::post("/", std::string(4000000, 'x'));
    peer::server reader(
        [](int fd, int) { peer::send_text(fd, peer::ok(std::to_string(peer::read_message(fd).size()))); });
    const result<http_response> read = peer::make_client(reader.url()).send(request, peer::call(deadline_after(60s)));
    REQUIRE(read);
    CHECK(std::stoul(read->body) > request.body.size());
    peer::server server([](int fd, int) {
        std::string head;
        peer::read_some(fd, head);
        peer::send_text(fd, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        ::shutdown(fd, SHUT_WR);
        peer::read_to_end(fd);
    });
    http_client client = peer::make_client(server.url());
    const result<http_response> got = client.send(request, peer::call(deadline_after(60s)));
    REQUIRE(got);
    CHECK(got->status == 413);
    peer::server early([](int fd, int) { peer::send_text(fd, peer::readable(fd) ? peer::ok() : ""); });
    CHECK(test::code_of(peer::make_client(early.url()).send(request, peer::call())) == errc::disconnected);
}

TEST_CASE("http_client: a child of fork() opens its own connection and leaves the parent's usable") {
    std::atomic<int> kept{-1};
    peer::server server([&](int fd, int connection) {
        if (connection == 0) kept = ::dup(fd);  // stays open when this returns
        std::string request;
        peer::read_some(fd, request);
        peer::send_text(fd, peer::ok(std::to_string(connection)));
    });
    http_client client = peer::make_client(server.url());
    CHECK(client.send(peer::get(), peer::call())->body == "0");
    const pid_t child = test::forked([&] {
        const result<http_response> answer = client.send(peer::get(), peer::call());
        return answer && answer->body == "1" ? 0 : 1;
    });
    CHECK(test::status_of(child) == 0);
    std::thread answers([&] {
        std::string request;
        peer::read_some(kept, request);
        peer::send_text(kept, peer::ok("0 again"));
    });
    CHECK(client.send(peer::get(), peer::call())->body == "0 again");
    answers.join();
    ::close(kept);
}

TEST_CASE("http_client: an interruption at any moment ends the call without a retry and closes its connection") {
    enum moment { before, connecting, responding };
    const struct {
        moment when;
        bool is_repeatable;
        std::string response;  // on the first connection
        int answered = 0;      // requests on it before
    } rows[] = {{before, true, ""},
                {before, false, peer::ok("late")},
                {connecting, false, ""},
                {responding, false, ""},
                {responding, true, "", 3},
                {responding, false, "HTTP/1.1 100 Continue\r\n\r\n"},
                {responding, false, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"}};
    for (const auto& row : rows) {
        CAPTURE(&row - rows);
        const interruption it, over;
        std::atomic<int> requests{0};
        peer::server server([&](int fd, int connection) {
            while (!peer::read_message(fd).empty()) {
                const bool is_kept = ++requests <= row.answered;
                if (connection == 0 && row.when == before) peer::readable(over.reader());
                peer::send_text(fd, connection == 0 && !is_kept ? row.response : peer::ok("next"));
                if (connection == 0 && !is_kept && row.when == responding) it.come();
            }
        });
        http_client client = peer::make_client(server.url());
        http_call call = it.call(row.is_repeatable);
        for (int i = 0; i < row.answered; ++i) CHECK(client.send(peer::get(), call));
        CHECK(server.connections() == (row.answered > 0 ? 1 : 0));
        if (row.when == before) it.come();
        call.should_send = [&, asked = 0]() mutable {  // before it connects, and then before it sends
            if (row.when == connecting && asked++ == 0) it.come();
            return true;
        };
        CHECK(test::code_of(client.send(peer::get(), call)) == errc::cancelled);
        over.come();
        CHECK(peer::readable(it.reader(), 0));  // it is for its owner to take away
        const result<http_response> next = client.send(peer::get(), peer::call());
        REQUIRE(next);
        CHECK(next->body == "next");
        CHECK(requests == row.answered + 2);
        CHECK(server.connections() == 2);
    }
}
}  // namespace

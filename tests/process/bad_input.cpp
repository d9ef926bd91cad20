// What a worker makes of a wrong environment, a backend that is absent, broken or hostile, and handlers that throw,
// fork and fail: a clear message, the right exit status, nothing lost, no growth, no hang.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <mutex>

#include "harness.hpp"

using namespace test;

namespace {

// A worker that must not start: status 64, and every text in its output.
void refuses(const environment& extra, const std::vector<std::string>& texts) {
    process worker = start_worker("http://127.0.0.1:1", "w", extra);
    CHECK(worker.wait() == 64);
    for (const std::string& text : texts) {
        CHECK_MESSAGE(worker.output().find(text) != std::string::npos,
                      "no '" << text << "' in: " << worker.output());
    }
}

long resident_kib(pid_t pid) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
        if (line.compare(0, 6, "VmRSS:") == 0) return std::strtol(line.c_str() + 6, nullptr, 10);
    }
    return 0;
}

std::string http(const std::string& status, const std::string& body, const std::string& more = "") {
    return "HTTP/1.1 " + status + "\r\nContent-Type: application/json\r\n" + more +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// Answers FETCH once with `jobs`, then with none; keeps what ACK and FAIL sent.
class scripted_backend {
  public:
    explicit scripted_backend(std::string jobs) : jobs_(std::move(jobs)) {
        auto started = ojs::http_server::start(
            "127.0.0.1:0", [this](const ojs::http_request& request) { return answer(request); });
        REQUIRE(started);
        server_.push_back(std::move(*started));
    }
    std::string url() const { return "http://" + server_.front().address(); }
    std::vector<json> reports() {
        const std::lock_guard<std::mutex> held(mutex_);
        return reports_;
    }
    std::vector<std::string> bodies() {
        const std::lock_guard<std::mutex> held(mutex_);
        return bodies_;
    }

  private:
    ojs::http_response answer(const ojs::http_request& request) {
        const std::lock_guard<std::mutex> held(mutex_);
        ojs::http_response out;
        out.body = "{}";
        if (request.target == "/ojs/v1/workers/fetch") {
            out.body = "{\"jobs\":" + (jobs_.empty() ? "[]" : jobs_) + "}";
            jobs_.clear();
        } else if (request.target != "/ojs/v1/workers/heartbeat") {
            bodies_.push_back(request.body);
            reports_.push_back(json::parse(request.body));
        }
        return out;
    }

    std::mutex mutex_;
    std::string jobs_;
    std::vector<json> reports_;
    std::vector<std::string> bodies_;
    std::vector<ojs::http_server> server_;
};

}  // namespace

TEST_CASE("bad values in the environment: status 64, the variable and the value named") {
    for (const char* variable :
         {"OJS_SHUTDOWN_GRACE_PERIOD", "OJS_GRACE_PERIOD", "OJS_SHUTDOWN_TIMEOUT", "OJS_HEARTBEAT_INTERVAL",
          "OJS_POLL_INTERVAL", "OJS_VISIBILITY_TIMEOUT", "OJS_REQUEST_TIMEOUT", "OJS_STOP_TIMEOUT",
          "OJS_CANCEL_WAIT", "OJS_REPEAT_SIGNAL_GAP", "OJS_PROGRESS_INTERVAL"}) {
        refuses({{variable, "30 s"}}, {variable, "'30 s'"});
        refuses({{variable, ""}}, {variable});
    }
    for (const char* value : {"-1", "1e9s", "99999999999999999999", "soon", "1s1m", "0x10", "1.5s", " 5s"}) {
        refuses({{"OJS_SHUTDOWN_GRACE_PERIOD", value}}, {"OJS_SHUTDOWN_GRACE_PERIOD", value});
    }
    for (const char* value : {"0", "-3", "ten", "", "1e3", "4294967297", "5 "}) {
        refuses({{"OJS_CONCURRENCY", value}}, {"OJS_CONCURRENCY", value});
    }
    refuses({{"OJS_LOG_LEVEL", "loud"}}, {"OJS_LOG_LEVEL", "'loud'", "debug"});
    refuses({{"OJS_LOG_FORMAT", "xml"}}, {"OJS_LOG_FORMAT", "'xml'", "logfmt"});
    refuses({{"OJS_QUEUES", "a,,b"}}, {"OJS_QUEUES", "'a,,b'"});
    refuses({{"OJS_QUEUES", ""}}, {"OJS_QUEUES"});
    refuses({{"OJS_URL", ""}}, {"OJS_URL"});
    refuses({{"OJS_STOP_SIGNALS", "TERM,FOO"}}, {"OJS_STOP_SIGNALS='TERM,FOO'", "'FOO' is not a signal"});
    refuses({{"OJS_STOP_SIGNALS", "TERM,KILL"}}, {"OJS_STOP_SIGNALS", "SIGKILL cannot be handled"});
    refuses({{"OJS_HEARTBEAT_INTERVAL", "40s"}}, {"heartbeat_interval", "visibility_timeout"});
    refuses({{"OJS_AUTH_TOKEN", "two\nlines"}}, {"token"});
}

TEST_CASE("URLs that cannot be used: status 64, the variable, the value and the reason") {
    const std::vector<std::pair<std::string, std::string>> urls = {{"redis://127.0.0.1", "http://"},
                                                                   {"http://127.0.0.1:99999", "port"},
                                                                   {"http://127.0.0.1:http", "port"},
                                                                   {"http://", "host"},
                                                                   {"127.0.0.1:8080", "http://"}};
    for (const auto& [url, reason] : urls) {
        refuses({{"OJS_URL", url}}, {"OJS_URL", "'" + url + "'", reason});
    }
    refuses({{"OJS_URL", "https://backend.example"}},
            {"url (OJS_URL) 'https://backend.example': ", "ojs_tls.hpp"});
    process worker = start_worker("http://user:secret@host", "w");
    CHECK(worker.wait() == 64);
    CHECK(worker.prints("password"));
    CHECK(worker.count("secret") == 0);
}

TEST_CASE("no handler, a second installer, a foreign handler: status 64 and the reason") {
    refuses({{"TEST_MODE", "no_handler"}}, {"no handler is registered"});
    refuses({{"TEST_MODE", "second_installer"}}, {"already have an installer"});
    refuses({{"TEST_MODE", "foreign_handler"}}, {"SIGTERM already has a handler", "foreign handler kept"});
}

TEST_CASE("no backend: the worker keeps trying, ever more slowly, and SIGTERM ends it at once") {
    process worker = start_worker("http://127.0.0.1:1", "w");
    REQUIRE(eventually([&] { return worker.count("FETCH failed") >= 4; }));
    CHECK(worker.prints("127.0.0.1:1"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    // 0.1 + 0.2 + 0.4 s less up to half: a fixed pause of the poll interval would have tried 20 times.
    CHECK(worker.count("FETCH failed") <= 8);
}

TEST_CASE("a backend that never answers does not keep a worker from stopping") {
    backend jobs({"--delay", "60s"});
    process worker =
        start_worker(jobs.url(), "w", {{"OJS_STOP_TIMEOUT", "500ms"}, {"OJS_REQUEST_TIMEOUT", "700ms"}});
    REQUIRE(jobs.event(worker_event("w", "fetch")).what == json::kind::object);
    worker.signal(SIGTERM);
    // The FETCH on the wire is awaited until its own deadline: its answer might hold jobs.
    CHECK(worker.wait() == 0);
}

TEST_CASE("jobs that cannot be run: unknown type, no id, bad args") {
    scripted_backend jobs(
        R"([{"id":"a","type":"no.such","args":[]}, {"type":"test.sleep","args":[0]}, 17, null,
        {"id":"b","type":"test.sleep","args":{"x":1}}, {"id":"c","args":[]}, {"id":5,"type":"test.sleep","args":[]},
        {"id":"d","type":"test.sleep","args":["text"]}, {"id":"e","type":"test.sleep"}])");
    process worker = start_worker(jobs.url(), "w");
    REQUIRE(eventually([&] { return jobs.reports().size() >= 5; }));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 75);  // nobody could be told of those without an id
    INFO(worker.output());
    CHECK(worker.count("job could not be reported") == 4);
    CHECK(worker.count("the job has no id") >= 3);
    std::map<std::string, json> by_id;
    for (const json& report : jobs.reports()) by_id[report["job_id"].text] = report;
    CHECK(by_id.size() == 5);
    CHECK(by_id["a"]["error"]["message"].text.find("'no.such'") != std::string::npos);
    for (const char* id : {"a", "b", "c", "e"}) {
        const bool is_unknown = id == std::string("a");
        CHECK(by_id[id].has("error"));
        CHECK(by_id[id]["error"]["retryable"].what == json::kind::boolean);
        CHECK(by_id[id]["error"]["retryable"].flag == is_unknown);
        CHECK(by_id[id]["requeue"].flag == is_unknown);
    }
    CHECK_FALSE(by_id["d"].has("error"));
    CHECK(worker.count("the id is not a string in UTF-8: 5") >= 1);
}

TEST_CASE("an answer to FETCH that was cut off runs nothing, and is an error in the log") {
    raw_server server;
    const std::string body = R"({"jobs":[{"id":"j1","type":"test.sleep","args":[0],"timeout_ms":60000}]})";
    server.answer_with("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body.substr(0, body.find("0000}")));
    process worker = start_worker(server.url(), "w");
    CHECK(worker.prints("not a complete JSON object"));
    CHECK(worker.prints("jobs it may have claimed come back"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    CHECK(worker.count("start j1") == 0);
}

TEST_CASE("an id that is no string in UTF-8 is named and its job is not reported: status 75") {
    scripted_backend jobs(
        "[{\"id\":\"a\xff\",\"type\":\"test.sleep\",\"args\":[0]},"
        R"({"id":"b\ud800","type":"test.sleep","args":[0]},{"id":9007199254740993,"type":"test.sleep","args":[0]}])");
    process worker = start_worker(jobs.url(), "w");
    CHECK(worker.prints("xff"));
    CHECK(worker.prints("ud800"));
    CHECK(worker.prints("9007199254740993"));
    CHECK(worker.count("the id is not a string in UTF-8") >= 3);
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 75);
    CHECK(worker.count("start ") == 0);
    CHECK(jobs.bodies().empty());
}

TEST_CASE("handlers that throw or return oddities") {
    backend jobs({"--retry-delay", "1h"});
    process worker = start_worker(jobs.url(), "w");
    const std::string thrown = jobs.push_one("test.throw", "[]");
    const std::string odd = jobs.push_one("test.throw_int", "[]");
    const std::string discarded = jobs.push_one("test.discard", "[]");
    const std::string result = jobs.push_one("test.result", "[12345678901234567890,{\"a\":null}]");
    const std::string not_json = jobs.push_one("test.not_json", "[]");
    CHECK(jobs.reaches(thrown, "retryable"));
    CHECK(jobs.reaches(odd, "retryable"));
    CHECK(jobs.reaches(discarded, "discarded"));
    CHECK(jobs.reaches(result, "completed"));
    CHECK(jobs.reaches(not_json, "completed"));
    CHECK(jobs.event(job_event(thrown, "nack"))["message"].is("thrown on purpose"));
    CHECK(jobs.event(job_event(odd, "nack"))["message"].text.find("not a std::exception") !=
          std::string::npos);
    CHECK(jobs.job(result)["result"].items.front().text == "12345678901234567890");
    CHECK(jobs.job(not_json)["result"].is("not { json"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
}

TEST_CASE("a result larger than the backend takes does not lose the job") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w");
    const std::string id = jobs.push_one("test.big", "[9000000]");
    CHECK(jobs.reaches(id, "completed"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
}

TEST_CASE("fork in a handler: the child does not report the job, and a signal ends it") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w");
    const std::string forked = jobs.push_one("test.fork", "[]");
    CHECK(jobs.reaches(forked, "completed"));
    CHECK(jobs.job(forked)["result"].is("exit 70"));
    CHECK(jobs.count(job_event(forked, "ack")) == 1);
    CHECK(worker.count("a child made by fork()") == 1);

    const std::string paused = jobs.push_one("test.fork_pause", "[]");
    REQUIRE(worker.prints("\nchild "));
    const std::string& log = worker.output();
    const auto child = static_cast<pid_t>(std::strtol(log.c_str() + log.find("\nchild ") + 7, nullptr, 10));
    REQUIRE(child > 1);
    ::kill(child, SIGTERM);
    CHECK(jobs.reaches(paused, "completed"));
    CHECK(jobs.job(paused)["result"].is("signal 15"));
    CHECK(worker.output().find("phase draining") == std::string::npos);
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
}

TEST_CASE("hostile answers to FETCH and BEAT: the worker lives on, does not grow, and still stops") {
    std::string deep(200000, '[');
    std::string headers = "HTTP/1.1 200 OK\r\n";
    for (int i = 0; i < 20000; ++i) headers += "X-Endless-" + std::to_string(i) + ": more\r\n";
    const std::vector<std::string> answers = {
        "",
        "garbage\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"jobs\":[",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nContent-Length: 4000000000\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
        "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
        std::string(100, '\0'),
        headers,
        http("200 OK", deep),
        http("200 OK", "{\"jobs\":" + deep),
        http("200 OK", "{\"jobs\":[{\"id\":\"a\",\"type\":\"t\",\"args\":[1e999]}]}"),
        http("200 OK", "{\"jobs\":17,\"state\":{},\"directive\":[\"terminate\"],\"jobs_extended\":{}}"),
        http("200 OK", "[]"),
        http("200 OK", "null"),
        http("200 OK", "{\"jobs\":[]} trailing"),
        http("200 OK", "\xff\xfe{\"jobs\":[]}"),
        http("400 Bad Request", deep),
        http("429 Too Many", "{}", "Retry-After: -5\r\n"),
        http("503 Unavailable", "{}", "Retry-After: 99999999999999999999\r\n"),
        http("500 Oops", std::string(100000, 'x')),
        http("999 What", "{}")};
    raw_server server;
    // FETCH backs off after errors; the beats keep asking.
    process worker = start_worker(
        server.url(), "w",
        {{"OJS_HEARTBEAT_INTERVAL", "10ms"}, {"OJS_REQUEST_TIMEOUT", "300ms"}, {"OJS_LOG_LEVEL", "error"}});
    const auto all_answers = [&](int each) {
        for (const std::string& answer : answers) {
            server.answer_with(answer);
            const int before = server.answered();
            REQUIRE_MESSAGE(eventually([&] { return server.answered() >= before + each || worker.ended(); }),
                            "no further request after: " << answer.substr(0, 60));
            REQUIRE_MESSAGE(!worker.ended(), answer.substr(0, 60) << "\n" << worker.output());
        }
    };
    all_answers(4);
    const long before = resident_kib(worker.pid());
    all_answers(8);
    const long after = resident_kib(worker.pid());
    MESSAGE(server.answered() << " bad answers; resident memory " << before << " KiB, then " << after
                              << " KiB");
#ifndef __SANITIZE_ADDRESS__  // which keeps freed memory
    CHECK(after < before + 8 * 1024);
#endif
    CHECK(worker.output().size() < 100000);  // no echo of what came
    server.answer_with(answers[2]);
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
}

TEST_CASE("hostile answers to ACK: the job is named, the worker ends with status 75") {
    raw_server server;
    const gate end;
    server.answer_with(
        http("200 OK", "{\"jobs\":[{\"id\":\"only\",\"type\":\"test.gate\",\"args\":" + end.args() + "}]}"));
    process worker = start_worker(server.url(), "w",
                                  {{"OJS_CONCURRENCY", "1"},
                                   {"OJS_SHUTDOWN_GRACE_PERIOD", "100ms"},
                                   {"OJS_STOP_TIMEOUT", "500ms"},
                                   {"OJS_REQUEST_TIMEOUT", "300ms"}});
    REQUIRE(worker.prints("start only"));
    server.answer_with("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{");
    end.open();
    REQUIRE(worker.prints("ACK failed"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 75);
    CHECK(worker.prints("job could not be reported"));
    CHECK(worker.prints("job_id=only"));
}

TEST_CASE(
    "a registration route that answers 500: the worker works and says so, and its last beat is its last "
    "word") {
    std::mutex mutex;
    std::vector<std::string> asked;
    auto server = ojs::http_server::start("127.0.0.1:0", [&](const ojs::http_request& request) {
        const std::lock_guard<std::mutex> held(mutex);
        const bool registers = request.target.find("/ojs/v1/workers/register") == 0;
        const bool last = request.body.find("\"state\":\"terminate\"") != std::string::npos;
        asked.push_back(request.method + (registers ? " register" : last ? " last" : " other"));
        ojs::http_response out;
        out.status = registers ? 500 : 200;
        out.body = request.target == "/ojs/v1/workers/fetch" ? "{\"jobs\":[]}" : "{}";
        return out;
    });
    REQUIRE(server);
    process worker =
        start_worker("http://" + server->address(), "w",
                     {{"OJS_REGISTRATION_PATH", "/workers/register"}, {"OJS_HEARTBEAT_INTERVAL", "20ms"}});
    REQUIRE(eventually([&] { return worker.count("registration failed") >= 2; }));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    CHECK(worker.prints("deregistration failed"));
    CHECK(worker.prints("answered 500"));
    const std::lock_guard<std::mutex> held(mutex);
    REQUIRE(asked.size() > 4);
    CHECK(asked.front() == "POST register");
    CHECK(asked.back() == "POST last");
    CHECK(std::count(asked.begin(), asked.end(), "DELETE register") == 1);
}

// The health server of a real worker and the example backend: probes, drain, control, metrics, and hostile clients.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "harness.hpp"

using namespace test;

namespace {

// The address that the worker logged, with the chosen port.
std::string health_address(process& worker) {
    REQUIRE(worker.prints("health server listening"));
    const std::string& all = worker.output();
    const std::size_t at = all.find("address=", all.find("health server listening"));
    REQUIRE(at != std::string::npos);
    return all.substr(at + 8, all.find_first_of(" \n", at) - at - 8);
}

ojs::http_response call(const std::string& address, const std::string& method, const std::string& target,
                        const std::string& token = "") {
    ojs::http_client_options options;
    options.bearer_token = token;
    auto client = ojs::http_client::create(
        address.compare(0, 5, "unix:") == 0 ? address : "http://" + address, options);
    REQUIRE(client);
    ojs::http_call how;
    how.deadline = ojs::deadline_after(guard);
    const auto answer = client->send({method, target, {}, ""}, how);
    if (!answer) MESSAGE(target << ": " << answer.error().text);
    REQUIRE(answer);
    return *answer;
}

int status(const std::string& address, const std::string& target) {
    return call(address, "GET", target).status;
}

// A worker without processor time for a second rightly answers 503 to /livez, for a while.
bool is_alive(const std::string& address) {
    return eventually([&] { return status(address, "/livez") == 200; });
}

json body(const ojs::http_response& answer) {
    return json::parse(answer.body);
}

// A worker with its health server on a free port.
struct served {
    explicit served(const std::string& url, environment extra = {}) {
        extra.emplace("OJS_HEALTH_ADDR", "127.0.0.1:0");
        worker = start_worker(url, "w", extra);
        address = health_address(worker);
    }
    void become_ready() {
        REQUIRE(eventually([&] { return status(address, "/readyz") == 200; }));
    }
    process worker;
    std::string address;
};

class raw_client {
  public:
    explicit raw_client(const std::string& address) {
        sockaddr_in where{};
        where.sin_family = AF_INET;
        where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        where.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
        fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        REQUIRE(::connect(fd_, reinterpret_cast<sockaddr*>(&where), sizeof where) == 0);
    }
    raw_client(raw_client&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    raw_client& operator=(raw_client&&) = delete;
    ~raw_client() {
        if (fd_ >= 0) ::close(fd_);
    }
    void send(const std::string& bytes) const {
        static_cast<void>(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
    }
    // Everything until the server closes; "..." at the guard.
    std::string rest() const {
        std::string out;
        for (char buffer[4096];;) {
            pollfd readable{fd_, POLLIN, 0};
            if (::poll(&readable, 1, static_cast<int>(guard.count())) <= 0) return "...";
            const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
            if (got <= 0) return out;
            out.append(buffer, static_cast<std::size_t>(got));
        }
    }

  private:
    int fd_ = -1;
};

bool has_promtool() {
    return std::system("promtool --version >/dev/null 2>&1") == 0;
}

// promtool's complaints about a page; empty: none.
std::string lint(const std::string& page) {
    const std::string file = scratch_file("metrics");
    const std::string said = scratch_file("lint");
    std::ofstream(file) << page;
    const int status = std::system(("promtool check metrics <" + file + " >" + said + " 2>&1").c_str());
    std::ifstream in(said);
    std::string out((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    return status == 0 ? out : out + "(status " + std::to_string(status) + ")";
}

}  // namespace

TEST_CASE("health: ready after the first answer of the backend, alive and not ready without one") {
    served lonely("http://127.0.0.1:1");
    REQUIRE(lonely.worker.prints("heartbeat failed"));
    CHECK(status(lonely.address, "/readyz") == 503);
    CHECK(status(lonely.address, "/healthz") == 503);
    CHECK(is_alive(lonely.address));
    lonely.worker.signal(SIGTERM);
    CHECK(lonely.worker.wait() == 0);

    backend jobs;
    served tested(jobs.url());
    tested.become_ready();
    CHECK(status(tested.address, "/healthz") == 200);
    CHECK(body(call(tested.address, "GET", "/healthz"))["phase"].is("running"));
    tested.worker.signal(SIGTSTP);
    REQUIRE(!jobs.event(beat_in_state("w", "quiet"))["event"].text.empty());
    CHECK(status(tested.address, "/readyz") == 503);
    CHECK(status(tested.address, "/healthz") == 503);
    CHECK(is_alive(tested.address));
    CHECK(status(tested.address, "/metrics") == 200);
    tested.worker.signal(SIGCONT);
    tested.become_ready();
    tested.worker.signal(SIGTERM);
    CHECK(tested.worker.wait() == 0);
}

TEST_CASE("health: with GET /drain as the preStop hook the job ends before SIGTERM") {
    backend jobs;
    served tested(jobs.url(), {{"OJS_HEALTH_CONTROL", "on"}});
    const gate end;
    const std::string id = jobs.push_one("test.gate", end.args());
    REQUIRE(tested.worker.prints("start " + id));
    const ojs::http_response early = call(tested.address, "GET", "/drain?timeout=0");
    CHECK(early.status == 503);
    CHECK(body(early)["active_jobs"].number == 1);
    // From this beat on the backend returns no job, not even to a FETCH in flight.
    const auto quiet_beat = [](const json& event) {
        return event["event"].is("beat") && event["state"].is("quiet");
    };
    REQUIRE(jobs.event(quiet_beat).what == json::kind::object);
    const std::string late = jobs.push_one("test.sleep", "[1]");
    end.open();
    const ojs::http_response answer = call(tested.address, "GET", "/drain?timeout=30s");
    CHECK(answer.status == 200);
    CHECK(body(answer)["drained"].flag);
    CHECK(jobs.state_of(id) == "completed");
    CHECK(is_alive(tested.address));
    tested.worker.signal(SIGTERM);
    CHECK(tested.worker.wait() == 0);
    CHECK(jobs.state_of(late) == "available");
    CHECK(tested.worker.prints("cause=rpc"));
}

TEST_CASE("health: requests waiting in /drain do not delay the end of the worker") {
    backend jobs;
    served tested(jobs.url(), {{"OJS_HEALTH_CONTROL", "on"}, {"OJS_SHUTDOWN_GRACE_PERIOD", "100ms"}});
    const std::string id = jobs.push_one("test.deaf", "[]");
    REQUIRE(tested.worker.prints("start " + id));
    const raw_client waiting(tested.address);
    waiting.send("GET /drain?timeout=1h HTTP/1.1\r\nHost: localhost\r\n\r\n");
    REQUIRE(!jobs.event(beat_in_state("w", "quiet"))["event"].text.empty());
    tested.worker.signal(SIGTERM);
    CHECK(tested.worker.wait() == 0);  // the handler never returns: the process exits nevertheless
    // The worker exits at its deadline: a response that is too late is a closed connection.
    const std::string answer = waiting.rest();
    CHECK(answer != "...");
    if (!answer.empty()) {
        CHECK(answer.find("HTTP/1.1 200") == 0);  // requeued: nothing is in flight
        CHECK(answer.find("\"drained\":true") != std::string::npos);
    }
    CHECK(jobs.count(beat_in_state("w", "terminate")) == 1);
}

TEST_CASE("health: control by token, on every address") {
    backend jobs;
    const std::string token = "canary-4711-token";
    served tested(jobs.url(), {{"OJS_HEALTH_ADDR", "0.0.0.0:0"},
                               {"OJS_HEALTH_CONTROL", "on"},
                               {"OJS_HEALTH_TOKEN", token},
                               {"OJS_LOG_LEVEL", "debug"}});
    const std::string address = "127.0.0.1" + tested.address.substr(tested.address.find(':'));
    CHECK(call(address, "POST", "/quiet").status == 401);
    CHECK(call(address, "POST", "/quiet", token + "x").status == 401);
    CHECK(call(address, "POST", "/quiet", token).status == 200);
    REQUIRE(!jobs.event(beat_in_state("w", "quiet"))["event"].text.empty());
    CHECK(call(address, "POST", "/resume", token).status == 200);
    CHECK(call(address, "POST", "/stop", token).status == 202);
    CHECK(tested.worker.wait() == 0);
    CHECK(tested.worker.count(token) == 0);
}

TEST_CASE("health: an address that cannot be used: status 64, the address named, no request sent") {
    backend jobs;
    const auto taken =
        ojs::http_server::start("127.0.0.1:0", [](const ojs::http_request&) { return ojs::http_response(); });
    REQUIRE(taken);
    struct wrong {
        environment settings;
        std::vector<std::string> texts;
    };
    const std::vector<wrong> all = {
        {{{"OJS_HEALTH_ADDR", taken->address()}}, {"OJS_HEALTH_ADDR", taken->address(), "in use"}},
        {{{"OJS_HEALTH_ADDR", "192.0.2.1:9000"}}, {"OJS_HEALTH_ADDR", "192.0.2.1:9000"}},
        {{{"OJS_HEALTH_ADDR", "worker.example:80"}}, {"OJS_HEALTH_ADDR", "worker.example:80"}},
        {{{"OJS_HEALTH_ADDR", "unix:/nowhere/at/all"}}, {"OJS_HEALTH_ADDR", "/nowhere/at/all"}},
        {{{"OJS_HEALTH_ADDR", ""}}, {"OJS_HEALTH_ADDR"}},
        {{{"OJS_HEALTH_CONTROL", "yes"}}, {"OJS_HEALTH_CONTROL='yes'", "off on"}},
        {{{"OJS_HEALTH_CONTROL", "on"}}, {"OJS_HEALTH_CONTROL", "OJS_HEALTH_ADDR"}},
        {{{"OJS_HEALTH_ADDR", "0.0.0.0:0"}, {"OJS_HEALTH_CONTROL", "on"}}, {"OJS_HEALTH_TOKEN", "0.0.0.0:0"}},
    };
    for (const wrong& each : all) {
        process worker = start_worker(jobs.url(), "w", each.settings);
        CHECK(worker.wait() == 64);
        for (const std::string& text : each.texts) {
            CHECK_MESSAGE(worker.prints(text), "no '" << text << "' in: " << worker.output());
        }
    }
    CHECK(jobs.count([](const json& event) { return event["worker_id"].is("w"); }) == 0);
}

TEST_CASE("health: a unix socket with mode 0600 replaces that of a killed worker") {
    backend jobs;
    const std::string path = scratch_file("health.sock");
    const environment settings = {{"OJS_HEALTH_ADDR", "unix:" + path}, {"OJS_HEALTH_CONTROL", "on"}};
    {
        served killed(jobs.url(), settings);
        killed.become_ready();
        struct stat found {};
        REQUIRE(::stat(path.c_str(), &found) == 0);
        CHECK((found.st_mode & 0777) == 0600);
        killed.worker.signal(SIGKILL);
        CHECK(killed.worker.wait() == -SIGKILL);
    }
    for (const char* type :
         {"", "test.deaf"}) {  // with a handler that never returns, the process ends by _exit
        environment quick = settings;
        quick["OJS_SHUTDOWN_GRACE_PERIOD"] = "50ms";
        served tested(jobs.url(), quick);
        tested.become_ready();
        if (*type != '\0') REQUIRE(tested.worker.prints("start " + jobs.push_one(type, "[]")));
        CHECK(call(tested.address, "POST", "/stop").status == 202);
        CHECK(tested.worker.wait() == 0);
        CHECK(::access(path.c_str(), F_OK) != 0);
    }
}

TEST_CASE("health: garbage, slow and too many clients are bounded, and the worker keeps working") {
    backend jobs;
    served tested(jobs.url());
    tested.become_ready();
    const std::vector<std::string> garbage = {
        std::string(3000, '\0'),
        "GET / HTTP/9.9\r\n\r\n",
        "\x16\x03\x01\x02\x01",  // TLS
        "GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n",
        "POST /quiet HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        "GET /" + std::string(20000, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nHost: a\r\nX: " + std::string(20000, 'b') + "\r\n\r\n"};
    for (const std::string& bytes : garbage) {
        const raw_client stranger(tested.address);
        stranger.send(bytes);
        const std::string answer = stranger.rest();
        CHECK(answer != "...");
        CHECK(answer.find(" 200 ") == std::string::npos);
    }
    // More than the server's limit: some send nothing, some stop in the middle.
    std::vector<raw_client> slow;
    for (int i = 0; i < 24; ++i) {
        slow.emplace_back(tested.address);
        if (i % 2 == 0) slow.back().send("GET /healthz HTTP/1.1\r\nHo");
    }
    for (const std::string& id : jobs.push("test.sleep", "[1]", 50)) CHECK(jobs.reaches(id, "completed"));
    int threads = 0;
    std::ifstream self("/proc/" + std::to_string(tested.worker.pid()) + "/status");
    for (std::string line; std::getline(self, line);) {
        if (line.compare(0, 8, "Threads:") == 0) threads = std::atoi(line.c_str() + 8);
    }
    CHECK(threads < 16 + 10 + 16);
    CHECK(is_alive(tested.address));  // served when the silent ones have timed out
    tested.worker.signal(SIGTERM);
    CHECK(tested.worker.wait() == 0);
}

TEST_CASE("health: a handler that forks does not disturb the server") {
    backend jobs;
    served tested(jobs.url());
    CHECK(jobs.reaches(jobs.push_one("test.fork", "[]"), "completed"));
    CHECK(is_alive(tested.address));
    CHECK(status(tested.address, "/readyz") == 200);
    tested.worker.signal(SIGTERM);
    CHECK(tested.worker.wait() == 0);
}

TEST_CASE("metrics: the page passes the linter before, during and after work") {
    backend jobs;
    served tested(jobs.url(), {{"OJS_QUEUES", "default,we\"ird\\queue"}});
    tested.become_ready();
    const std::string fresh = call(tested.address, "GET", "/metrics").body;
    for (const std::string& id : jobs.push("test.sleep", "[1]", 5)) REQUIRE(jobs.reaches(id, "completed"));
    REQUIRE(jobs.reaches(jobs.push_one("test.discard", "[]"), "discarded"));
    const std::string slow = jobs.push_one("test.sleep", "[60000]");
    REQUIRE(tested.worker.prints("start " + slow));
    const ojs::http_response busy = call(tested.address, "GET", "/metrics");
    tested.worker.signal(SIGTERM);
    REQUIRE(!jobs.event(beat_in_state("w", "quiet"))["event"].text.empty());
    const std::string draining = call(tested.address, "GET", "/metrics").body;

    const auto shows = [&](const std::string& page, const std::string& line) {
        CHECK_MESSAGE(page.find("\n" + line + "\n") != std::string::npos, "no '" << line << "' in:\n"
                                                                                 << page);
    };
    shows(fresh, "ojs_workers_busy{queue=\"we\\\"ird\\\\queue\"} 0");
    shows(fresh, "ojs_worker_phase{phase=\"running\"} 1");
    shows(busy.body, "ojs_job_completed_total{queue=\"default\",type=\"test.sleep\"} 5");
    shows(busy.body, "ojs_worker_jobs_total{outcome=\"failed\"} 1");
    shows(busy.body, "ojs_workers_busy{queue=\"default\"} 1");
    shows(draining, "ojs_worker_phase{phase=\"draining\"} 1");
    CHECK(ojs::find_header(busy.headers, "Content-Type") == "text/plain; version=0.0.4; charset=utf-8");
    if (!has_promtool()) {
        MESSAGE("promtool is not installed: the linter was not asked");
        return;
    }
    for (const std::string& page : {fresh, busy.body, draining}) CHECK(lint(page) == "");
    CHECK(lint("no metrics at all\n") != "");
    CHECK(lint("# HELP a_total A.\n# TYPE a_total gauge\na_total 1\n") != "");  // the linter finds faults
}

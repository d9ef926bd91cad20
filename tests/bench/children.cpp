// What this program does as a child of itself: workers, and the floors of what they do.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

#include "bench.hpp"
#include "ojs_server.hpp"

namespace bench {
namespace {

// One write(2) a line, as several threads print.
void print(std::string line) {
    line += '\n';
    if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) ::_exit(99);
}

// Counts jobs from all threads and prints how long they took, without the first ones.
class stopwatch {
  public:
    static constexpr int warm_up = 500;

    explicit stopwatch(int measured) : last_(warm_up + measured) {}

    // False from the last job on.
    bool count() {
        const int now = done_.fetch_add(1) + 1;
        if (now == warm_up) began_.store(monotonic_ns());
        if (now == last_) print("took " + std::to_string(monotonic_ns() - began_.load()));
        return now < last_;
    }

  private:
    const int last_;
    std::atomic<int> done_{0};
    std::atomic<std::int64_t> began_{0};
};

// ---- workers ----

template <class Handler>
int run_worker(Handler handler, ojs::function<void(const ojs::lifecycle_state&)> on_transition = nullptr) {
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    options->on_transition = std::move(on_transition);
    ojs::worker worker(*options);
    worker.register_handler("bench", std::move(handler));
    return worker.run();
}

// Arguments: how many jobs to measure.
int noop_worker(const std::vector<std::string>& arguments) {
    stopwatch watch(std::stoi(arguments.at(0)));
    return run_worker([&](ojs::job_context&) { watch.count(); });
}

// Its job ends when the drain begins.
int draining_worker(const std::vector<std::string>&) {
    ojs::drain_barrier working;
    auto until_drain = working.enter();
    return run_worker(
        [&](ojs::job_context&) {
            print("working");
            working.wait_until(ojs::time_point::max());
        },
        [&](const ojs::lifecycle_state& now) {
            if (now.phase != ojs::phase::draining) return;
            working.close();
            until_drain.leave();
        });
}

// Its jobs sleep until they are cancelled. Arguments: how many to announce.
int sleeping_worker(const std::vector<std::string>& arguments) {
    const int all = std::stoi(arguments.at(0));
    std::atomic<int> asleep{0};
    return run_worker(
        [&](ojs::job_context& job) {
            if (asleep.fetch_add(1) + 1 == all) print("all asleep");
            static_cast<void>(job.sleep_for(std::chrono::hours(1)));
        },
        [](const ojs::lifecycle_state& now) { print(std::string("phase ") + ojs::to_string(now.phase)); });
}

// ---- floors ----

int woken_fd = -1;

// Ends as soon as SIGTERM wakes it up.
int bare_process(const std::vector<std::string>&) {
    woken_fd = ::eventfd(0, EFD_CLOEXEC);
    struct sigaction action {};
    action.sa_handler = [](int) {
        const std::uint64_t one = 1;
        static_cast<void>(!::write(woken_fd, &one, sizeof one));
    };
    ::sigaction(SIGTERM, &action, nullptr);
    print("ready");
    pollfd waiting{woken_fd, POLLIN, 0};
    while (::poll(&waiting, 1, -1) <= 0) {
    }
    return 0;
}

// One kept connection; requests as our worker sends them, answers read as far as their length needs.
class bare_connection {
  public:
    explicit bare_connection(int port) : port_(port), fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons(static_cast<std::uint16_t>(port));
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        const int on = 1;
        ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        sockaddr address{};
        std::memcpy(&address, &to, sizeof to);
        if (::connect(fd_, &address, sizeof to) != 0) throw failure("cannot connect");
    }
    bare_connection(const bare_connection&) = delete;
    bare_connection& operator=(const bare_connection&) = delete;
    ~bare_connection() { ::close(fd_); }

    std::string post(const char* route, const std::string& body) {
        const std::string request = std::string("POST /ojs/v1/workers/") + route +
                                    " HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port_) +
                                    "\r\nX-OJS-Worker-ID: bench_bare_client"
                                    "\r\nContent-Type: application/openjobspec+json"
                                    "\r\nAccept: application/openjobspec+json"
                                    "\r\nOJS-Version: 1.0"
                                    "\r\nContent-Length: " +
                                    std::to_string(body.size()) + "\r\n\r\n" + body;
        if (::send(fd_, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
            throw failure("cannot send");
        return receive();
    }

  private:
    std::string receive() {
        std::string answer;
        std::size_t wanted = 0;
        do {
            char bytes[16 * 1024];
            const ssize_t got = ::recv(fd_, bytes, sizeof bytes, 0);
            if (got <= 0) throw failure("cannot receive");
            answer.append(bytes, static_cast<std::size_t>(got));
            if (wanted == 0) wanted = length_of(answer);
        } while (wanted == 0 || answer.size() < wanted);
        return answer;
    }

    // 0: the head is not there yet.
    static std::size_t length_of(const std::string& answer) {
        const std::size_t head_end = answer.find("\r\n\r\n");
        if (head_end == std::string::npos) return 0;
        return head_end + 4 + static_cast<std::size_t>(number_after(answer, "Content-Length:"));
    }

    const int port_;
    const int fd_;
};

// FETCH, "work", ACK, until enough is done.
void fetch_and_ack(int port, stopwatch& watch) {
    bare_connection backend(port);
    for (bool more = true; more;) {
        const std::string fetched =
            backend.post("fetch",
                         "{\"queues\":[\"default\"],\"count\":1,\"worker_id\":\"bench_bare_client\","
                         "\"visibility_timeout_ms\":30000}");
        constexpr std::string_view key = "\"id\":\"";
        const std::size_t id = fetched.find(key);
        if (id == std::string::npos) throw failure("out of jobs");
        const std::size_t start = id + key.size();
        more = watch.count();
        backend.post("ack",
                     "{\"job_id\":\"" + fetched.substr(start, fetched.find('"', start) - start) + "\"}");
    }
}

// Arguments: the backend's port, how many threads, how many jobs to measure.
int bare_client(const std::vector<std::string>& arguments) {
    const int port = std::stoi(arguments.at(0));
    stopwatch watch(std::stoi(arguments.at(2)));
    std::vector<std::thread> threads;
    for (int i = std::stoi(arguments.at(1)); i > 0; --i) {
        threads.emplace_back([&] { fetch_and_ack(port, watch); });
    }
    for (std::thread& each : threads) each.join();
    return 0;
}

// What dev_backend would be if it had nothing to do but to read requests and to write answers of the same size.
int bare_server(const std::vector<std::string>&) {
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);
    const std::string job =
        R"({"jobs":[{"specversion":"1.0","id":"019539a4-aaaa-7000-8000-111111111111","type":"bench","queue":"default",)"
        R"("args":[],"priority":0,"max_attempts":3,"created_at":"2026-01-31T12:00:00.000Z","enqueued_at":)"
        R"("2026-01-31T12:00:00.000Z","meta":{},"state":"active","attempt":1,"started_at":"2026-01-31T12:00:00.000Z"}]})";
    const auto answer = [&job](const ojs::http_request&) {
        return ojs::http_response{200, {{"Content-Type", "application/json"}}, job, false};
    };
    ojs::draining_server_options options;
    options.threads = 256;
    const auto server = ojs::draining_server::start("127.0.0.1:0", answer, options);
    if (!signals || !server) return 1;
    print("listening on " + server->address());
    while (lifecycle.phase() < ojs::phase::draining) signals->wait();
    return 0;
}

struct role {
    const char* name;
    int (*run)(const std::vector<std::string>&);
};
constexpr role roles[] = {
    {"noop_worker", noop_worker},
    {"draining_worker", draining_worker},
    {"sleeping_worker", sleeping_worker},
    {"bare_process", bare_process},
    {"bare_client", bare_client},
    {"trivial_child", trivial_child},
    {"launcher", launcher_role},
    {"bare_server", bare_server},
    {"draining_server", draining_server_role},
    {"epoll_server", epoll_server_role},
    {"load_client", load_client_role},
};

}  // namespace

std::vector<std::string> self_as(const std::string& role, const std::vector<std::string>& arguments) {
    std::vector<std::string> out = {"/proc/self/exe", "--as", role};
    out.insert(out.end(), arguments.begin(), arguments.end());
    return out;
}

int run_as(const std::string& role, const std::vector<std::string>& arguments) {
    for (const auto& each : roles) {
        if (role == each.name) return each.run(arguments);
    }
    return 64;
}

}  // namespace bench

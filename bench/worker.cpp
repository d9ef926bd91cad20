// Workers whose jobs do little, and the least a client of the same backend does.
#include <sys/socket.h>

#include <atomic>
#include <ojs_shutdown.hpp>
#include <thread>

#include "roles.hpp"

namespace bench {
namespace {
// Counts jobs from all threads and prints how long they took, without the first 500.
class stopwatch {
  public:
    explicit stopwatch(const std::string& measured) : last_(warm_up + std::stoi(measured)) {}

    // False from the last job on.
    bool count() {
        const int now = done_.fetch_add(1) + 1;
        if (now == warm_up) began_.store(monotonic_ns());
        if (now == last_) print("took " + std::to_string(monotonic_ns() - began_.load()));
        return now < last_;
    }

  private:
    static constexpr int warm_up = 500;
    const int last_;
    std::atomic<int> done_{0};
    std::atomic<double> began_{0};
};

template <class Handler>
int run_worker(Handler handler, bool prints_phases = false) {
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_startup_error(options.error());
    if (prints_phases)
        options->on_transition = [](const ojs::lifecycle_state& now) {
            print(std::string("phase ") + ojs::to_string(now.phase));
        };
    ojs::worker worker(*options);
    worker.register_handler("bench", std::move(handler));
    return worker.run();
}

// Arguments: how many jobs to measure.
int noop_worker(const arguments& given) {
    stopwatch watch(given.at(0));
    return run_worker([&](ojs::job_context&) { watch.count(); });
}

// Its jobs sleep until they are cancelled. Arguments: how many to announce.
int sleeping_worker(const arguments& given) {
    const int all = std::stoi(given.at(0));
    std::atomic<int> asleep{0};
    return run_worker(
        [&](ojs::job_context& job) {
            if (asleep.fetch_add(1) + 1 == all) print("all asleep");
            static_cast<void>(job.sleep_for(std::chrono::hours(1)));
        },
        true);
}

// Sends a request as our worker does, and reads the response as far as its length says.
std::string post(int fd, const char* route, const std::string& body) {
    const std::string request = std::string("POST /ojs/v1/workers/") + route +
                                " HTTP/1.1\r\nHost: 127.0.0.1\r\nX-OJS-Worker-ID: bench_bare_client"
                                "\r\nContent-Type: application/openjobspec+json"
                                "\r\nAccept: application/openjobspec+json\r\nOJS-Version: 1.0"
                                "\r\nContent-Length: " +
                                std::to_string(body.size()) + "\r\n\r\n" + body;
    must(::send(fd, request.data(), request.size(), MSG_NOSIGNAL) > 0, "send");
    std::string response;
    for (std::size_t size = 1; response.size() < size;) {
        char bytes[16 * 1024];
        const ssize_t got = ::recv(fd, bytes, sizeof bytes, 0);
        must(got > 0, "recv");
        response.append(bytes, static_cast<std::size_t>(got));
        const std::size_t head_end = response.find("\r\n\r\n");
        constexpr std::string_view length = "Content-Length: ";
        size = head_end == std::string::npos
                   ? response.size() + 1
                   : head_end + 4 + std::stoul(response.substr(response.find(length) + length.size()));
    }
    return response;
}

// FETCHes of `count` jobs, and an ACK for each, until enough is done.
void fetch_and_ack(int port, const std::string& count, stopwatch& watch) {
    constexpr std::string_view id_key = "\"id\":\"";
    const int fd = connected_socket(port);
    for (bool more = true; more;) {
        const std::string fetched = post(fd, "fetch",
                                         R"({"queues":["default"],"count":)" + count +
                                             R"(,"worker_id":"bench_bare_client","visibility_timeout_ms":30000})");
        std::size_t at = fetched.find(id_key);
        must(at != std::string::npos, "FETCH");
        for (; at != std::string::npos; at = fetched.find(id_key, at)) {
            at += id_key.size();
            more = watch.count();
            post(fd, "ack", "{\"job_id\":\"" + fetched.substr(at, fetched.find('"', at) - at) + "\"}");
        }
    }
    ::close(fd);
}

// Arguments: how many jobs to measure, the backend's port, how many threads, how many jobs a FETCH.
int bare_client(const arguments& given) {
    stopwatch watch(given.at(0));
    const int port = std::stoi(given.at(1));
    std::vector<std::thread> threads;
    for (int i = std::stoi(given.at(2)); i > 0; --i)
        threads.emplace_back([&] { fetch_and_ack(port, given.at(3), watch); });
    for (std::thread& each : threads) each.join();
    return 0;
}
}  // namespace

const std::vector<role> worker_roles = {
    {"noop_worker", noop_worker}, {"sleeping_worker", sleeping_worker}, {"bare_client", bare_client}};
}  // namespace bench

int main(int argc, char** argv) {
    using namespace bench;
    for (const auto& roles : {spool_roles, worker_roles, server_roles}) {
        for (const role& each : roles) {
            if (argc > 1 && std::string(argv[1]) == each.name) return each.run({argv + 2, argv + argc});
        }
    }
    std::fputs("started by bench/bench.py\n", stderr);
    return 64;
}

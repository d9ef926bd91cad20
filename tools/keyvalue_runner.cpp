// A small key-value server for a launcher, which loses no write: it is ready once its file is read; on a request to stop
// it refuses new requests, finishes those in flight, and writes the file. [RFC-041 "Integration Example"]
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "ojs_coordinator.hpp"

namespace {
using std::chrono::milliseconds;

const char usage[] =
    R"(usage: keyvalue_runner [--listen ADDRESS] [--file PATH] [--work-duration TIME]
Serves GET, PUT and DELETE /KEY over HTTP; the body of a PUT is the value, one
line. Reads OJS_LIFECYCLE_ADDR, set by a launcher.
  --listen ADDRESS       where to listen (default 127.0.0.1:0: chooses a free
                         port and prints it)
  --file PATH            values are read from it at the start and written to it
                         at the end; without it they are lost
  --work-duration TIME   duration of every request (default 0s)
)";

struct settings {
    std::string listen = "127.0.0.1:0";
    std::string file;
    milliseconds work_duration{0};
};

// One line per value: KEY VALUE.
class store {
  public:
    explicit store(std::string file) : file_(std::move(file)) {}

    void load() {
        std::ifstream in(file_);
        for (std::string line; std::getline(in, line);) {
            const std::size_t blank = line.find(' ');
            if (blank != std::string::npos) values_[line.substr(0, blank)] = line.substr(blank + 1);
        }
    }
    // Atomic: writes a second file, which then replaces the first.
    bool flush() {
        const std::lock_guard<std::mutex> held(mutex_);
        if (file_.empty()) return true;
        const std::string made = file_ + ".new";
        std::ofstream out(made);
        for (const auto& [key, value] : values_) out << key << ' ' << value << '\n';
        out.close();
        if (!out || std::rename(made.c_str(), file_.c_str()) != 0) return false;
        unwritten_ = 0;
        return true;
    }
    bool get(const std::string& key, std::string& value) const {
        const std::lock_guard<std::mutex> held(mutex_);
        const auto found = values_.find(key);
        if (found != values_.end()) value = found->second;
        return found != values_.end();
    }
    void put(const std::string& key, const std::string& value) {
        const std::lock_guard<std::mutex> held(mutex_);
        values_[key] = value;
        unwritten_ += static_cast<std::int64_t>(key.size() + value.size() + 2);
    }
    bool remove(const std::string& key) {
        const std::lock_guard<std::mutex> held(mutex_);
        return values_.erase(key) > 0;
    }
    std::int64_t unwritten() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return unwritten_;
    }

  private:
    const std::string file_;
    mutable std::mutex mutex_;
    std::map<std::string, std::string> values_;
    std::int64_t unwritten_ = 0;
};

ojs::http_response text(int status, std::string body) {
    ojs::http_response out;
    out.status = status;
    out.headers = {{"Content-Type", "text/plain; charset=utf-8"}};
    out.body = std::move(body);
    return out;
}

class server {
  public:
    explicit server(const settings& options) : options_(options), store_(options.file) {}

    store& values() { return store_; }
    ojs::http_response answer(const ojs::http_request& request) {
        const ojs::drain_barrier::ticket ticket = barrier_.enter();
        if (!ticket) {
            ojs::http_response busy = text(503, "draining\n");
            busy.headers.push_back({"Retry-After", "0"});
            busy.headers.push_back({"Connection", "close"});
            return busy;
        }
        std::this_thread::sleep_for(options_.work_duration);
        return serve(request);
    }
    ojs::shutdown_metrics metrics() const {
        ojs::shutdown_metrics out;
        out.in_flight_requests = static_cast<std::int32_t>(barrier_.count());
        out.buffered_bytes = store_.unwritten();
        return out;
    }
    void refuse_new() { barrier_.close(); }
    ojs::result<void> drain(ojs::http_server& http, const ojs::cancel_token& token) {
        while (barrier_.wait_until(ojs::steady_clock::now() + milliseconds(20)) > 0) {
            if (token.cancelled()) break;
        }
        const std::size_t cut = http.stop(ojs::steady_clock::now() + std::chrono::seconds(2));
        if (!store_.flush()) return ojs::error{ojs::errc::system, 0, "cannot write the file"};
        if (cut == 0) return {};
        return ojs::error{ojs::errc::timed_out, 0, "drain timeout with " + std::to_string(cut) + " in-flight"};
    }

  private:
    ojs::http_response serve(const ojs::http_request& request) {
        const std::string key = request.target.substr(1);
        if (key.empty() || request.body.find('\n') != std::string::npos) return text(400, "no such key or value\n");
        std::string value;
        if (request.method == "GET") return store_.get(key, value) ? text(200, value) : text(404, "");
        if (request.method == "DELETE") return text(store_.remove(key) ? 204 : 404, "");
        if (request.method != "PUT") return text(405, "");
        store_.put(key, request.body);
        return text(204, "");
    }

    const settings& options_;
    ojs::drain_barrier barrier_;
    store store_;
};

ojs::result<void> read_arguments(settings& out, int argc, char** argv) {
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        const std::string value = i + 1 < argc ? argv[i + 1] : "";
        if (name == "--listen" && !value.empty()) {
            out.listen = value;
        } else if (name == "--file" && !value.empty()) {
            out.file = value;
        } else if (name == "--work-duration") {
            const ojs::result<milliseconds> read = ojs::parse_duration(value);
            if (!read) return read.error();
            out.work_duration = *read;
        } else {
            return ojs::error{ojs::errc::invalid_argument, 0, "unknown option " + name + "; see --help"};
        }
    }
    return {};
}

int failed(const ojs::error& why) {
    std::fprintf(stderr, "keyvalue_runner: %s\n", why.text.c_str());
    return 1;
}

int work(const settings& options, ojs::coordinator_options coordination, ojs::lifecycle& life) {
    server keys(options);
    coordination.metrics = [&keys] { return keys.metrics(); };
    auto coordinator = ojs::shutdown_coordinator::start(std::move(coordination), life);
    if (!coordinator) return failed(coordinator.error());
    coordinator->report_warming("reads its file");
    keys.values().load();
    auto http = ojs::http_server::start(options.listen,
                                        [&keys](const ojs::http_request& request) { return keys.answer(request); });
    if (!http) return failed(http.error());
    const std::string where = "serving on " + http->address();
    std::printf("%s\n", where.c_str());
    std::fflush(stdout);
    coordinator->report_ready(where);  // the message gives the launcher's clients the address
    coordinator->on_shutdown(
        "refuse new requests", [&keys] { keys.refuse_new(); }, ojs::no_limit);
    const ojs::result<void> drained =
        coordinator->run([&](const ojs::cancel_token& token) { return keys.drain(*http, token); });
    return drained ? 0 : failed(drained.error());
}
}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && argv[1] == std::string("--help")) {
        std::fputs(usage, stdout);
        return 0;
    }
    settings options;
    const ojs::result<void> read = read_arguments(options, argc, argv);
    if (!read) return ojs::report_startup_error(read.error());
    auto coordination = ojs::coordinator_options::from_environment();
    if (!coordination) return ojs::report_startup_error(coordination.error());
    ojs::lifecycle life;
    auto signals = ojs::signals::install(life);
    if (!signals) return ojs::report_startup_error(signals.error());
    return work(options, *coordination, life);
}

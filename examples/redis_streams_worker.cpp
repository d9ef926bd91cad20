// A worker on Redis Streams. Link with -lhiredis.
//
//     OJS_URL=redis://127.0.0.1:6379 OJS_QUEUES=work build/redis_streams_worker
//     redis-cli XADD work '*' body 'm1 200'
//
// A message "ID MS" takes MS milliseconds, then prints "done ID". "ID fail" fails each time.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "ojs_redis_streams.hpp"

namespace {
ojs::outcome process(ojs::job_context& job) {
    const std::string& body = job.job().body;
    const std::size_t blank = body.find(' ');
    const std::string id = body.substr(0, blank);
    const std::string rest = blank == std::string::npos ? "" : body.substr(blank + 1);
    if (rest == "fail") return ojs::outcome::retry("this message always fails");
    const long ms = std::strtol(rest.c_str(), nullptr, 10);
    const bool is_valid = ms >= 0 && ms <= 60000;
    if (!job.sleep_for(std::chrono::milliseconds(is_valid ? ms : 0))) return ojs::outcome::interrupted();
    ojs::write_log_line(STDOUT_FILENO, "done " + id);
    return ojs::outcome::done();
}
}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && argv[1] == std::string("--help")) {
        std::puts(
            "usage: OJS_URL=redis://HOST:PORT OJS_QUEUES=STREAM redis_streams_worker\n"
            "Processes the messages of a stream: \"ID MS\", or \"ID fail\".");
        return 0;
    }
    if (argc > 1) return ojs::report_startup_error({ojs::errc::invalid_argument, 0, "unexpected argument; see --help"});
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_startup_error(options.error());
    options->transports.add(ojs::redis_streams());
    ojs::worker worker(std::move(*options));
    worker.register_handler("message", process);
    return worker.run();
}

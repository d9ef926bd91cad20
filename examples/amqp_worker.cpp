// A worker on RabbitMQ's queues: jobs are messages, handled by their AMQP type ("message" if they have none).
//
//     OJS_URL=amqp://guest:guest@localhost:5672/ OJS_QUEUES=work build/amqp_worker
//
// A body is "ID MS": it works for MS milliseconds, at most 60 s, and prints "done ID". "ID fail" fails, and
// is retried. SIGTERM or Ctrl-C: it takes no more messages, and what it has not started goes back to its
// queue.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "ojs_amqp.hpp"

namespace {
ojs::outcome handle(ojs::job_context& job) {
    const std::string& body = job.job().body;
    const std::size_t blank = std::min(body.find(' '), body.size());
    const std::string id = body.substr(0, blank), work = body.substr(std::min(blank + 1, body.size()));
    if (work == "fail") return ojs::outcome::retry("the message says so");
    const long ms = std::clamp(std::atol(work.c_str()), 0L, 60000L);
    if (!job.sleep_for(std::chrono::milliseconds(ms))) return ojs::outcome::interrupted();
    ojs::write_log_line(STDOUT_FILENO, "done " + id);
    return ojs::outcome::done();
}
}  // namespace

int main() {
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_startup_error(options.error());
    options->transports.add(ojs::amqp());
    ojs::worker worker(*options);
    worker.register_handler("message", handle);
    return worker.run();
}

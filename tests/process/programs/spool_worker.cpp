// A worker on a spool directory, of which the test kills many. Configured from the environment:
//
//   OJS_*           as every worker; OJS_URL=spool:DIR
//   TEST_MARKERS    a folder: while a job runs it holds a lock on the file of its id there, which dies with the process
//   TEST_LEDGER     a file: "run ID ATTEMPT", "end ID", and "overlap ID" where that lock was taken already
//
// Jobs: spool.work [microseconds, "done" | "discard" | "retry"]
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#ifdef __linux__
#include <signal.h>
#include <sys/prctl.h>
#endif
#include <unistd.h>

#include <ojs_spool.hpp>
#include <string>

namespace {

int ledger = -1;
std::string markers;

// One write(2) a line, so that lines of several processes do not mix.
void note(std::string line) {
    line += '\n';
    if (::write(ledger, line.data(), line.size()) < 0) _exit(99);
}

// Held while it lives, by nobody else: the kernel sees to both.
class marker {
  public:
    explicit marker(const std::string& id)
        : fd_(::open((markers + "/" + id).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
        if (fd_ < 0) _exit(98);
        alone_ = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
    }
    marker(const marker&) = delete;
    marker& operator=(const marker&) = delete;
    ~marker() { ::close(fd_); }
    bool alone() const { return alone_; }

  private:
    const int fd_;
    bool alone_ = false;
};

ojs::outcome work(ojs::job_context& job) {
    const marker held(job.id());
    note((held.alone() ? "run " : "overlap ") + job.id() + " " + std::to_string(job.attempt()));
    static_cast<void>(job.sleep_for(std::chrono::microseconds(job.arg<std::int64_t>(0).value_or(0))));
    const std::string end = job.arg<std::string>(1).value_or("");
    if (end == "discard") return ojs::outcome::discard("as asked");
    if (end == "retry") return ojs::outcome::retry("as asked");
    note("end " + job.id());
    return ojs::outcome::done("{\"by\":" + std::to_string(::getpid()) + "}");
}

}  // namespace

int main() {
#ifdef __linux__
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed leaves nobody behind
#endif
    markers = ::getenv("TEST_MARKERS");
    ledger = ::open(::getenv("TEST_LEDGER"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    options->transports.add(ojs::spool());
    ojs::worker worker(*options);
    worker.register_handler("spool.work", &work);
    return worker.run();
}

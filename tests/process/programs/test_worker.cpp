// The worker that the process tests start, signal and watch. TEST_MODE: what main() does. Handlers print "start
// JOB_ID", changes of phase "phase NAME EVENT NANOSECONDS" (steady clock), both on standard output.
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <ojs_ops.hpp>
#include <ojs_spool.hpp>
#include <stdexcept>
#include <string>

namespace {
// One write(2) a line, so that lines of several threads do not mix.
void print(std::string line) {
    line += '\n';
    if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(99);
}

std::chrono::milliseconds milliseconds_argument(ojs::job_context& job) {
    return std::chrono::milliseconds(job.arg<std::int64_t>(0).value_or(0));
}

std::string wait_text(pid_t child) {
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFSIGNALED(status) ? "\"signal " + std::to_string(WTERMSIG(status)) + "\""
                               : "\"exit " + std::to_string(WEXITSTATUS(status)) + "\"";
}

// Returns nothing when cancelled: the job counts as interrupted.
void sleep_handler(ojs::job_context& job) {
    print("start " + job.id());
    if (!job.sleep_for(milliseconds_argument(job))) print("cancelled " + job.id());
}

// Returns once the file exists that its argument names, or one with this worker's id added.
void gate_handler(ojs::job_context& job) {
    print("start " + job.id());
    const std::string path = job.arg<std::string>(0).value_or("");
    while (::access(path.c_str(), F_OK) != 0) {
        if (!job.sleep_for(std::chrono::milliseconds(2))) return print("cancelled " + job.id());
    }
}

void deaf_handler(ojs::job_context& job) {
    print("start " + job.id());
    for (;;) ::pause();
}

// As a library that gives up does.
void exit_handler(ojs::job_context& job) {
    print("start " + job.id());
    ::exit(3);
}

std::string now_ns() { return std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()); }

// Sleeps for the first argument, and fails its first attempt if there is a second one. Both lines name the run.
template <class Sleep>
ojs::outcome run_job(ojs::job_context& job, Sleep sleep) {
    const std::string run = job.id() + " " + std::to_string(job.attempt()) + " " + ::getenv("OJS_WORKER_ID");
    print("begin " + run + " " + now_ns());
    const bool slept = sleep(job);
    const bool fails = job.attempt() == 1 && job.arg<std::int64_t>(1);
    print("end " + run + " " + now_ns() + (!slept ? " cut" : fails ? " failed" : " done"));
    if (!slept) return ojs::outcome::interrupted();
    return fails ? ojs::outcome::retry("the first attempt") : ojs::outcome();
}

ojs::outcome run_handler(ojs::job_context& job) {
    return run_job(job, [](ojs::job_context& its) { return its.sleep_for(milliseconds_argument(its)); });
}

// Works on, whatever is asked of it, and returns in the end.
ojs::outcome stubborn_handler(ojs::job_context& job) {
    return run_job(job, [](ojs::job_context& its) {
        const ojs::time_point until = ojs::steady_clock::now() + milliseconds_argument(its);
        while (ojs::steady_clock::now() < until) ::usleep(1000);
        return true;
    });
}

// The signals that are blocked in a program that the handler starts.
std::string mask_handler(ojs::job_context&) {
    char mask[32] = "";
    std::FILE* const child = ::popen("sed -n 's/^SigBlk:[[:space:]]*//p' /proc/self/status", "r");
    const bool read = child != nullptr && std::fscanf(child, "%31s", mask) == 1;
    if (child != nullptr) ::pclose(child);
    return read ? std::string("\"") + mask + "\"" : "null";
}

void register_handlers(ojs::worker& worker) {
    worker.register_handler("test.run", &run_handler);
    worker.register_handler("test.sleep", &sleep_handler);
    worker.register_handler("test.gate", &gate_handler);
    worker.register_handler("test.stubborn", &stubborn_handler);
    worker.register_handler("test.deaf", &deaf_handler);
    worker.register_handler("test.exit", &exit_handler);
    worker.register_handler("test.mask", &mask_handler);
    worker.register_handler("test.result", [](ojs::job_context& job) { return job.args_json(); });
    worker.register_handler("test.not_json", [](ojs::job_context&) { return "not { json"; });
    worker.register_handler("test.throw_argument", [](ojs::job_context& job) -> ojs::outcome {
        throw std::runtime_error("cannot use " + job.args_json());
    });
}

void print_transition(const ojs::lifecycle_state& state) {
    const auto when = ojs::detail::changed_at(state).time_since_epoch();
    print(std::string("phase ") + ojs::to_string(state.phase) + " " + ojs::to_string(state.last_event) + " " +
          std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(when).count()));
}

int run(const ojs::worker_options& options) {
    ojs::worker worker(options);
    register_handlers(worker);
    return worker.run();
}

// A step after the last report that never returns.
int run_with_endless_step(const ojs::worker_options& options) {
    ojs::worker worker(options);
    register_handlers(worker);
    const auto hang = [] {
        print("step hang");
        for (;;) ::pause();
    };
    return worker.on_shutdown("hang", hang, ojs::no_limit) ? worker.run() : 98;
}

bool is_default(int number) {
    struct sigaction found {};
    ::sigaction(number, nullptr, &found);
    return found.sa_handler == SIG_DFL;
}

// A main() that has something left to do when run() returns, and gets the stop signals again meanwhile, after `pause`.
int run_and_flush(const ojs::worker_options& options, std::chrono::milliseconds pause) {
    const int status = run(options);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(::raise(SIGTERM));
    print("child: " + wait_text(child));
    const ojs::time_point later = ojs::deadline_after(pause);
    while (ojs::steady_clock::now() <= later) ::usleep(1000);
    for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::raise(number);
    print("flushed");
    ojs::lifecycle next;
    const auto taken = ojs::signals::install(next);  // SIGTERM and SIGINT alone
    ::raise(SIGTERM);
    if (taken && next.phase() == ojs::phase::draining && is_default(SIGHUP)) print("taken again");
    return status;
}

// The host's guard and start().
int run_in_host(const ojs::worker_options& options) {
    ojs::lifecycle lifecycle(options.signal_debounce);
    ojs::worker worker(options, lifecycle);
    register_handlers(worker);
    {
        const auto taken = ojs::signals::install(lifecycle);
        if (!taken || !worker.start()) return 98;
        print("started");
        worker.wait();
    }
    print(is_default(SIGTERM) ? "given back" : "kept");
    return worker.exit_code();
}

// A pre-fork server: made before it forks, the worker runs in each of three children, which are stopped with it.
int run_in_children(const ojs::worker_options& options, ojs::lifecycle& lifecycle, ojs::signals& taken) {
    ojs::worker worker(options, lifecycle);
    worker.register_handler("test.pid", [](ojs::job_context&) { return std::to_string(::getpid()); });
    pid_t children[3];
    for (pid_t& child : children) {
        child = ::fork();
        if (child == 0) ::_exit(worker.run());
    }
    while (taken.wait().number != SIGTERM) {
    }
    for (const pid_t child : children) ::kill(child, SIGTERM);
    for (const pid_t child : children) print("child: " + wait_text(child));
    return 0;
}

// Signals claimed in the first line of main.
int run_claimed(const ojs::worker_options& options, ojs::lifecycle& lifecycle) {
    print("claimed");
    ojs::worker worker(options, lifecycle);
    register_handlers(worker);
    return worker.run();
}
}  // namespace

int main(int argc, char** argv) {
#ifdef __linux__
    // A test that is killed leaves nobody behind. In a PID namespace of its own the parent is out of sight.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    if (argc > 1) {  // only the line above, for any program
        ::execvp(argv[1], argv + 1);
        return 127;
    }
    const char* set = ::getenv("TEST_MODE");
    const std::string mode = set == nullptr ? "" : set;

    ojs::lifecycle lifecycle;
    ojs::signals taken;
    if (mode == "claimed" || mode == "prefork") {
        auto installed = ojs::signals::install(lifecycle);
        if (!installed) return 98;
        taken = std::move(*installed);
    }
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_startup_error(options.error());
    options->on_transition = &print_transition;
    options->extensions.add(ojs::ops());
    options->transports.add(ojs::spool());
    lifecycle.set_signal_debounce(options->signal_debounce);

    if (mode == "prefork") return run_in_children(*options, lifecycle, taken);
    if (mode == "claimed") return run_claimed(*options, lifecycle);
    if (mode == "endless_step") return run_with_endless_step(*options);
    if (mode == "flush") return run_and_flush(*options, std::chrono::milliseconds(0));
    if (mode == "late_flush") return run_and_flush(*options, options->signal_debounce);
    if (mode == "host") return run_in_host(*options);
    return run(*options);
}

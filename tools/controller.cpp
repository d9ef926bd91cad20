// The controller of the spot guide: runs a child process for each job of a spool directory, and stops as its machine does.
//
//   build/controller --config FILE
//
// FILE, by default /etc/controller/controller.json, needs at least
//   {"spool_dir": "/var/spool/prover", "command": ["/usr/bin/prover", "--input", "{job}"]}
// A job is any file in /var/spool/prover/request but a backup or partial one. Write it elsewhere on that file system, then
// move it there.
//
// If the termination-mode file says NORMAL_SHUTDOWN, jobs have nearly an hour to finish. Anything else, or SIGUSR1, is a
// spot reclaim: children are killed, and their jobs are back in request/ within a second.
#include <fcntl.h>
#include <picojson.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "config_file.hpp"
#include "ojs_ops.hpp"
#include "ojs_process.hpp"
#include "ojs_spool.hpp"

namespace {
using std::chrono::milliseconds;
using namespace std::chrono_literals;
using config_file::wrong_usage;

constexpr const char* usage =
    R"(usage: controller [--config FILE]
       controller --mark-normal [--config FILE]
       controller --reclaim [PID] [--config FILE]
Runs a command for every file in SPOOL_DIR/request until SIGTERM, SIGINT, SIGHUP
or SIGUSR1. Files end in done/ or failed/, or back in request/ if a stop
interrupts them.

  --config FILE    the configuration, see below; else $OJS_CONTROLLER_CONFIG,
                   else /etc/controller/controller.json
  --mark-normal    writes NORMAL_SHUTDOWN into the termination-mode file: for an
                   init container
  --reclaim [PID]  writes SPOT_RECLAIM into it, then sends SIGUSR1 to the
                   controller: PID, or PID 1, or the only other one. For a
                   preStop hook. Without a controller the file stays unchanged,
                   and the exit status is 0
  --help           this text

FILE is a JSON object, or {"controller": OBJECT}; FILE.toml has the same keys,
below [controller] or not.
Durations are "3550s", "1m30s" or seconds as a number. Defaults in parentheses:
  spool_dir                       the queue: request/ processing/ done/ failed/
                                  are made in it
  command                         program and arguments; {job} in them becomes
                                  the path of the job's file
  concurrency (1)                 children at a time
  retry_delays ([0, 1])           before each further run of a job whose child
                                  failed
  termination_grace_period (3550s)
                                  from SIGTERM to SIGKILL of the children in a
                                  normal stop
  child_process_shutdown_timeout (10s)
                                  the children get SIGTERM this long before that
                                  SIGKILL
  container_grace_period (unset)  the container's stop timeout; used only for a
                                  warning
  termination_type_file (/tmp/termination-type)
                                  NORMAL_SHUTDOWN in it: a normal stop. Anything
                                  else, no file, or a file that several users
                                  can write: spot reclaim. From SPOT_RECLAIM
                                  written after the start on, no job is claimed
  metrics_address (none)          serves /metrics, /healthz, /readyz and /livez:
                                  HOST:PORT or unix:/PATH
  spot_instance_mode              deprecated and ignored
Exit status:
  0   every job is settled or requeued
  64  a wrong flag or value
  75  a job could not be moved in time
)";

// ---- log ----

// The guide's lines, which operators search for: logfmt, with "warning" for the library's "warn".
void print_record(const ojs::log_record& record) {
    ojs::log_record plain = record;
    plain.worker_id.clear();
    std::string line = ojs::format_log_record(plain, ojs::log_format::logfmt);
    const std::string_view theirs = " level=warn ";
    const std::size_t level = line.find(theirs);
    if (record.level == ojs::log_level::warn && level != std::string::npos)
        line.replace(level, theirs.size(), " level=warning ");
    ojs::write_log_line(STDERR_FILENO, std::move(line));  // not write(2): the reader may be blocked
}

// Replaces the worker's variables, which the library names, by the configuration's keys.
std::string with_our_names(std::string text) {
    constexpr std::pair<std::string_view, std::string_view> words[] = {
        {"health address (OJS_HEALTH_ADDR)", "metrics_address"},
        {"OJS_HEALTH_ADDR", "metrics_address"},
        {"OJS_CONTAINER_GRACE_PERIOD", "container_grace_period"},
        {"OJS_SHUTDOWN_GRACE_PERIOD", "termination_grace_period"},
    };
    for (const auto& [theirs, ours] : words) {
        for (std::size_t at = text.find(theirs); at != std::string::npos; at = text.find(theirs, at + ours.size()))
            text.replace(at, theirs.size(), ours);
    }
    return text;
}

// The controller has none of the worker's variables.
bool is_irrelevant_finding(const ojs::log_field& field) {
    return field.name == "finding" && field.value == "variable-unknown";
}

void print_library_record(const ojs::log_record& record) {
    if (std::any_of(record.fields.begin(), record.fields.end(), is_irrelevant_finding)) return;
    ojs::log_record ours = record;
    for (ojs::log_field& field : ours.fields) {
        if (field.name == "fix" || field.name == "error") field.value = with_our_names(std::move(field.value));
    }
    print_record(ours);
}

void log(ojs::log_level level, std::string message, std::vector<ojs::log_field> fields = {}) {
    print_record({level, std::move(message), std::move(fields), ""});
}

// ---- configuration ----

struct config {
    ojs::worker_options options;
    ojs::ops_options health;
    ojs::spool_options spool;
    std::vector<std::string> command;
    bool has_spot_instance_mode = false;
};

// Thrown by a value's reader; caught by read_config(), which knows the key.
struct invalid_value : std::runtime_error {
    using std::runtime_error::runtime_error;
};

milliseconds read_duration(const picojson::value& value) {
    constexpr double max_bare_seconds = 3600;  // as in parse_duration()
    if (value.is<std::string>()) {
        const auto read = ojs::parse_duration(value.get<std::string>());
        if (!read) throw invalid_value(read.error().text);
        return *read;
    }
    if (!value.is<double>()) throw invalid_value("must be a duration: \"3550s\", or seconds");
    const double seconds = value.get<double>();
    if (!(seconds >= 0 && seconds <= max_bare_seconds))
        throw invalid_value("must be from 0 to 3600 seconds, or have its unit: \"25h\", \"500ms\"");
    return milliseconds(static_cast<std::int64_t>(std::llround(seconds * 1000)));
}

std::string read_text(const picojson::value& value) {
    if (!value.is<std::string>() || value.get<std::string>().empty())
        throw invalid_value("must be a string, not empty");
    const std::string& text = value.get<std::string>();
    if (text.find('\0') != std::string::npos) throw invalid_value("contains a NUL byte");
    return text;
}

const picojson::array& read_array(const picojson::value& value) {
    if (!value.is<picojson::array>()) throw invalid_value("must be an array");
    return value.get<picojson::array>();
}

void read_command(const picojson::value& value, config& out) {
    for (const picojson::value& word : read_array(value)) {
        if (!word.is<std::string>()) throw invalid_value("must be an array of strings");
        out.command.push_back(word.get<std::string>());
        if (out.command.back().find('\0') != std::string::npos) throw invalid_value("contains a NUL byte");
    }
    if (out.command.empty() || out.command[0].empty()) throw invalid_value("must name a program");
}

void read_retry_delays(const picojson::value& value, config& out) {
    out.spool.retry_delays.clear();
    for (const picojson::value& delay : read_array(value)) out.spool.retry_delays.push_back(read_duration(delay));
}

void read_concurrency(const picojson::value& value, config& out) {
    const double number = value.is<double>() ? value.get<double>() : 0;
    if (!(number >= 1 && number <= 1000) || number != std::floor(number))
        throw invalid_value("must be an integer from 1 to 1000");
    out.options.concurrency = static_cast<std::int64_t>(number);
}

void read_spot_instance_mode(const picojson::value& value, config& out) {
    if (!value.is<bool>()) throw invalid_value("must be true or false");
    out.has_spot_instance_mode = true;
}

constexpr struct {
    const char* key;
    void (*read)(const picojson::value&, config&);
} keys[] = {
    {"spool_dir", [](const picojson::value& value, config& out) { out.spool.directory = read_text(value); }},
    {"command", read_command},
    {"concurrency", read_concurrency},
    {"retry_delays", read_retry_delays},
    {"termination_grace_period",
     [](const picojson::value& value, config& out) { out.options.times.shutdown_grace_period = read_duration(value); }},
    {"container_grace_period",
     [](const picojson::value& value, config& out) {
         out.options.container_grace_period = read_duration(value);
         if (out.options.container_grace_period == 0ms) throw invalid_value("must be longer than 0");
     }},
    {"child_process_shutdown_timeout",
     [](const picojson::value& value, config& out) {
         out.options.times.cancel_before_deadline = read_duration(value);
     }},
    {"termination_type_file",
     [](const picojson::value& value, config& out) { out.options.termination_mode_file = read_text(value); }},
    {"metrics_address", [](const picojson::value& value, config& out) { out.health.address = read_text(value); }},
    {"spot_instance_mode", read_spot_instance_mode},
};

void read_key(const std::string& key, const picojson::value& value, config& out) {
    for (const auto& known : keys) {
        if (key == known.key) return known.read(value, out);
    }
    throw invalid_value("is unknown; --help lists all keys");
}

config defaults() {
    config out;
    out.options.apply_profile(ojs::profile::spot_controller());
    out.options.concurrency = 1;
    out.options.times.cancel_grace = 2s;  // for handlers to return after the SIGKILL at the end of the grace period
    out.options.log.hook = print_library_record;
    out.spool.accept_any_file = true;
    return out;
}

constexpr const char* config_variable = "OJS_CONTROLLER_CONFIG";
constexpr const char* default_config = "/etc/controller/controller.json";

// The flag's file, else the variable's, else the default one if it exists; empty: none.
std::string find_config(const std::string& flag) {
    if (!flag.empty()) return flag;
    const char* named = ::getenv(config_variable);
    if (named != nullptr && *named != '\0') return named;
    return ::access(default_config, F_OK) == 0 ? default_config : "";
}

ojs::result<config> read_config(const std::string& path) {
    const auto object = config_file::read(path, "controller");
    if (!object) return object.error();
    config out = defaults();
    for (const auto& [key, value] : *object) {
        try {
            read_key(key, value, out);
        } catch (const invalid_value& wrong) {
            return wrong_usage(path + ": " + key.substr(0, 60) + ": " + wrong.what());
        }
    }
    return out;
}

bool is_program(const std::string& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return false;
    errno = EISDIR;
    return !S_ISDIR(info.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

// Searches like child_process: empty parts of PATH are skipped. Empty: found nowhere, see errno.
std::string find_program(const std::string& name) {
    if (name.find('/') != std::string::npos) return is_program(name) ? name : "";
    const char* set = ::getenv("PATH");
    std::istringstream parts(set != nullptr ? set : "/usr/local/bin:/usr/bin:/bin");
    for (std::string part; std::getline(parts, part, ':');) {
        if (!part.empty() && is_program(part + "/" + name)) return part + "/" + name;
    }
    return "";
}

// With a missing program every job would fail.
ojs::result<void> check_program(const std::string& path, const std::string& program) {
    if (program.find("{job}") != std::string::npos || !find_program(program).empty()) return {};
    const bool is_path = program.find('/') != std::string::npos;
    const std::string why = is_path ? std::strerror(errno) : "is in no folder of PATH";
    return wrong_usage(path + ": command: " + program + ": " + why);
}

// Checks what only run_controller() needs.
ojs::result<void> check(const std::string& path, const config& config) {
    if (config.spool.directory.empty()) return wrong_usage(path + ": spool_dir is missing");
    if (config.command.empty()) return wrong_usage(path + ": command is missing");
    const auto program = check_program(path, config.command[0]);
    if (!program) return program;
    if (config.options.times.cancel_before_deadline >= config.options.times.shutdown_grace_period) {
        return wrong_usage(path + ": child_process_shutdown_timeout must be shorter than termination_grace_period");
    }
    return {};
}

// ---- jobs ----

// While the command cannot be executed, no job is claimed for 250 ms, then twice as long, up to 5 s.
class start_back_off {
  public:
    bool holds_claims() {
        const std::lock_guard<std::mutex> held(mutex_);
        return ojs::steady_clock::now() < until_;
    }
    // Several jobs claimed at once may fail together: they count once.
    void note(bool started) {
        const std::lock_guard<std::mutex> held(mutex_);
        const ojs::time_point now = ojs::steady_clock::now();
        if (started) next_ = min_delay;
        if (started || now < until_) return;
        until_ = now + next_;
        next_ = std::min(next_ * 2, max_delay);
    }

  private:
    static constexpr milliseconds min_delay{250};
    static constexpr milliseconds max_delay{5000};

    std::mutex mutex_;
    milliseconds next_ = min_delay;
    ojs::time_point until_ = ojs::time_point::min();
};

class controller {
  public:
    explicit controller(std::vector<std::string> command) : command_(std::move(command)) {}

    void set_worker(const ojs::worker& worker) { worker_ = &worker; }

    // Runs a job's child until it ends or the job is cancelled.
    ojs::outcome run(ojs::job_context& job) {
        const std::string name = process_name(job.id());
        entry here(*this, job.id());
        auto child = ojs::child_process::start(make_child_options(job, name));
        if (!child) return outcome_of_start(job, child.error());
        back_off.note(true);
        log(ojs::log_level::info, "Process " + name + " started",
            {field("pid", std::to_string(child->pid())), field("attempt", std::to_string(job.attempt()))});
        const auto end = child->wait_until(ojs::time_point::max(), job.token());
        if (end) return outcome_of(job, *end);
        if (end.error().code == ojs::errc::cancelled) return stop_child(job, here, std::move(*child));
        log(ojs::log_level::error, "Job " + job.id() + " failed", {field("error", end.error().text)});
        if (!has_ended(child->kill(kill_timeout))) here.keep_claimed(std::move(*child));
        return is_transient(end.error()) ? ojs::outcome::interrupted(end.error().text)
                                         : ojs::outcome::retry(end.error().text);
    }

    // Whether a child may still work on that job, even though its handler has returned.
    bool may_run(const std::string& id) {
        const std::lock_guard<std::mutex> held(mutex_);
        const auto left = remaining_.find(id);
        if (left != remaining_.end() && has_ended(left->second.wait(ojs::time_point::min()))) {
            remaining_.erase(left);
            running_.erase(id);
        }
        return running_.count(id) != 0;
    }

    // Waits for the children that survived SIGKILL, then requeues their jobs. Until then their claims stand.
    template <class GiveBack>
    void wait_for_remaining(GiveBack requeue) {
        for (auto& [id, child] : remaining_) {
            log(ojs::log_level::warn,
                "Process " + process_name(id) + " does not end. Waiting for it, as its job must not be run beside it",
                {field("pid", std::to_string(child.pid()))});
            static_cast<void>(child.wait());
            requeue(id);
        }
    }

    void on_transition(const ojs::lifecycle_state& now) {
        // In a reclaim the worker has left the draining phase already.
        if (now.phase == ojs::phase::draining && worker_->phase() == ojs::phase::draining) log_running_jobs();
        if (now.phase == ojs::phase::terminated && serves_metrics)
            log(ojs::log_level::info, "Shutting down metrics server");
    }

    bool serves_metrics = false;
    start_back_off back_off;

  private:
    // Lists a job as running.
    class entry {
      public:
        entry(controller& owner, std::string id) : owner_(owner), id_(std::move(id)) {
            const std::lock_guard<std::mutex> held(owner_.mutex_);
            owner_.running_.insert(id_);
            if (owner_.draining_) log_running_job(id_);  // claimed just before the stop
        }
        entry(const entry&) = delete;
        entry& operator=(const entry&) = delete;
        ~entry() {
            const std::lock_guard<std::mutex> held(owner_.mutex_);
            if (!keeps_claim_) owner_.running_.erase(id_);
        }
        // SIGKILL did not end it: it blocks in the kernel, or we may not signal it.
        void keep_claimed(ojs::child_process child) {
            log(ojs::log_level::error,
                "Process " + process_name(id_) + " is still there; its job stays claimed until it has ended",
                {field("pid", std::to_string(child.pid()))});
            const std::lock_guard<std::mutex> held(owner_.mutex_);
            owner_.remaining_[id_] = std::move(child);
            keeps_claim_ = true;
        }

      private:
        controller& owner_;
        const std::string id_;
        bool keeps_claim_ = false;
    };

    // Shorter than stop_timeout.
    static constexpr milliseconds kill_timeout{2000};

    static std::string process_name(const std::string& id) { return "execution-" + id; }

    // Any other error means that another waiter has reaped it.
    static bool has_ended(const ojs::result<ojs::child_exit>& end) {
        return end || end.error().code != ojs::errc::timed_out;
    }

    // A shortage of the machine, or a program that is being replaced.
    static bool is_transient(const ojs::error& why) {
        constexpr int passing[] = {EAGAIN, ENOMEM, EMFILE, ENFILE, ENOSPC, EDQUOT, ETXTBSY, EIO, ESTALE, EPERM};
        return why.code == ojs::errc::timed_out ||
               std::count(std::begin(passing), std::end(passing), why.sys_errno) > 0;
    }

    bool runs_job() const { return command_[0].find("{job}") != std::string::npos; }

    // A crash soon after a change of the program's file: a deployment may be copying over it.
    bool may_be_half_copied(const ojs::child_exit& end) const {
        struct stat info {};
        if (runs_job() || (end.signal != SIGSEGV && end.signal != SIGBUS && end.signal != SIGILL) ||
            ::stat(find_program(command_[0]).c_str(), &info) != 0)
            return false;
        return std::abs(std::difftime(::time(nullptr), info.st_ctime)) <= 10;
    }

    // A command that cannot be executed says nothing about the job, unless the job's own file is the program.
    ojs::outcome outcome_of_start(const ojs::job_context& job, const ojs::error& why) {
        const bool is_verdict = runs_job() && !is_transient(why);
        log(ojs::log_level::error, "Job " + job.id() + " cannot be started",
            {field("error", why.text), field("attempt_counted", is_verdict ? "yes" : "no")});
        if (is_verdict) return ojs::outcome::retry(why.text);
        back_off.note(false);
        return ojs::outcome::interrupted(why.text);
    }

    static ojs::log_field field(std::string name, std::string value) {
        return {std::move(name), std::move(value), false};
    }

    ojs::child_options make_child_options(const ojs::job_context& job, const std::string& name) const {
        ojs::child_options out;
        const std::string path = job.meta("spool_path");
        for (std::string word : command_) {
            constexpr std::string_view placeholder = "{job}";
            for (std::size_t at = word.find(placeholder); at != std::string::npos;
                 at = word.find(placeholder, at + path.size()))
                word.replace(at, placeholder.size(), path);
            out.command.push_back(std::move(word));
        }
        const auto log_lines_of = [&name](const char* stream) {
            return ojs::child_stream::lines([name, stream](std::string_view line) {
                log(ojs::log_level::info, std::string(line), {field("process", name), field("stream", stream)});
            });
        };
        out.output = log_lines_of("stdout");
        out.errors = log_lines_of("stderr");
        return out;
    }

    ojs::outcome outcome_of(const ojs::job_context& job, const ojs::child_exit& end) {
        if (may_be_half_copied(end)) {
            log(ojs::log_level::error, "The program has just changed and crashes: it may not be complete yet",
                {field("error", end.describe()), field("attempt_counted", "no"), field("job_id", job.id())});
            back_off.note(false);
            return ojs::outcome::interrupted(end.describe());
        }
        if (!end.ok()) {
            log(ojs::log_level::warn, "Job " + job.id() + " failed",
                {field("error", end.describe()), field("attempt", std::to_string(job.attempt()))});
            return ojs::outcome::retry(end.describe());
        }
        struct stat info {};
        if (::lstat(job.meta("spool_path").c_str(), &info) != 0 && errno == ENOENT)
            log(ojs::log_level::info, "Job " + job.id() + " removed or moved its own file; it is done without");
        if (job.stop_requested())
            log(ojs::log_level::info, "Job completed before grace period, cancelling context for cleanup");
        return ojs::outcome::done();
    }

    // The job is requeued whatever the child's exit status: 0 after SIGTERM may mean that it gave up cleanly, and a job
    // run twice is better than a lost one.
    ojs::outcome stop_child(const ojs::job_context& job, entry& here, ojs::child_process child) const {
        const std::string name = process_name(job.id());
        const bool reclaim = job.token().reason() == ojs::cancel_reason::spot_reclaim;
        if (reclaim) {
            log(ojs::log_level::warn, "Spot reclaim: Immediately killing process " + name + " to requeue job");
        } else {
            log(ojs::log_level::warn, "Grace period is about to expire. Sending SIGTERM to process " + name);
        }
        const auto left = std::chrono::duration_cast<milliseconds>(job.deadline() - ojs::steady_clock::now());
        const auto end = reclaim ? child.kill(kill_timeout) : child.terminate(std::max(left, 0ms), kill_timeout);
        if (!has_ended(end)) {
            here.keep_claimed(std::move(child));
            return ojs::outcome::interrupted("the controller is stopped");
        }
        log(ojs::log_level::info, "Job " + job.id() + " was killed by us. Reputting it in the request folder",
            {field("end", end ? end->describe() : end.error().text)});
        return ojs::outcome::interrupted("the controller is stopped");
    }

    void log_running_jobs() {
        const std::lock_guard<std::mutex> held(mutex_);
        draining_ = true;
        for (const std::string& id : running_) log_running_job(id);
    }

    static void log_running_job(const std::string& id) {
        log(ojs::log_level::info,
            "Job " + process_name(id) + " is currently processing. Will wait for completion or grace period expiry.");
    }

    const std::vector<std::string> command_;
    const ojs::worker* worker_ = nullptr;
    std::mutex mutex_;
    std::set<std::string> running_;                        // ids of jobs
    std::map<std::string, ojs::child_process> remaining_;  // those whose handler has returned
    bool draining_ = false;
};

// Claims no job while a reclaim is announced or the command cannot be executed, and settles none while its child may run.
// The worker retries a report that comes too early.
class guarded_queue : public ojs::transport {
  public:
    guarded_queue(ojs::transport& queue, controller& children, std::string mode_file)
        : queue_(queue), children_(children), mode_file_(std::move(mode_file)) {}

    // Reads the file before each claim.
    ojs::result<std::vector<ojs::job>> fetch(const ojs::fetch_request& request, ojs::time_point deadline) override {
        ojs::fetch_request guarded = request;
        guarded.should_send = [&] {
            return !children_.back_off.holds_claims() && !is_reclaim_announced() && request.should_send();
        };
        return queue_.fetch(guarded, deadline);
    }
    ojs::result<ojs::settle_result> ack(const ojs::ack_request& request, ojs::time_point deadline) override {
        return queue_.ack(request, deadline);
    }
    ojs::result<ojs::settle_result> fail(const ojs::fail_request& request, ojs::time_point deadline) override {
        if (children_.may_run(request.job_id))
            return ojs::error{ojs::errc::unavailable, 0, "its process may still run; the job stays claimed"};
        return queue_.fail(request, deadline);
    }
    ojs::result<ojs::heartbeat_response> heartbeat(const ojs::heartbeat_request& request,
                                                   ojs::time_point deadline) override {
        return queue_.heartbeat(request, deadline);
    }
    void on_work_available(ojs::function<void()> callback) override { queue_.on_work_available(std::move(callback)); }

  private:
    // A missing file announces nothing, nor does one from before the start.
    bool is_reclaim_announced() {
        const ojs::termination_mode mode = ojs::read_termination_mode(mode_file_);
        const bool now = mode.evidence == ojs::termination_evidence::reclaim && mode.changed_ms > started_ms_;
        if (was_announced_.exchange(now) == now) return now;
        log(now ? ojs::log_level::warn : ojs::log_level::info,
            "File " + mode_file_ +
                (now ? " contains SPOT_RECLAIM: no job is claimed until that changes"
                     : " no longer contains SPOT_RECLAIM: jobs are claimed again"));
        return now;
    }

    ojs::transport& queue_;
    controller& children_;
    const std::string mode_file_;
    const std::int64_t started_ms_ =
        std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    std::atomic<bool> was_announced_{false};
};

// ---- commands ----

int run_controller(const std::string& path) {
    ::signal(SIGCHLD, SIG_DFL);                  // an inherited SIG_IGN would discard the children's exit status
    const auto below_init = ojs::run_as_init();  // as PID 1: reaps orphans
    if (!below_init) return ojs::report_startup_error(below_init.error());
    ojs::lifecycle lifecycle;
    ojs::signal_options taken;
    taken.reclaim = true;
    taken.stop_signals = {SIGTERM, SIGINT, SIGHUP};
    taken.third_signal_exits = false;                        // the first signal wins
    auto signals = ojs::signals::install(lifecycle, taken);  // first: keeps a signal that arrives during start-up
    if (!signals) return ojs::report_startup_error(signals.error());
    auto config = read_config(path);
    if (!config) return ojs::report_startup_error(config.error());
    const auto checked = check(path, *config);
    if (!checked) return ojs::report_startup_error(checked.error());
    if (config->has_spot_instance_mode) {
        log(ojs::log_level::warn, "spot_instance_mode is deprecated and ignored; the termination-mode file decides",
            {{"file", config->options.termination_mode_file, false}});
    }
    config->spool.log = [](const ojs::log_record& record) { log(record.level, record.message, record.fields); };
    const auto opened = ojs::open_spool(config->spool);
    if (!opened) return ojs::report_startup_error(opened.error());
    ojs::transport& queue = **opened;
    controller controller(config->command);
    guarded_queue guarded(queue, controller, config->options.termination_mode_file);
    controller.serves_metrics = !config->health.address.empty();
    config->options.extensions.add(ojs::ops(config->health));
    config->options.on_transition = [&](const ojs::lifecycle_state& now) { controller.on_transition(now); };
    ojs::worker worker(config->options, guarded, lifecycle);
    controller.set_worker(worker);
    worker.register_handler("file", [&](ojs::job_context& job) { return controller.run(job); });
    const int status = worker.run();
    controller.wait_for_remaining([&](const std::string& id) {
        ojs::fail_request back;
        back.job_id = id;
        back.requeue = true;
        static_cast<void>(queue.fail(back, ojs::deadline_after(1s)));  // else the next controller recovers it
    });
    if (status == 0) log(ojs::log_level::info, "Graceful shutdown complete");
    // A signal that comes now must not become the exit status.
    for (const int late : {SIGUSR1, SIGTERM, SIGINT, SIGHUP}) ::signal(late, SIG_IGN);
    return status;
}

// Atomically, as the controller may read it at any time. By a new file with a random name that replaces the old one: in
// /tmp that may be another user's symbolic link, which must not be followed.
bool write_atomically(const std::string& path, const std::string& word) {
    std::string fresh = path + ".XXXXXX";
    const int file = ::mkostemp(fresh.data(), O_CLOEXEC);
    if (file < 0) return false;
    const std::string line = word + "\n";
    const bool written = ::write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
                         ::fchmod(file, 0644) == 0;  // the controller may be another user
    ::close(file);
    if (written && ::rename(fresh.c_str(), path.c_str()) == 0) return true;
    const int failed = errno;
    ::unlink(fresh.c_str());
    errno = failed;
    return false;
}

int write_mode(const std::string& file, const std::string& word) {
    if (write_atomically(file, word)) return 0;
    std::perror(("error: cannot write " + file).c_str());
    return 1;
}

// For the signal to be sent even if the file's disk does not answer.
int write_mode_in_time(const std::string& file, const std::string& word) {
    const auto written = std::make_shared<std::promise<int>>();
    std::future<int> status = written->get_future();
    std::thread([=] { written->set_value(write_mode(file, word)); }).detach();
    if (status.wait_for(1s) == std::future_status::ready) return status.get();
    std::fprintf(stderr, "error: cannot write %s: no response within 1s\n", file.c_str());
    return 1;
}

ojs::result<config> read_config_or_defaults(const std::string& path) {
    return path.empty() ? ojs::result<config>(defaults()) : read_config(path);
}

int mark_normal(const std::string& path) {
    const auto config = read_config_or_defaults(path);
    if (!config) return ojs::report_startup_error(config.error());
    return write_mode(config->options.termination_mode_file, "NORMAL_SHUTDOWN");
}

void restore_mode(const std::string& file, const ojs::termination_mode& before) {
    if (!before.is_reclaim()) {
        write_mode(file, "NORMAL_SHUTDOWN");
    } else if (before.evidence == ojs::termination_evidence::missing) {
        ::unlink(file.c_str());
    }
}

// There is no controller, PID is not one, or no PID is given and /proc is missing.
bool is_no_controller(const ojs::error& why) { return why.sys_errno == ESRCH || why.code == ojs::errc::unsupported; }

// A hook that runs after the controller has ended must not report a failure to its container.
int report_no_controller(const ojs::error& why, bool named) {
    if (why.sys_errno != ESRCH || named) {
        ojs::report_startup_error(why);
        return 1;
    }
    std::printf("nothing to reclaim: %s\n", why.text.c_str());
    return 0;
}

// Writes the file first, as a SIGTERM may come at any time, and sends the signal even if that fails. Without a controller
// the file is restored, or a later normal stop would be a reclaim.
int reclaim(const std::string& path, pid_t pid) {
    const auto found = ojs::find_worker("reclaim", pid);
    if (!found && is_no_controller(found.error())) return report_no_controller(found.error(), pid > 1);
    const auto config = read_config_or_defaults(path);
    const std::string file = config ? config->options.termination_mode_file : "";
    const ojs::termination_mode before = ojs::read_termination_mode(file);
    const int written = config ? write_mode_in_time(file, "SPOT_RECLAIM") : ojs::report_startup_error(config.error());
    const auto sent = found ? ojs::signal_worker("reclaim", *found) : found;
    if (sent) return written;
    if (written == 0 && is_no_controller(sent.error())) restore_mode(file, before);
    return report_no_controller(sent.error(), false);
}

// ---- flags ----

struct command_line {
    bool help = false;
    bool mark_normal = false;
    bool reclaim = false;
    pid_t pid = 0;
    std::string config;
};

bool is_flag(std::string_view word) { return word.substr(0, 1) == "-"; }

ojs::result<pid_t> read_pid(const std::string& text) {
    int number = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failed == std::errc() && end == text.data() + text.size() && number > 0) return pid_t{number};
    return wrong_usage("'" + text + "' is not a process id");
}

ojs::result<command_line> read_flags(const std::vector<std::string>& words) {
    command_line out;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const bool has_value = i + 1 < words.size() && !is_flag(words[i + 1]);
        if (words[i] == "--help") {
            out.help = true;
        } else if (words[i] == "--mark-normal") {
            out.mark_normal = true;
        } else if (words[i] == "--reclaim") {
            out.reclaim = true;
            if (!has_value) continue;
            const auto pid = read_pid(words[++i]);
            if (!pid) return pid.error();
            out.pid = *pid;
        } else if (words[i] == "--config") {
            if (!has_value || words[i + 1].empty()) return wrong_usage("--config needs a file; see --help");
            if (!out.config.empty()) return wrong_usage("--config is given twice");
            out.config = words[++i];
        } else {
            return wrong_usage("unknown flag '" + words[i].substr(0, 60) + "'; see --help");
        }
    }
    if (out.mark_normal && out.reclaim) return wrong_usage("--mark-normal and --reclaim exclude each other");
    return out;
}
}  // namespace

int main(int argc, char** argv) {
    const auto flags = read_flags({argv + 1, argv + argc});
    if (!flags) return ojs::report_startup_error(flags.error());
    if (flags->help) return std::fputs(usage, stdout) < 0 ? 1 : 0;
    const std::string config = find_config(flags->config);
    if (flags->mark_normal) return mark_normal(config);
    if (flags->reclaim) return reclaim(config, flags->pid);
    if (!config.empty()) return run_controller(config);
    return ojs::report_startup_error(
        wrong_usage(std::string("there is no configuration: give --config FILE, name it in ") + config_variable +
                    ", or put it at " + default_config + "; see --help"));
}

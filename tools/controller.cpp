// The controller of the spot guide: one child process for each job of a folder queue, stopped the way the machine is.
//
//   build/controller --config FILE
//
// where FILE, by default /etc/controller/controller.json, is, at the least,
//   {"spool_dir": "/var/spool/prover", "command": ["/usr/bin/prover", "--input", "{job}"]}
// and a job is any file that appears in /var/spool/prover/request (write it elsewhere on that disk, then move it there).
//
// A stop is a normal one if the termination type file says NORMAL_SHUTDOWN: jobs have nearly an hour to finish. Anything
// else, or SIGUSR1, is a spot reclaim: children are killed and their jobs are back in request/ within a second.
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
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config_file.hpp"
#include "ojs_operating.hpp"
#include "ojs_process.hpp"
#include "ojs_spool.hpp"

namespace {

using std::chrono::milliseconds;
using namespace std::chrono_literals;
using config_file::wrong_usage;

constexpr const char* usage =
    "usage: controller [--config FILE]\n"
    "       controller --mark-normal [--config FILE]\n"
    "       controller --reclaim [PID] [--config FILE]\n"
    "Runs a command for every file in SPOOL_DIR/request until SIGTERM, SIGINT, SIGHUP or SIGUSR1. Files end "
    "in "
    "done/ or\n"
    "failed/, or back in request/ where the stop came first.\n"
    "\n"
    "  --config FILE    the configuration, see below; else $OJS_CONTROLLER_CONFIG, else "
    "/etc/controller/controller.json\n"
    "  --mark-normal    writes NORMAL_SHUTDOWN into the termination type file: for an init container\n"
    "  --reclaim [PID]  writes SPOT_RECLAIM into it, then sends SIGUSR1 to the controller, which is PID, or "
    "PID 1 if\n"
    "                   that is one, or the only other one: for a preStop hook. Status 0 as well where it "
    "has "
    "ended\n"
    "                   already; the file then stays as it was\n"
    "  --help           this text\n"
    "\n"
    "FILE is a JSON object, or {\"controller\": OBJECT}; FILE.toml has the same keys, below [controller] or "
    "not.\n"
    "Durations are \"3550s\", \"1m30s\" or seconds as a number. Defaults in parentheses:\n"
    "  spool_dir                       the queue: request/ processing/ done/ failed/ are made in it\n"
    "  command                         program and arguments; {job} in them becomes the path of the job's "
    "file\n"
    "  concurrency (1)                 children at a time\n"
    "  retry_delays ([0, 1])           before each further run of a job whose child failed\n"
    "  termination_grace_period (3550s)        from SIGTERM in a normal stop until the child is killed\n"
    "  child_process_shutdown_timeout (10s)    so long before that the child gets SIGTERM\n"
    "  container_grace_period (not known)      what the container grants until SIGKILL; too little is a "
    "warning\n"
    "  termination_type_file (/tmp/termination-type)\n"
    "                                  NORMAL_SHUTDOWN in it: a normal stop; anything else, no file, or one "
    "that belongs\n"
    "                                  neither to the controller's user nor to root: spot reclaim. While it "
    "says\n"
    "                                  SPOT_RECLAIM no job is claimed\n"
    "  metrics_address (none)          where /metrics, /healthz, /readyz and /livez are answered: HOST:PORT "
    "or unix:/PATH\n"
    "  spot_instance_mode              deprecated, and not looked at\n"
    "Exit status: 0 every job is where it belongs; 75 some could not be moved there in time; 64 a wrong flag "
    "or value.\n";

// ---- log ----

// The guide's lines, which operators search for: logfmt, with "warning" where the library says "warn".
void print_record(const ojs::log_record& record) {
    ojs::log_record plain = record;
    plain.worker_id.clear();
    std::string line = ojs::format_log_record(plain, ojs::log_format::logfmt);
    const std::string_view theirs = " level=warn ";
    const std::size_t level = line.find(theirs);
    if (record.level == ojs::log_level::warn && level != std::string::npos)
        line.replace(level, theirs.size(), " level=warning ");
    ojs::write_log_line(STDERR_FILENO, std::move(line));  // not write(2): nobody may read it
}

// The library names the worker's variables. Here they are keys of the configuration.
std::string in_our_words(std::string text) {
    constexpr std::pair<std::string_view, std::string_view> words[] = {
        {"health_address (OJS_HEALTH_ADDR)", "metrics_address"},
        {"OJS_HEALTH_ADDR", "metrics_address"},
        {"OJS_CONTAINER_GRACE_PERIOD", "container_grace_period"},
        {"OJS_SHUTDOWN_GRACE_PERIOD", "termination_grace_period"},
    };
    for (const auto& [theirs, ours] : words) {
        for (std::size_t at = text.find(theirs); at != std::string::npos;
             at = text.find(theirs, at + ours.size()))
            text.replace(at, theirs.size(), ours);
    }
    return text;
}

// Of heartbeats, on which nothing hangs in a spool; of the worker's variables and its way to be made quiet.
bool is_finding_of_others(const ojs::log_field& field) {
    return field.name == "finding" && (field.value == "grace-below-heartbeat" ||
                                       field.value == "variable-unknown" || field.value == "pid1-sigtstp");
}

void print_of_library(const ojs::log_record& record) {
    if (std::any_of(record.fields.begin(), record.fields.end(), is_finding_of_others)) return;
    ojs::log_record ours = record;
    for (ojs::log_field& field : ours.fields) {
        if (field.name == "fix" || field.name == "error") field.value = in_our_words(std::move(field.value));
    }
    print_record(ours);
}

void say(ojs::log_level level, std::string message, std::vector<ojs::log_field> fields = {}) {
    print_record({level, std::move(message), std::move(fields), ""});
}

// ---- configuration ----

struct config {
    ojs::worker_options options;
    ojs::spool_options spool;
    std::vector<std::string> command;
    bool has_spot_instance_mode = false;
};

// What a value cannot be used for; caught where the key is known.
struct wrong_value : std::runtime_error {
    using std::runtime_error::runtime_error;
};

milliseconds read_duration(const picojson::value& value) {
    constexpr double max_bare_seconds = 3600;  // as in parse_duration()
    if (value.is<std::string>()) {
        const auto read = ojs::parse_duration(value.get<std::string>());
        if (!read) throw wrong_value(read.error().text);
        return *read;
    }
    if (!value.is<double>()) throw wrong_value("must be a duration: \"3550s\", or seconds");
    const double seconds = value.get<double>();
    if (!(seconds >= 0 && seconds <= max_bare_seconds))
        throw wrong_value("must be from 0 to 3600 seconds, or have its unit: \"25h\", \"500ms\"");
    return milliseconds(static_cast<std::int64_t>(std::llround(seconds * 1000)));
}

std::string read_text(const picojson::value& value) {
    if (!value.is<std::string>() || value.get<std::string>().empty())
        throw wrong_value("must be a text, not empty");
    const std::string& text = value.get<std::string>();
    if (text.find('\0') != std::string::npos) throw wrong_value("holds a NUL byte");
    return text;
}

const picojson::array& read_array(const picojson::value& value) {
    if (!value.is<picojson::array>()) throw wrong_value("must be an array");
    return value.get<picojson::array>();
}

void read_command(const picojson::value& value, config& out) {
    for (const picojson::value& each : read_array(value)) {
        if (!each.is<std::string>()) throw wrong_value("must be an array of texts");
        out.command.push_back(each.get<std::string>());
        if (out.command.back().find('\0') != std::string::npos) throw wrong_value("holds a NUL byte");
    }
    if (out.command.empty() || out.command[0].empty()) throw wrong_value("must name a program");
}

void read_retry_delays(const picojson::value& value, config& out) {
    out.spool.retry_delays.clear();
    for (const picojson::value& each : read_array(value))
        out.spool.retry_delays.push_back(read_duration(each));
}

void read_concurrency(const picojson::value& value, config& out) {
    const double number = value.is<double>() ? value.get<double>() : 0;
    if (!(number >= 1 && number <= 1000) || number != std::floor(number))
        throw wrong_value("must be a whole number from 1 to 1000");
    out.options.concurrency = static_cast<std::int64_t>(number);
}

void read_spot_instance_mode(const picojson::value& value, config& out) {
    if (!value.is<bool>()) throw wrong_value("must be true or false");
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
     [](const picojson::value& value, config& out) {
         out.options.times.shutdown_grace_period = read_duration(value);
     }},
    {"container_grace_period",
     [](const picojson::value& value, config& out) {
         out.options.container_grace_period = read_duration(value);
         if (out.options.container_grace_period == 0ms) throw wrong_value("must be longer than 0");
     }},
    {"child_process_shutdown_timeout",
     [](const picojson::value& value, config& out) { out.options.times.cancel_lead = read_duration(value); }},
    {"termination_type_file",
     [](const picojson::value& value, config& out) { out.options.termination_mode_file = read_text(value); }},
    {"metrics_address",
     [](const picojson::value& value, config& out) { out.options.health_address = read_text(value); }},
    {"spot_instance_mode", read_spot_instance_mode},
};

void read_key(const std::string& key, const picojson::value& value, config& out) {
    for (const auto& each : keys) {
        if (key == each.key) return each.read(value, out);
    }
    throw wrong_value("is not known; --help lists all keys");
}

config defaults() {
    config out;
    out.options.use(ojs::dialect::spot_controller());
    out.options.concurrency = 1;
    out.options.times.cancel_wait =
        2s;  // after the SIGKILL at the end of the grace period: for handlers to return
    out.options.log.hook = print_of_library;
    out.spool.any_file = true;
    return out;
}

constexpr const char* config_variable = "OJS_CONTROLLER_CONFIG";
constexpr const char* usual_config = "/etc/controller/controller.json";

// The first there is of the flag's, the variable's and the usual one; empty: none.
std::string find_config(const std::string& flag) {
    if (!flag.empty()) return flag;
    const char* named = ::getenv(config_variable);
    if (named != nullptr && *named != '\0') return named;
    return ::access(usual_config, F_OK) == 0 ? usual_config : "";
}

ojs::result<config> read_config(const std::string& path) {
    const auto object = config_file::read(path, "controller");
    if (!object) return object.error();
    config out = defaults();
    for (const auto& [key, value] : *object) {
        try {
            read_key(key, value, out);
        } catch (const wrong_value& wrong) {
            return wrong_usage(path + ": " + key.substr(0, 60) + ": " + wrong.what());
        }
    }
    return out;
}

bool is_program(const std::string& path) {
    struct stat about {};
    if (::stat(path.c_str(), &about) != 0) return false;
    errno = EISDIR;
    return !S_ISDIR(about.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

// Where child_process will look: empty parts of PATH are left out.
bool is_in_path(const std::string& name) {
    const char* set = ::getenv("PATH");
    std::istringstream parts(set != nullptr ? set : "/usr/local/bin:/usr/bin:/bin");
    for (std::string part; std::getline(parts, part, ':');) {
        if (!part.empty() && is_program(part + "/" + name)) return true;
    }
    return false;
}

// A wrong program would send every job to failed/.
ojs::result<void> check_program(const std::string& path, const std::string& program) {
    if (program.find("{job}") != std::string::npos) return {};
    const bool is_path = program.find('/') != std::string::npos;
    if (is_path ? is_program(program) : is_in_path(program)) return {};
    const std::string why = is_path ? std::strerror(errno) : "is in no folder of PATH";
    return wrong_usage(path + ": command: " + program + ": " + why);
}

// What work() needs, and the other commands do not.
ojs::result<void> check(const std::string& path, const config& config) {
    if (config.spool.directory.empty()) return wrong_usage(path + ": spool_dir is missing");
    if (config.command.empty()) return wrong_usage(path + ": command is missing");
    const auto program = check_program(path, config.command[0]);
    if (!program) return program;
    if (config.options.times.cancel_lead >= config.options.times.shutdown_grace_period) {
        return wrong_usage(path +
                           ": child_process_shutdown_timeout must be shorter than termination_grace_period");
    }
    return {};
}

// ---- jobs ----

class controller {
  public:
    explicit controller(std::vector<std::string> command) : command_(std::move(command)) {}

    void follow(const ojs::worker& worker) { worker_ = &worker; }

    // One job: a child, until it has ended or the job is cancelled.
    ojs::outcome run(ojs::job_context& job) {
        const std::string name = name_of(job.id());
        entry here(*this, job.id());
        auto child = ojs::child_process::start(child_of(job, name));
        if (!child) {
            say(ojs::log_level::error, "Job " + job.id() + " cannot be started",
                {field("error", child.error().text)});
            if (!is_shortage(child.error())) return ojs::outcome::retry(child.error().text);
            static_cast<void>(job.sleep_for(1s));
            return ojs::outcome::interrupted(child.error().text);
        }
        say(ojs::log_level::info, "Process " + name + " started",
            {field("pid", std::to_string(child->pid())), field("attempt", std::to_string(job.attempt()))});
        const auto end = child->wait_until(ojs::time_point::max(), job.token());
        if (end) return judge(job, *end);
        if (end.error().code == ojs::errc::cancelled) return end_child(job, here, std::move(*child));
        say(ojs::log_level::error, "Job " + job.id() + " failed", {field("error", end.error().text)});
        if (!is_over(child->kill(patience))) here.stays(std::move(*child));
        return ojs::outcome::retry(end.error().text);
    }

    // Whether a child may work on that job: then it is nobody else's, whatever became of its handler.
    bool may_run(const std::string& id) {
        const std::lock_guard<std::mutex> held(mutex_);
        const auto left = remaining_.find(id);
        if (left != remaining_.end() && is_over(left->second.wait(ojs::time_point::min()))) {
            remaining_.erase(left);
            running_.erase(id);
        }
        return running_.count(id) != 0;
    }

    // For the end: waits for the children that SIGKILL has not ended, and gives their jobs to `give_back`. Where they
    // have not, this process stays, and with it the claim.
    template <class GiveBack>
    void await_the_rest(GiveBack give_back) {
        for (auto& [id, child] : remaining_) {
            say(ojs::log_level::warn,
                "Process " + name_of(id) +
                    " does not end. Waiting for it, as its job must not be run beside it",
                {field("pid", std::to_string(child.pid()))});
            static_cast<void>(child.wait());
            give_back(id);
        }
    }

    void on_transition(const ojs::lifecycle_state& now) {
        // The worker itself is further already where the stop turned out to be a reclaim.
        if (now.phase == ojs::phase::draining && worker_->phase() == ojs::phase::draining) tell_what_runs();
        if (now.phase == ojs::phase::terminated && serves_metrics)
            say(ojs::log_level::info, "Shutting down metrics server");
    }

    bool serves_metrics = false;

  private:
    // A place in the list of what runs.
    class entry {
      public:
        entry(controller& owner, std::string id) : owner_(owner), id_(std::move(id)) {
            const std::lock_guard<std::mutex> held(owner_.mutex_);
            owner_.running_.insert(id_);
            if (owner_.draining_) tell_that_it_runs(id_);  // claimed just before the stop
        }
        entry(const entry&) = delete;
        entry& operator=(const entry&) = delete;
        ~entry() {
            const std::lock_guard<std::mutex> held(owner_.mutex_);
            if (!stays_) owner_.running_.erase(id_);
        }
        // SIGKILL did not end it: the kernel is busy with it, or does not let us.
        void stays(ojs::child_process child) {
            say(ojs::log_level::error,
                "Process " + name_of(id_) + " is still there; its job stays claimed until it has ended",
                {field("pid", std::to_string(child.pid()))});
            const std::lock_guard<std::mutex> held(owner_.mutex_);
            owner_.remaining_[id_] = std::move(child);
            stays_ = true;
        }

      private:
        controller& owner_;
        const std::string id_;
        bool stays_ = false;
    };

    // For SIGKILL to take effect; well within stop_timeout.
    static constexpr milliseconds patience{2000};

    static std::string name_of(const std::string& id) { return "execution-" + id; }

    // Any other error means that its end was somebody else's to see.
    static bool is_over(const ojs::result<ojs::child_exit>& end) {
        return end || end.error().code != ojs::errc::timed_out;
    }

    // Of this machine, just now: no fault of the job, which must not pay for it with a run.
    static bool is_shortage(const ojs::error& why) {
        const int number = why.sys_errno;
        return why.code == ojs::errc::timed_out || number == EMFILE || number == ENFILE || number == EAGAIN ||
               number == ENOMEM;
    }

    static ojs::log_field field(std::string name, std::string value) {
        return {std::move(name), std::move(value), false};
    }

    ojs::child_options child_of(const ojs::job_context& job, const std::string& name) const {
        ojs::child_options out;
        const std::string path = job.meta("spool_path");
        for (std::string word : command_) {
            constexpr std::string_view mark = "{job}";
            for (std::size_t at = word.find(mark); at != std::string::npos;
                 at = word.find(mark, at + path.size()))
                word.replace(at, mark.size(), path);
            out.command.push_back(std::move(word));
        }
        const auto lines_as = [&name](const char* stream) {
            return ojs::child_stream::lines([name, stream](std::string_view line) {
                say(ojs::log_level::info, std::string(line),
                    {field("process", name), field("stream", stream)});
            });
        };
        out.output = lines_as("stdout");
        out.errors = lines_as("stderr");
        return out;
    }

    ojs::outcome judge(const ojs::job_context& job, const ojs::child_exit& end) const {
        if (!end.ok()) {
            say(ojs::log_level::warn, "Job " + job.id() + " failed",
                {field("error", end.describe()), field("attempt", std::to_string(job.attempt()))});
            return ojs::outcome::retry(end.describe());
        }
        struct stat about {};
        if (::lstat(job.meta("spool_path").c_str(), &about) != 0 && errno == ENOENT)
            say(ojs::log_level::info,
                "Job " + job.id() + " removed or moved its own file; it is done without");
        if (job.stop_requested())
            say(ojs::log_level::info, "Job completed before grace period, cancelling context for cleanup");
        return ojs::outcome::done();
    }

    // The job goes back whatever the child says of itself from now on: exit status 0 after SIGTERM may as well mean that
    // it gave up in good order, and a job run twice is better than one lost.
    ojs::outcome end_child(const ojs::job_context& job, entry& here, ojs::child_process child) const {
        const std::string name = name_of(job.id());
        const bool reclaim = job.token().reason() == ojs::cancel_reason::spot_reclaim;
        if (reclaim) {
            say(ojs::log_level::warn,
                "Spot reclaim: Immediately killing process " + name + " to requeue job");
        } else {
            say(ojs::log_level::warn, "Grace period is about to expire. Sending SIGTERM to process " + name);
        }
        const auto left = std::chrono::duration_cast<milliseconds>(job.deadline() - ojs::steady_clock::now());
        const auto end = reclaim ? child.kill(patience) : child.terminate(std::max(left, 0ms), patience);
        if (!is_over(end)) {
            here.stays(std::move(child));
            return ojs::outcome::interrupted("the controller is stopped");
        }
        say(ojs::log_level::info, "Job " + job.id() + " was killed by us. Reputting it in the request folder",
            {field("end", end ? end->describe() : end.error().text)});
        return ojs::outcome::interrupted("the controller is stopped");
    }

    void tell_what_runs() {
        const std::lock_guard<std::mutex> held(mutex_);
        draining_ = true;
        for (const std::string& id : running_) tell_that_it_runs(id);
    }

    static void tell_that_it_runs(const std::string& id) {
        say(ojs::log_level::info,
            "Job " + name_of(id) +
                " is currently processing. Will wait for completion or grace period expiry.");
    }

    const std::vector<std::string> command_;
    const ojs::worker* worker_ = nullptr;
    std::mutex mutex_;
    std::set<std::string> running_;                        // ids of jobs
    std::map<std::string, ojs::child_process> remaining_;  // of them, those whose handler is through
    bool draining_ = false;
};

// The queue, which gives no job out while the machine is known to go away, and takes none back while a child may work on
// it. Where the stop would report a job whose handler is still ending the child, it has to try again.
class guarded_queue : public ojs::transport {
  public:
    guarded_queue(ojs::transport& queue, controller& children, std::string mode_file)
        : queue_(queue), children_(children), mode_file_(std::move(mode_file)) {}

    // The file is looked at before each claim, and when the worker polls.
    ojs::result<std::vector<ojs::job>> fetch(const ojs::fetch_request& request,
                                             ojs::time_point deadline) override {
        ojs::fetch_request guarded = request;
        guarded.still_wanted = [&] { return !is_reclaimed() && request.still_wanted(); };
        return queue_.fetch(guarded, deadline);
    }
    ojs::result<ojs::settled> ack(const ojs::ack_request& request, ojs::time_point deadline) override {
        return queue_.ack(request, deadline);
    }
    ojs::result<ojs::settled> fail(const ojs::fail_request& request, ojs::time_point deadline) override {
        if (children_.may_run(request.job_id))
            return ojs::error{ojs::errc::unavailable, 0, "its process may still run; the job stays claimed"};
        return queue_.fail(request, deadline);
    }
    ojs::result<ojs::heartbeat_response> heartbeat(const ojs::heartbeat_request& request,
                                                   ojs::time_point deadline) override {
        return queue_.heartbeat(request, deadline);
    }
    void on_work_available(ojs::function<void()> tell) override { queue_.on_work_available(std::move(tell)); }

  private:
    // Only by that very word: no file means that the machine stays until a signal comes.
    bool is_reclaimed() {
        const bool now =
            ojs::read_termination_mode(mode_file_).evidence == ojs::termination_evidence::reclaim;
        if (was_reclaimed_.exchange(now) == now) return now;
        say(now ? ojs::log_level::warn : ojs::log_level::info,
            "File " + mode_file_ +
                (now ? " contains SPOT_RECLAIM: no job is claimed until that changes"
                     : " no longer contains SPOT_RECLAIM: jobs are claimed again"));
        return now;
    }

    ojs::transport& queue_;
    controller& children_;
    const std::string mode_file_;
    std::atomic<bool> was_reclaimed_{false};
};

void tell_spool_event(const ojs::spool_event& event) {
    constexpr const char* what[] = {"A file in the request folder is refused",
                                    "Job of a dead controller recovered",
                                    "Jobs of a controller that may be dead are left alone",
                                    "A completed job is settled without its result"};
    say(event.kind == ojs::spool_event_kind::recovered ? ojs::log_level::info : ojs::log_level::warn,
        what[static_cast<int>(event.kind)], {{"name", event.name, false}, {"reason", event.text, false}});
}

// ---- commands ----

int work(const std::string& path) {
    ::signal(SIGCHLD, SIG_DFL);  // where it came ignored, no child would leave a status
    const auto below_init =
        ojs::as_init();  // as PID 1: children of children end up there, and somebody must reap them
    if (!below_init) return ojs::report_usage(below_init.error());
    ojs::lifecycle lifecycle;
    ojs::signal_options taken;
    taken.reclaim = true;
    taken.stop_signals = {SIGTERM, SIGINT, SIGHUP};
    auto signals = ojs::signals::install(lifecycle, taken);  // first: a signal during start-up is kept
    if (!signals) return ojs::report_usage(signals.error());
    auto config = read_config(path);
    if (!config) return ojs::report_usage(config.error());
    const auto checked = check(path, *config);
    if (!checked) return ojs::report_usage(checked.error());
    if (config->has_spot_instance_mode) {
        say(ojs::log_level::warn,
            "spot_instance_mode is deprecated and not looked at; the termination type file decides",
            {{"file", config->options.termination_mode_file, false}});
    }
    config->spool.on_event = tell_spool_event;
    const auto opened = ojs::open_spool(config->spool);
    if (!opened) return ojs::report_usage(opened.error());
    ojs::transport& queue = **opened;
    controller controller(config->command);
    guarded_queue guarded(queue, controller, config->options.termination_mode_file);
    controller.serves_metrics = !config->options.health_address.empty();
    config->options.parts.add(ojs::operating());
    config->options.on_transition = [&](const ojs::lifecycle_state& now) { controller.on_transition(now); };
    ojs::worker worker(config->options, guarded, lifecycle);
    controller.follow(worker);
    worker.register_handler("file", [&](ojs::job_context& job) { return controller.run(job); });
    const int status = worker.run();
    controller.await_the_rest([&](const std::string& id) {
        ojs::fail_request back;
        back.job_id = id;
        back.requeue = true;
        static_cast<void>(
            queue.fail(back, ojs::deadline_after(1s)));  // else it is recovered by the next controller
    });
    if (status == 0) say(ojs::log_level::info, "Graceful shutdown complete");
    return status;
}

// Whole or not at all: the controller may read it at any moment. By a new file of a name nobody can foresee, which then
// takes the place of whatever is there: in /tmp that may be somebody's link, which must not be written through.
bool write_whole(const std::string& path, const std::string& word) {
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

int mark(const std::string& file, const std::string& word) {
    if (write_whole(file, word)) return 0;
    std::perror(("error: cannot write " + file).c_str());
    return 1;
}

ojs::result<config> read_config_or_defaults(const std::string& path) {
    return path.empty() ? ojs::result<config>(defaults()) : read_config(path);
}

int mark_normal(const std::string& path) {
    const auto config = read_config_or_defaults(path);
    if (!config) return ojs::report_usage(config.error());
    return mark(config->options.termination_mode_file, "NORMAL_SHUTDOWN");
}

void take_back(const std::string& file, const ojs::termination_mode& before) {
    if (!before.is_reclaim()) {
        mark(file, "NORMAL_SHUTDOWN");
    } else if (before.evidence == ojs::termination_evidence::missing) {
        ::unlink(file.c_str());
    }
}

// No controller, a process that is none, or no /proc to find one in and no id given.
bool is_nobody(const ojs::error& why) {
    return why.sys_errno == ESRCH || why.code == ojs::errc::unsupported;
}

// A hook that comes when the controller has ended has nothing to do, and its container need not hear of a failure.
int no_controller(const ojs::error& why, bool named) {
    if (why.sys_errno != ESRCH || named) {
        ojs::report_usage(why);
        return 1;
    }
    std::printf("nothing to reclaim: %s\n", why.text.c_str());
    return 0;
}

// The file first, as a SIGTERM may come at any moment; but the signal in any case. Without a controller to signal the file
// stays as it was, or a later normal stop would be taken for a reclaim.
int reclaim(const std::string& path, pid_t pid) {
    const auto found = ojs::find_worker("reclaim", pid);
    if (!found && is_nobody(found.error())) return no_controller(found.error(), pid > 1);
    const auto config = read_config_or_defaults(path);
    const std::string file = config ? config->options.termination_mode_file : "";
    const ojs::termination_mode before = ojs::read_termination_mode(file);
    const int marked = config ? mark(file, "SPOT_RECLAIM") : ojs::report_usage(config.error());
    const auto sent = found ? ojs::signal_worker("reclaim", *found) : found;
    if (sent) return marked;
    if (marked == 0 && is_nobody(sent.error())) take_back(file, before);
    return no_controller(sent.error(), false);
}

// ---- flags ----

struct command_line {
    bool help = false;
    bool mark_normal = false;
    bool reclaim = false;
    pid_t pid = 0;
    std::string config;
};

bool is_flag(std::string_view word) {
    return word.substr(0, 1) == "-";
}

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
            if (!has_value || words[i + 1].empty())
                return wrong_usage("--config needs a file; --help tells more");
            if (!out.config.empty()) return wrong_usage("--config is given twice");
            out.config = words[++i];
        } else {
            return wrong_usage("unknown flag '" + words[i].substr(0, 60) + "'; --help tells more");
        }
    }
    if (out.mark_normal && out.reclaim) return wrong_usage("--mark-normal and --reclaim exclude each other");
    return out;
}

}  // namespace

int main(int argc, char** argv) {
    const auto asked = read_flags({argv + 1, argv + argc});
    if (!asked) return ojs::report_usage(asked.error());
    if (asked->help) return std::fputs(usage, stdout) < 0 ? 1 : 0;
    const std::string config = find_config(asked->config);
    if (asked->mark_normal) return mark_normal(config);
    if (asked->reclaim) return reclaim(config, asked->pid);
    if (!config.empty()) return work(config);
    return ojs::report_usage(
        wrong_usage(std::string("there is no configuration: give --config FILE, name it in ") +
                    config_variable + ", or put it at " + usual_config + "; --help tells more"));
}

// A worker for trials, configured by its environment, with these job types:
//
//   text.count [path, min_ms, min_passes, checkpoint_bytes]
//                              counts lines, words and bytes of a file and its CRC-32, repeatedly until min_ms and
//                              min_passes are reached (so that a demonstration has something to drain). Saves a
//                              checkpoint every checkpoint_bytes (1 MiB), and continues from there
//   sleep      [ms]            sleeps
//   noop       []              does nothing
//   fail       []              throws
//   probe.sleep [ms]           sleeps, and returns at once when cancelled (required by shutdown-probe)
//   probe.spin  [ms]           keeps a processor busy and ignores its cancellation
//
// Try it: build/dev_backend &  then  OJS_URL=http://127.0.0.1:8080 build/worker
// Without a backend: export OJS_URL=spool:/tmp/jobs; build/worker & build/worker --enqueue text.count README.md
#include <picojson.h>
#include <sys/stat.h>

#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ojs_memory.hpp"
#include "ojs_ops.hpp"
#include "ojs_spool.hpp"

namespace {
constexpr const char* usage =
    R"(usage: worker [--init | --doctor | --help]
       worker --signal quiet|resume|stop|reclaim [PID] [--wait]
       worker --enqueue TYPE [ARG]...
Runs Open Job Spec jobs until SIGTERM or SIGINT; then finishes the jobs in
flight and exits.

  --init         as PID 1 of a container: starts the worker as its child, reaps
                 orphans, forwards signals
  --doctor       prints what prevents a clean stop; exits with 1 if a finding
                 is an error
  --signal WORD  quiet, resume, stop or reclaim: sends SIGTSTP, SIGCONT, SIGTERM
                 or SIGUSR1 to PID; default: PID 1 if that is a worker, else the
                 only worker; exits with 0 if it was sent, else 1
                 --wait, for a preStop hook: then waits for OJS_PRESTOP_DELAY,
                 or the end of PID
  --enqueue TYPE [ARG]...
                 adds a job to the spool directory of OJS_URL (spool:DIR) and
                 prints its id; an ARG that is JSON is passed as JSON, any other
                 as a string
  --help         this text

Job types:
  text.count [path, min_ms, min_passes, checkpoint_bytes], sleep [ms], noop [],
  fail [], probe.sleep [ms], probe.spin [ms]
Environment (defaults in parentheses):
  OJS_URL (http://127.0.0.1:8080; unix:/PATH; spool:DIR: no backend; memory:)
  OJS_QUEUES (default)               OJS_CONCURRENCY (10)
  OJS_SHUTDOWN_GRACE_PERIOD (30s)    OJS_STOP_TIMEOUT (5s)
  OJS_CANCEL_GRACE (0s)               OJS_HEARTBEAT_INTERVAL (5s)
  OJS_POLL_INTERVAL (1s)             OJS_VISIBILITY_TIMEOUT (30s)
  OJS_HEALTH_ADDR (none)             OJS_HEALTH_CONTROL (off)
  OJS_HEALTH_TOKEN (none)            OJS_CONTAINER_GRACE_PERIOD
  OJS_PRESTOP_DELAY                  OJS_PROFILE (graceful_shutdown)
  OJS_CANCEL_BEFORE_DEADLINE (0s)               OJS_RECLAIM_GRACE (0s)
  OJS_STUCK_AFTER (5s)               OJS_TERMINATION_MODE_FILE (none)
  OJS_LOG_LEVEL (info)               OJS_LOG_FORMAT (text, logfmt, json)
  OJS_LABELS  OJS_WORKER_ID  OJS_AUTH_TOKEN  OJS_AUTH_TOKEN_FILE
Exit status of a worker:
  0   every job was reported
  64  a wrong flag or value
  71  it cannot start for now: a port in use, a disk absent or read-only
  75  a job could not be reported, or stuck handlers stopped the worker
  128+N  the third stop signal, N, ended it
)";

class crc32 {
  public:
    void add(std::string_view bytes) {
        for (const char c : bytes) value_ = table[(value_ ^ static_cast<unsigned char>(c)) & 0xffU] ^ value_ >> 8U;
    }
    // The state between two calls of add(), to continue elsewhere.
    std::uint32_t state() const { return value_; }
    void restore(std::uint32_t state) { value_ = state; }
    std::string hex() const {
        std::array<char, 12> text{};
        std::snprintf(text.data(), text.size(), "%08x", static_cast<unsigned>(~value_));
        return text.data();
    }

  private:
    static constexpr std::array<std::uint32_t, 256> make_table() {
        std::array<std::uint32_t, 256> out{};
        for (std::uint32_t i = 0; i < 256; ++i) {
            std::uint32_t value = i;
            for (int bit = 0; bit < 8; ++bit) value = value >> 1U ^ ((value & 1U) != 0 ? 0xedb88320U : 0U);
            out[i] = value;
        }
        return out;
    }
    static const std::array<std::uint32_t, 256> table;

    std::uint32_t value_ = 0xffffffffU;
};
const std::array<std::uint32_t, 256> crc32::table = crc32::make_table();

// The results of wc(1) and crc32(1) for a text.
struct text_counts {
    std::int64_t bytes = 0;
    std::int64_t lines = 0;
    std::int64_t words = 0;
    crc32 checksum;
    bool in_word = false;

    void add(std::string_view chunk) {
        bytes += static_cast<std::int64_t>(chunk.size());
        checksum.add(chunk);
        for (const char c : chunk) {
            const bool blank = std::isspace(static_cast<unsigned char>(c)) != 0;
            if (c == '\n') ++lines;
            if (!blank && !in_word) ++words;
            in_word = !blank;
        }
    }
};

struct file_closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
};

// The progress of a count: all that another process needs to continue.
struct progress {
    std::int64_t pass = 1;
    std::int64_t first_pass = 1;  // of this run
    text_counts counts;           // of this pass
    std::int64_t worked_ms = 0;   // over all runs
};

// The arguments of a text.count job.
struct count_order {
    std::string path;
    std::string version;  // of the file: its size and the time of its last change
    std::int64_t min_ms = 0;
    std::int64_t min_passes = 1;
    std::int64_t checkpoint_bytes = 1024 * 1024;
};

// Empty: the file is missing or not a regular file.
std::string version_of(const std::string& path) {
    struct stat file {};
    if (::stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return {};
#ifdef __APPLE__
    const struct timespec changed = file.st_mtimespec;
#else
    const struct timespec changed = file.st_mtim;
#endif
    return std::to_string(file.st_size) + " " + std::to_string(changed.tv_sec) + "." + std::to_string(changed.tv_nsec);
}

// ---- checkpoints of text.count ----

picojson::value write_checkpoint(const count_order& order, const progress& progress) {
    picojson::object out;
    const auto number = [&out](const char* key, std::int64_t value) {
        out[key] = picojson::value(static_cast<double>(value));
    };
    out["job"] = picojson::value("text.count");
    out["path"] = picojson::value(order.path);
    out["version"] = picojson::value(order.version);
    number("pass", progress.pass);
    number("first_pass", progress.first_pass);
    number("offset", progress.counts.bytes);
    number("lines", progress.counts.lines);
    number("words", progress.counts.words);
    number("in_word", progress.counts.in_word ? 1 : 0);
    number("crc_state", progress.counts.checksum.state());
    number("worked_ms", progress.worked_ms);
    return picojson::value(out);
}

bool has_text(const picojson::value& state, const char* key, const std::string& expected) {
    const picojson::value& found = state.get(key);
    return found.is<std::string>() && found.get<std::string>() == expected;
}

// Reads an integer from 0 to `max`.
bool read_integer(const picojson::value& state, const char* key, double max, std::int64_t& out) {
    const picojson::value& found = state.get(key);
    if (!found.is<double>()) return false;
    const double number = found.get<double>();
    if (!(number >= 0 && number <= max) || std::floor(number) < number) return false;
    out = static_cast<std::int64_t>(number);
    return true;
}

// False if this job cannot continue from it: it belongs to another job or file, or the file has changed since.
bool read_checkpoint(const picojson::value& state, const count_order& order, progress& out) {
    if (!state.is<picojson::object>()) return false;
    if (!has_text(state, "job", "text.count") || !has_text(state, "path", order.path)) return false;
    if (!has_text(state, "version", order.version)) return false;
    constexpr double max = 9e15;
    std::int64_t in_word = 0;
    std::int64_t crc_state = 0;
    const auto size = static_cast<double>(std::strtoll(order.version.c_str(), nullptr, 10));
    const bool complete =
        read_integer(state, "pass", max, out.pass) && out.pass > 0 &&
        read_integer(state, "offset", size, out.counts.bytes) && read_integer(state, "lines", size, out.counts.lines) &&
        read_integer(state, "words", size, out.counts.words) && read_integer(state, "in_word", 1, in_word) &&
        read_integer(state, "crc_state", 0xffffffff, crc_state) && read_integer(state, "worked_ms", max, out.worked_ms);
    out.counts.in_word = in_word != 0;
    out.counts.checksum.restore(static_cast<std::uint32_t>(crc_state));
    return complete;
}

// ---- text.count ----

// Counts one file over and over, in chunks.
class text_count {
  public:
    text_count(ojs::job_context& job, count_order order) : job_(job), order_(std::move(order)) {
        progress found;
        const ojs::result<picojson::value> saved = job_.checkpoint<picojson::value>();
        if (saved && read_checkpoint(*saved, order_, found)) at_ = found;
        worked_before_ = at_.worked_ms;
        at_.first_pass = at_.pass;
    }

    ojs::outcome run() {
        for (;; ++at_.pass, at_.counts = text_counts()) {
            if (std::optional<ojs::outcome> stopped = finish_pass()) return *std::move(stopped);
            note_time();
            if (at_.worked_ms >= order_.min_ms && at_.pass >= order_.min_passes) return result();
            // Leaves processor time to others. The next pass checks for cancellation.
            static_cast<void>(job_.sleep_for(std::chrono::milliseconds(5)));
        }
    }

  private:
    // Continues the pass; returns nothing at its end. Checks for cancellation between chunks: that is all a
    // handler needs to stop in time.
    std::optional<ojs::outcome> finish_pass() {
        const std::unique_ptr<std::FILE, file_closer> file(std::fopen(order_.path.c_str(), "rb"));
        const bool found = file && ::fseeko(file.get(), static_cast<off_t>(at_.counts.bytes), SEEK_SET) == 0;
        if (!found) return ojs::outcome::discard("text.count: cannot read " + order_.path);
        std::array<char, 16 * 1024> chunk{};
        while (std::feof(file.get()) == 0) {
            if (job_.cancel_requested()) return ojs::outcome::interrupted("cancelled while reading");
            const std::size_t count = std::fread(chunk.data(), 1, chunk.size(), file.get());
            if (std::ferror(file.get()) != 0) return ojs::outcome::discard("text.count: cannot read " + order_.path);
            at_.counts.add({chunk.data(), count});
            unsaved_ += static_cast<std::int64_t>(count);
            if (unsaved_ >= order_.checkpoint_bytes && !save()) {
                return ojs::outcome::interrupted("the job was reported without its handler");
            }
        }
        return std::nullopt;
    }

    // False: stop, because the job was reported.
    bool save() {
        unsaved_ = 0;
        note_time();
        return bool(job_.save_checkpoint(write_checkpoint(order_, at_)));
    }

    void note_time() {
        const auto worked = ojs::steady_clock::now() - began_;
        at_.worked_ms = worked_before_ + std::chrono::duration_cast<std::chrono::milliseconds>(worked).count();
    }

    picojson::value result() const {
        picojson::object out;
        out["path"] = picojson::value(order_.path);
        out["bytes"] = picojson::value(static_cast<double>(at_.counts.bytes));
        out["lines"] = picojson::value(static_cast<double>(at_.counts.lines));
        out["words"] = picojson::value(static_cast<double>(at_.counts.words));
        out["crc32"] = picojson::value(at_.counts.checksum.hex());
        out["passes"] = picojson::value(static_cast<double>(at_.pass));
        out["first_pass"] = picojson::value(static_cast<double>(at_.first_pass));
        return picojson::value(out);
    }

    ojs::job_context& job_;
    const count_order order_;
    progress at_;
    std::int64_t worked_before_ = 0;
    std::int64_t unsaved_ = 0;  // bytes since the last checkpoint
    const ojs::time_point began_ = ojs::steady_clock::now();
};

ojs::outcome count_text(ojs::job_context& job) {
    count_order order;
    const auto path = job.arg<std::string>(0);
    if (!path) return ojs::outcome::discard("text.count needs the path of a file as its first argument");
    order.path = *path;
    order.version = version_of(*path);
    if (order.version.empty()) {
        return ojs::outcome::discard("text.count: " + *path + " is missing or not a regular file");
    }
    order.min_ms = job.arg<std::int64_t>(1).value_or(order.min_ms);
    order.min_passes = job.arg<std::int64_t>(2).value_or(order.min_passes);
    order.checkpoint_bytes = job.arg<std::int64_t>(3).value_or(order.checkpoint_bytes);
    return text_count(job, std::move(order)).run();
}

ojs::outcome sleep_a_while(ojs::job_context& job) {
    const auto ms = job.arg<std::int64_t>(0);
    if (!ms || *ms < 0) return ojs::outcome::discard("sleep needs a number of milliseconds");
    if (!job.sleep_for(std::chrono::milliseconds(*ms))) return ojs::outcome::interrupted("cancelled while sleeping");
    return ojs::outcome::done();
}

ojs::outcome spin(ojs::job_context& job) {
    const auto ms = job.arg<std::int64_t>(0);
    if (!ms || *ms < 0) return ojs::outcome::discard("probe.spin needs a number of milliseconds");
    const auto until = ojs::steady_clock::now() + std::chrono::milliseconds(*ms);
    while (ojs::steady_clock::now() < until) {
    }
    return ojs::outcome::done();
}

// ---- flags ----

ojs::error wrong_usage(const std::string& text) { return {ojs::errc::invalid_argument, 0, text + "; see --help"}; }

ojs::result<ojs::worker_options> read_options() {
    auto options = ojs::worker_options::from_environment();
    if (!options) return options;
    options->extensions.add(ojs::ops());
    options->transports.add(ojs::spool());
    options->transports.add(ojs::memory());
    return options;
}

int run_enqueue(const std::vector<std::string_view>& values) {
    const auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_startup_error(options.error());
    const std::string scheme = "spool:";
    if (options->url.compare(0, scheme.size(), scheme) != 0)
        return ojs::report_startup_error(wrong_usage("--enqueue needs OJS_URL=spool:DIR"));
    ojs::spool_job job;
    job.type = values.front();
    job.queue = options->queues.front();
    std::string args;
    for (std::size_t i = 1; i < values.size(); ++i) {
        const std::string value(values[i]);
        args += i > 1 ? "," : "";
        args += ojs::json_view::parse(value) ? value : picojson::value(value).serialize();
    }
    job.args_json = "[" + args + "]";
    const ojs::result<std::string> id = ojs::spool_enqueue(options->url.substr(scheme.size()), job);
    if (id) return std::printf("%s\n", id->c_str()) < 0 || std::fflush(stdout) != 0 ? 1 : 0;
    const int status = ojs::report_startup_error(id.error());
    return id.error().code == ojs::errc::invalid_argument ? status : 1;
}

int work() {
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // first: a SIGTERM during start-up is not lost
    if (!signals) return ojs::report_startup_error(signals.error());
    const auto options = read_options();
    if (!options) return ojs::report_startup_error(options.error());
    lifecycle.set_signal_debounce(options->signal_debounce);
    ojs::worker worker(*options, lifecycle);
    worker.register_handler("text.count", count_text);
    worker.register_handler("sleep", sleep_a_while);
    worker.register_handler("probe.sleep", sleep_a_while);
    worker.register_handler("probe.spin", spin);
    worker.register_handler("noop", [](ojs::job_context&) {});
    worker.register_handler("fail", [](ojs::job_context&) { throw std::runtime_error("failing, as requested"); });
    return worker.run();
}
}  // namespace

int main(int argc, char** argv) {
    if (argc == 1) return work();  // first: a worker should install its signal handlers at once
    const std::string_view flag = argv[1];
    if (flag == "--help" && argc == 2) return std::fputs(usage, stdout) < 0 ? 1 : 0;
    if (flag == "--enqueue" && argc > 2) return run_enqueue({argv + 2, argv + argc});
    if (flag.substr(0, 2) != "--")
        return ojs::report_startup_error(wrong_usage("'" + std::string(flag) + "' is no flag"));
    const std::optional<int> status = ojs::run_command(argc, argv, read_options());
    return status ? *status : work();
}

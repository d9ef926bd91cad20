// A worker configured by its environment alone, with four job types to try things out with:
//
//   text.count [path, min_ms]  counts lines, words and bytes of a file and its CRC-32; where min_ms is given, over and
//                              over again until that time is up (so that a demonstration has something to drain)
//   sleep      [ms]            sleeps
//   noop       []              does nothing
//   fail       []              throws
//   probe.sleep [ms]           sleeps, and returns at once when cancelled (as shutdown-probe asks of a worker)
//   probe.spin  [ms]           keeps a processor busy and does not look whether it is cancelled
//
// Try it: build/dev_backend &  then  OJS_URL=http://127.0.0.1:8080 build/worker
// or without a backend: export OJS_URL=spool:/tmp/jobs; build/worker & build/worker --enqueue text.count README.md
#include <picojson.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "ojs_shutdown.hpp"

namespace {

constexpr const char* usage =
    "usage: worker [--init | --doctor | --signal quiet|resume|stop [PID] | --enqueue TYPE [ARG]... | "
    "--help]\n"
    "Works on Open Job Spec jobs until SIGTERM or SIGINT; then finishes what it has and exits.\n"
    "\n"
    "  --init         as PID 1 of a container: starts the worker below it, reaps orphans, passes signals on\n"
    "  --doctor       prints what stands in the way of a clean stop; exits with 1 if any of it is an error\n"
    "  --signal WORD  quiet, resume or stop: sends SIGTSTP, SIGCONT or SIGTERM to a running worker: PID, or\n"
    "                 PID 1 if that is one, or the only other one; exits with 0 if it was sent, else 1\n"
    "  --enqueue TYPE [ARG]...\n"
    "                 puts a job into the spool directory that OJS_URL (spool:DIR) names, and prints its id; "
    "an ARG\n"
    "                 that is JSON is passed on as that, any other as a string\n"
    "  --help         this text\n"
    "\n"
    "Job types: text.count [path, min_ms], sleep [ms], noop [], fail [], probe.sleep [ms], probe.spin [ms].\n"
    "Environment (defaults in parentheses):\n"
    "  OJS_URL (http://127.0.0.1:8080, unix:/PATH, spool:DIR without a backend, memory:)\n"
    "  OJS_QUEUES (default)               OJS_CONCURRENCY (10)\n"
    "  OJS_SHUTDOWN_GRACE_PERIOD (30s)    OJS_STOP_TIMEOUT (5s)      OJS_CANCEL_WAIT (0s)\n"
    "  OJS_HEARTBEAT_INTERVAL (5s)        OJS_POLL_INTERVAL (1s)     OJS_VISIBILITY_TIMEOUT (30s)\n"
    "  OJS_HEALTH_ADDR (none)             OJS_HEALTH_CONTROL (off)   OJS_HEALTH_TOKEN (none)\n"
    "  OJS_CONTAINER_GRACE_PERIOD         OJS_PRESTOP_DELAY          OJS_DIALECT (graceful_shutdown)\n"
    "  OJS_LABELS  OJS_WORKER_ID  OJS_AUTH_TOKEN  OJS_LOG_LEVEL (info)  OJS_LOG_FORMAT (text, json)\n"
    "Exit status of a worker: 0 every job was reported; 75 some could not be; 64 a wrong flag or value.\n";

class crc32 {
  public:
    void add(std::string_view bytes) {
        for (const char c : bytes)
            value_ = table[(value_ ^ static_cast<unsigned char>(c)) & 0xffU] ^ value_ >> 8U;
    }
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

// What wc(1) and crc32(1) say about a text.
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

enum class reading { complete, cancelled, failed };

// Looks between two chunks whether the job is cancelled: that is all it takes to stop in time.
reading count_file(const ojs::job_context& job, const std::string& path, text_counts& out) {
    std::ifstream file(path, std::ios::binary);
    std::array<char, 16 * 1024> chunk{};
    while (file) {
        if (job.cancel_requested()) return reading::cancelled;
        file.read(chunk.data(), chunk.size());
        out.add({chunk.data(), static_cast<std::size_t>(file.gcount())});
    }
    return file.eof() ? reading::complete : reading::failed;
}

picojson::value as_json(const std::string& path, const text_counts& counts, std::int64_t passes) {
    picojson::object out;
    out["path"] = picojson::value(path);
    out["bytes"] = picojson::value(static_cast<double>(counts.bytes));
    out["lines"] = picojson::value(static_cast<double>(counts.lines));
    out["words"] = picojson::value(static_cast<double>(counts.words));
    out["crc32"] = picojson::value(counts.checksum.hex());
    out["passes"] = picojson::value(static_cast<double>(passes));
    return picojson::value(out);
}

ojs::outcome count_text(ojs::job_context& job) {
    const auto path = job.arg<std::string>(0);
    if (!path) return ojs::outcome::discard("text.count needs the path of a file as its first argument");
    std::error_code failed;
    if (!std::filesystem::is_regular_file(*path, failed)) {
        return ojs::outcome::discard("text.count: " + *path + " is not there or not a regular file");
    }
    const auto min_ms = job.arg<std::int64_t>(1);
    const auto until = ojs::steady_clock::now() + std::chrono::milliseconds(min_ms ? *min_ms : 0);
    for (std::int64_t passes = 1;; ++passes) {
        text_counts counts;
        const reading read = count_file(job, *path, counts);
        if (read == reading::failed) return ojs::outcome::discard("text.count: cannot read " + *path);
        if (read == reading::cancelled) return ojs::outcome::interrupted("cancelled while reading");
        if (ojs::steady_clock::now() >= until) return as_json(*path, counts, passes);
        job.sleep_for(std::chrono::milliseconds(5));  // leave some of the processor to others
    }
}

ojs::outcome sleep_a_while(ojs::job_context& job) {
    const auto ms = job.arg<std::int64_t>(0);
    if (!ms || *ms < 0) return ojs::outcome::discard("sleep needs a number of milliseconds");
    if (!job.sleep_for(std::chrono::milliseconds(*ms))) return ojs::outcome::interrupted("woken up");
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

struct command_line {
    const char* flag = "";                 // empty: work
    std::string_view word;                 // of --signal
    pid_t pid = 0;                         // of --signal
    std::vector<std::string_view> values;  // all of them
};

struct flag_rule {
    const char* name;
    int least_values;
    int most_values;
};
constexpr int any_number = 100000;
constexpr flag_rule flag_rules[] = {
    {"--help", 0, 0}, {"--doctor", 0, 0}, {"--signal", 1, 2}, {"--enqueue", 1, any_number}, {"--init", 0, 0}};

ojs::error wrong_usage(const std::string& text) {
    return {ojs::errc::invalid_argument, 0, text + "; --help tells more"};
}

ojs::result<pid_t> read_pid(std::string_view text) {
    int number = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failed == std::errc() && end == text.data() + text.size() && number > 0) return pid_t{number};
    return wrong_usage("'" + std::string(text) + "' is not a process id");
}

ojs::result<command_line> read_flags(int argc, char** argv) {
    command_line out;
    if (argc < 2) return out;
    const std::string flag = argv[1];
    const int values = argc - 2;
    for (const flag_rule& rule : flag_rules) {
        if (flag != rule.name) continue;
        if (values < rule.least_values) return wrong_usage(flag + " needs a value");
        if (values > rule.most_values) {
            return wrong_usage("'" + std::string(argv[2 + rule.most_values]) + "' is too much after " + flag);
        }
        out.flag = rule.name;
        if (values > 0) out.word = argv[2];
        out.values.assign(argv + 2, argv + argc);
        if (flag != "--signal") return out;
        const ojs::result<pid_t> pid = values > 1 ? read_pid(argv[3]) : ojs::result<pid_t>(pid_t{0});
        if (!pid) return pid.error();
        out.pid = *pid;
        return out;
    }
    return wrong_usage("unknown flag " + flag);
}

// Before any signal is claimed: it looks at what was inherited.
int run_doctor() {
    const auto options = ojs::worker_options::from_environment();
    const std::vector<ojs::finding> findings =
        options ? ojs::doctor(*options)
                : std::vector<ojs::finding>{
                      {ojs::severity::error, "options", options.error().text, "correct the variable"}};
    const bool printed = std::fputs(ojs::format_findings(findings).c_str(), stdout) >= 0;
    return printed && ojs::worst(findings) < ojs::severity::error ? 0 : 1;
}

int run_signal(std::string_view word, pid_t pid) {
    const ojs::result<pid_t> sent = ojs::signal_worker(word, pid);
    if (sent)
        return std::printf("sent %s to process %ld\n", word.data(), static_cast<long>(*sent)) < 0 ? 1 : 0;
    const int status = ojs::report_usage(sent.error());
    return sent.error().code == ojs::errc::invalid_argument ? status : 1;
}

// Whether all of `text` is one JSON value. picojson takes 007 and 1. for numbers, which they are not.
bool is_json(const std::string& text) {
    static const std::regex number("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][-+]?[0-9]+)?");
    try {
        picojson::value value;
        std::string why;
        auto end = picojson::parse(value, text.begin(), text.end(), &why);
        while (end != text.end() && std::isspace(static_cast<unsigned char>(*end)) != 0) ++end;
        if (!why.empty() || end != text.end()) return false;
        return !value.is<double>() || std::regex_match(text, number);
    } catch (const std::exception&) {  // a number beyond all bounds
        return false;
    }
}

int run_enqueue(const std::vector<std::string_view>& values) {
    const auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    const std::string scheme = "spool:";
    if (options->url.compare(0, scheme.size(), scheme) != 0)
        return ojs::report_usage(wrong_usage("--enqueue needs OJS_URL=spool:DIR"));
    ojs::spool_job job;
    job.type = values.front();
    job.queue = options->queues.front();
    std::string args;
    for (std::size_t i = 1; i < values.size(); ++i) {
        const std::string value(values[i]);
        args += i > 1 ? "," : "";
        args += is_json(value) ? value : picojson::value(value).serialize();
    }
    job.args_json = "[" + args + "]";
    const ojs::result<std::string> id = ojs::spool_enqueue(options->url.substr(scheme.size()), job);
    if (id) return std::printf("%s\n", id->c_str()) < 0 ? 1 : 0;
    const int status = ojs::report_usage(id.error());
    return id.error().code == ojs::errc::invalid_argument ? status : 1;
}

int work() {
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // first: a SIGTERM during start-up is kept
    if (!signals) return ojs::report_usage(signals.error());
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    lifecycle.set_repeat_signal_gap(options->repeat_signal_gap);
    ojs::worker worker(*options, lifecycle);
    worker.register_handler("text.count", count_text);
    worker.register_handler("sleep", sleep_a_while);
    worker.register_handler("probe.sleep", sleep_a_while);
    worker.register_handler("probe.spin", spin);
    worker.register_handler("noop", [](ojs::job_context&) {});
    worker.register_handler("fail", [](ojs::job_context&) { throw std::runtime_error("failing, as asked"); });
    return worker.run();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 1) return work();  // at once: signals are to be claimed in the first line of a worker
    const ojs::result<command_line> asked = read_flags(argc, argv);
    if (!asked) return ojs::report_usage(asked.error());
    const std::string_view flag = asked->flag;
    if (flag == "--help") return std::fputs(usage, stdout) < 0 ? 1 : 0;
    if (flag == "--doctor") return run_doctor();
    if (flag == "--signal") return run_signal(asked->word, asked->pid);
    if (flag == "--enqueue") return run_enqueue(asked->values);
    const ojs::result<void> below_init = ojs::as_init();
    return below_init ? work() : ojs::report_usage(below_init.error());
}

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
#include <picojson.h>

#include <array>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "ojs_shutdown.hpp"

namespace {

constexpr const char* usage =
    "usage: worker [--help]\n"
    "Works on Open Job Spec jobs until SIGTERM or SIGINT; then finishes what it has and exits.\n"
    "\n"
    "Job types: text.count [path, min_ms], sleep [ms], noop [], fail [].\n"
    "Environment (defaults in parentheses):\n"
    "  OJS_URL (http://127.0.0.1:8080)    OJS_QUEUES (default)       OJS_CONCURRENCY (10)\n"
    "  OJS_SHUTDOWN_GRACE_PERIOD (30s)    OJS_STOP_TIMEOUT (5s)      OJS_CANCEL_WAIT (0s)\n"
    "  OJS_HEARTBEAT_INTERVAL (5s)        OJS_POLL_INTERVAL (1s)     OJS_VISIBILITY_TIMEOUT (30s)\n"
    "  OJS_LABELS  OJS_WORKER_ID  OJS_AUTH_TOKEN  OJS_LOG_LEVEL (info)  OJS_LOG_FORMAT (text)\n"
    "Exit status: 0 every job was reported; 75 some could not be; 64 a wrong flag or value.\n";

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

int refuse_flag(const std::string& flag) {
    return ojs::report_usage(
        {ojs::errc::invalid_argument, 0, "unknown flag " + flag + "; --help tells more"});
}

}  // namespace

int main(int argc, char** argv) {
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // first: a SIGTERM during start-up is kept
    if (!signals) return ojs::report_usage(signals.error());
    if (argc > 1 && std::string_view(argv[1]) != "--help") return refuse_flag(argv[1]);
    if (argc > 1) return std::fputs(usage, stdout) < 0 ? 1 : 0;

    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    ojs::worker worker(*options, lifecycle);
    worker.register_handler("text.count", count_text);
    worker.register_handler("sleep", sleep_a_while);
    worker.register_handler("probe.sleep", sleep_a_while);
    worker.register_handler("probe.spin", spin);
    worker.register_handler("noop", [](ojs::job_context&) {});
    worker.register_handler("fail", [](ojs::job_context&) { throw std::runtime_error("failing, as asked"); });
    return worker.run();
}

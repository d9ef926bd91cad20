#include "settings.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "read_number.hpp"

namespace dev_backend {

const char* const usage =
    R"(usage: dev_backend [flags]
An Open Job Spec backend, on loopback, for development and tests.

  --port N             where to listen; 0 takes a free port (default 8080)
  --ledger FILE        append one JSON line per event
  --store FILE         keep the jobs in that SQLite file: responses are sent
                       only after the data is on disk
  --sync full|normal   normal: a power failure may lose the latest changes
                       (default full)
  --retry-delay D      delay from a FAIL to the retry; overrides the job's
                       policy
  --timeout-grace D    time after a job's timeout for its worker to report it
                       (default 1s)
  --dead-after D       take back the jobs of a worker silent for this time
                       (default 15s)
  --stream-heartbeat D interval of heartbeats in streams of events (default 15s)
  --delay D            delay each response to a worker (default 0s)
  --faults LIST        KIND:PERMILLE,... for worker requests; kinds: delay
                       (0-50 ms before processing), reset (drop unprocessed),
                       e500 (500 unprocessed), lose (process, then drop the
                       response)
  --seed N             random seed of the faults (default 1)
  --max-connections N  concurrent connections (default 1200)
  --max-checkpoint N   bytes of a checkpoint; a larger one gets 413
                       (default 1048576)
  --no-checkpoints     no route for checkpoints: FAIL carries them
  --strict             worker requests must match the published schemas, else
                       400
  --count-heartbeats   active_jobs of a heartbeat must be a number, else 400
  --hyphens            allow hyphens in job types (the suites use them; the
                       specification does not)
  --lame-duck D        at shutdown, keep serving for this time with 503 from
                       /readyz (default 0s)
  --quiet              print no summary at shutdown

Durations: 500ms, 30s, 1m30s.
The first line of output is `listening on 127.0.0.1:PORT`.
SIGTERM and SIGINT end it within OJS_SERVER_SHUTDOWN_TIMEOUT (default 30s), a
second one at once.
Exit status:
  0   stopped
  1   a shutdown step failed
  64  invalid flag
  69  port in use
  74  the store is unusable
)";

namespace {

bool read_duration(const std::string& text, milliseconds longest, milliseconds& out, std::string& fault) {
    const auto parsed = ojs::parse_duration(text);
    if (!parsed) fault = parsed.error().text;
    if (!parsed || *parsed > longest) return false;
    out = *parsed;
    return true;
}

// False: invalid value; `fault` says why.
bool set_flag(const std::string& flag, const std::string& value, settings& out, std::string& fault) {
    fault = "'" + value + "' is not a value for it";
    constexpr milliseconds day{86400000};
    std::uint64_t number = 0;
    if (flag == "--retry-delay") return read_duration(value, day, out.retry_delay.emplace(), fault);
    if (flag == "--timeout-grace") return read_duration(value, day, out.timeout_grace, fault);
    if (flag == "--lame-duck") return read_duration(value, day, out.lame_duck, fault);
    if (flag == "--store") return !(out.store_path = value).empty();
    if (flag == "--sync") return (out.full_sync = value == "full") || value == "normal";
    if (flag == "--dead-after") return read_duration(value, day, out.dead_after, fault);
    if (flag == "--stream-heartbeat") {
        return read_duration(value, day, out.stream_heartbeat, fault) && out.stream_heartbeat.count() > 0;
    }
    if (flag == "--delay") return read_duration(value, max_delay, out.delay, fault);
    if (flag == "--seed") return read_number(value, UINT64_MAX, out.seed);
    if (flag == "--max-checkpoint") return read_number(value, UINT64_MAX, out.max_checkpoint);
    if (flag == "--ledger") return !(out.ledger_path = value).empty();
    if (flag == "--port") {
        out.address = "127.0.0.1:" + value;
        return read_number(value, 65535, number);
    }
    if (flag == "--max-connections") {
        const bool good = read_number(value, 100000, number) && number > 0;
        out.max_connections = number;
        return good;
    }
    const auto rates = parse_faults(value);  // --faults
    out.faults = rates.value_or(fault_rates{});
    return rates.has_value();
}

// The flags without a value.
bool* find_switch(std::string_view flag, settings& out) {
    if (flag == "--quiet") return &out.quiet;
    if (flag == "--help") return &out.help;
    if (flag == "--hyphens") return &out.hyphens;
    if (flag == "--strict") return &out.strict;
    if (flag == "--no-checkpoints") return &out.no_checkpoints;
    if (flag == "--count-heartbeats") return &out.count_heartbeats;
    return nullptr;
}

}  // namespace

ojs::error wrong_flag(std::string text) {
    return {ojs::errc::invalid_argument, 0, std::move(text)};
}

ojs::result<settings> read_flags(int argc, char** argv) {
    constexpr std::string_view with_value[] = {
        "--port",           "--ledger",          "--store",  "--sync", "--retry-delay", "--timeout-grace",
        "--dead-after",     "--delay",           "--faults", "--seed", "--lame-duck",   "--max-connections",
        "--max-checkpoint", "--stream-heartbeat"};
    settings out;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        const std::size_t equals = argument.find('=');
        const std::string flag = argument.substr(0, equals);
        if (bool* chosen = find_switch(argument, out)) {
            *chosen = true;
            continue;
        }
        if (std::find(std::begin(with_value), std::end(with_value), flag) == std::end(with_value)) {
            return wrong_flag("unknown flag " + argument + "; --help lists them");
        }
        if (equals == std::string::npos && i + 1 == argc) return wrong_flag(flag + " needs a value");
        const std::string value = equals == std::string::npos ? argv[++i] : argument.substr(equals + 1);
        std::string fault;
        if (!set_flag(flag, value, out, fault)) return wrong_flag(flag + ": " + fault);
    }
    if (out.help) return out;
    if (!out.store_path.empty() && out.store_path == out.ledger_path)
        return wrong_flag("--store and --ledger: both are " + out.store_path);
    const auto shutdown_timeout = ojs::server_shutdown_timeout();
    if (!shutdown_timeout) return shutdown_timeout.error();
    out.shutdown_timeout = *shutdown_timeout;
    return out;
}

}  // namespace dev_backend

#include "settings.hpp"

#include <string_view>
#include <utility>

namespace dev_backend {
const char* const usage =
    R"(usage: dev_backend [flags]
An Open Job Spec backend, on loopback, for development and tests.

  --port N             where to listen; 0 takes a free port (default 8080)
  --ledger FILE        append one JSON line per event
  --store FILE         keep the jobs in that file: responses are sent only
                       after the data is on disk
  --retry-delay D      delay from a FAIL to the retry; overrides the job's
                       policy
  --timeout-grace D    time after a job's timeout for its worker to report it
                       (default 1s)
  --dead-after D       take back the jobs of a worker silent for this time
                       (default 15s)
  --stream-heartbeat D interval of heartbeats in streams of events (default 15s)
  --faults LIST        KIND:PERMILLE,... for worker requests; kinds: delay
                       (0-50 ms before processing), reset (drop unprocessed),
                       e500 (500 unprocessed), lose (process, then drop the
                       response)
  --seed N             random seed of the faults (default 1)
  --hyphens            allow hyphens in job types (the suites use them; the
                       specification does not)
  --quiet              do not log the steps of the shutdown

Durations: 500ms, 30s, 1m30s.
The first line of output is `listening on 127.0.0.1:PORT`.
SIGTERM and SIGINT end it within OJS_SERVER_SHUTDOWN_TIMEOUT (default 30s), a
second one at once.
Exit status:
  0   stopped
  1   a shutdown step failed
  64  invalid flag
  71  port in use
  74  the store is unusable
)";

ojs::error wrong_flag(std::string text) { return {ojs::errc::invalid_argument, 0, std::move(text)}; }

ojs::result<settings> read_flags(int argc, char** argv) {
    settings out;
    std::string port = "8080";
    std::string seed = "1";
    std::string faults;
    const std::pair<std::string_view, bool*> switches[] = {
        {"--quiet", &out.quiet}, {"--help", &out.help}, {"--hyphens", &out.hyphens}};
    const std::pair<std::string_view, milliseconds*> durations[] = {{"--retry-delay", &out.retry_delay},
                                                                    {"--timeout-grace", &out.timeout_grace},
                                                                    {"--dead-after", &out.dead_after},
                                                                    {"--stream-heartbeat", &out.stream_heartbeat}};
    const std::pair<std::string_view, std::string*> texts[] = {{"--port", &port},
                                                               {"--ledger", &out.ledger_path},
                                                               {"--store", &out.store_path},
                                                               {"--faults", &faults},
                                                               {"--seed", &seed}};
    // Null if `flag` is not in the table.
    const auto find = [](const auto& table, std::string_view flag) {
        for (const auto& [name, value] : table) {
            if (name == flag) return value;
        }
        return decltype(table[0].second){nullptr};
    };
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (bool* const chosen = find(switches, argument)) {
            *chosen = true;
            continue;
        }
        milliseconds* const duration = find(durations, argument);
        std::string* const text = find(texts, argument);
        if (duration == nullptr && text == nullptr)
            return wrong_flag("unknown flag " + argument + "; --help lists them");
        if (++i == argc) return wrong_flag(argument + " needs a value");
        const std::string value = argv[i];
        if (text != nullptr) {
            *text = value;
            continue;
        }
        const auto parsed = ojs::parse_duration(value);
        if (!parsed) return wrong_flag(argument + ": " + parsed.error().text);
        *duration = *parsed;
    }
    std::uint64_t number = 0;
    if (!ojs::detail::parse_number(port, 65535, number)) return wrong_flag("--port: '" + port + "' is no port");
    out.address = "127.0.0.1:" + port;
    if (!ojs::detail::parse_number(seed, UINT64_MAX, out.seed))
        return wrong_flag("--seed: '" + seed + "' is no number");
    const auto rates = parse_faults(faults);
    if (!rates) return wrong_flag("--faults: '" + faults + "' is not KIND:PERMILLE,...");
    out.faults = *rates;
    if (!out.store_path.empty() && out.store_path == out.ledger_path)
        return wrong_flag("--store and --ledger: both are " + out.store_path);
    const auto shutdown_timeout = ojs::server_shutdown_timeout();
    if (!shutdown_timeout) return shutdown_timeout.error();
    out.shutdown_timeout = *shutdown_timeout;
    return out;
}
}  // namespace dev_backend

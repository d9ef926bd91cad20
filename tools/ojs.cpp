// Enqueues, shows and cancels jobs, and lists queues, from a shell: `ojs --help`.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "ojs_client.hpp"

namespace {
constexpr const char* usage =
    R"(usage: ojs push TYPE [ARG...] [--queue QUEUE] [--priority N] [--delay TIME]
                [--id ID] [--meta KEY=VALUE]...
       ojs show ID
       ojs cancel ID
       ojs queues

  push    enqueues a job, and prints its id
  show    prints a job, as JSON
  cancel  cancels a job, and prints its state
  queues  prints how many jobs of each queue are in which state

  ARG              JSON if it is valid JSON (7, true, '{"a":1}', '"7"'), else a
                   string; after "--" it may begin with "--"
  --queue QUEUE    default: "default"
  --priority N     -100 to 100; higher ones first (0)
  --delay TIME     until the job may run: 500ms, 30s, 1h (0s)
  --id ID          a UUIDv7; default: a new one. To repeat a push is safe with
                   the id of the first
  --meta KEY=VALUE a member of meta, a string

Variables: OJS_URL (http://127.0.0.1:8080), OJS_AUTH_TOKEN, OJS_AUTH_TOKEN_FILE,
OJS_REQUEST_TIMEOUT, as of a worker. A command is repeated for 10 s while the
server cannot be reached, or a response is lost.
Exit status: 0; 1 if the server refused the request or did not respond; 64 if
the command or a variable is wrong
)";

using words = std::vector<std::string>;

constexpr std::string_view flags[] = {"--queue", "--priority", "--delay", "--id", "--meta"};

int fail(const ojs::error& why) {
    ojs::write_log_line(2, "error: " + why.text);
    return why.code == ojs::errc::invalid_argument || why.code == ojs::errc::unsupported ? ojs::exit_status::usage : 1;
}

ojs::error wrong(const std::string& what) { return {ojs::errc::invalid_argument, 0, what + "; see ojs --help"}; }

ojs::client_call soon() { return {ojs::deadline_after(std::chrono::seconds(10)), {}}; }

std::string args_json(const words& args) {
    std::string out;
    for (const std::string& arg : args)
        out += (out.empty() ? "" : ",") + (ojs::json_view::parse(arg) ? arg : ojs::json_quote(arg));
    return "[" + out + "]";
}

// What is wrong with the value; empty: nothing.
std::string read_flag(const std::string& flag, const std::string& value, ojs::enqueue_request& out, std::string& meta) {
    if (flag == "--queue") out.queue = value;
    if (flag == "--id") out.id = value;
    if (flag == "--priority") {
        const auto number = ojs::json_view(value).integer();
        if (!number || *number < -100 || *number > 100) return "'" + value + "' is not an integer from -100 to 100";
        out.priority = static_cast<int>(*number);
    }
    if (flag == "--delay") {
        const auto delay = ojs::parse_duration(value);
        if (!delay) return delay.error().text;
        if (delay->count() > 0) out.scheduled_at = std::chrono::system_clock::now() + *delay;
    }
    if (flag == "--meta") {
        const std::size_t end = value.find('=');
        if (end == value.npos || end == 0) return "'" + value + "' is not KEY=VALUE";
        meta += (meta.empty() ? "" : ",") + ojs::json_quote(value.substr(0, end)) + ":" +
                ojs::json_quote(value.substr(end + 1));
    }
    return {};
}

ojs::result<ojs::enqueue_request> read_push(const words& given) {
    ojs::enqueue_request out;
    std::string meta;
    words args;
    bool has_flags = true;  // until "--"
    for (std::size_t i = 1; i < given.size(); ++i) {
        const std::string& flag = given[i];
        if (!has_flags || flag.compare(0, 2, "--") != 0) {
            args.push_back(flag);
        } else if (flag == "--") {
            has_flags = false;
        } else {
            if (std::count(std::begin(flags), std::end(flags), flag) == 0) return wrong(flag + " is unknown");
            if (++i == given.size()) return wrong(flag + " needs a value");
            const std::string fault = read_flag(flag, given[i], out, meta);
            if (!fault.empty()) return wrong(flag + ": " + fault);
        }
    }
    if (args.empty()) return wrong("push needs a TYPE");
    out.type = args.front();
    args.erase(args.begin());
    out.args_json = args_json(args);
    out.meta_json = "{" + meta + "}";
    if (out.id.empty()) out.id = ojs::new_job_id();
    return out;
}

int push(const ojs::client& client, const ojs::enqueue_request& job) {
    const auto sent = client.enqueue(job, soon());
    if (!sent) return fail(sent.error());
    std::printf("%s\n", sent->job.id.c_str());
    return 0;
}

int print(const ojs::result<ojs::job_info>& shown, bool is_whole) {
    if (!shown) return fail(shown.error());
    std::printf("%s\n", (is_whole ? shown->job.envelope_json : shown->state).c_str());
    return 0;
}

int list_queues(const ojs::client& client) {
    const auto queues = client.queues(soon());
    if (!queues) return fail(queues.error());
    int width = 5;
    for (const ojs::queue_info& each : *queues) width = std::max(width, static_cast<int>(each.name.size()));
    std::printf("%-*s  available  active  scheduled  retryable  status\n", width, "queue");
    for (const ojs::queue_info& each : *queues)
        std::printf("%-*s  %9lld  %6lld  %9lld  %9lld  %s\n", width, each.name.c_str(),
                    static_cast<long long>(each.available), static_cast<long long>(each.active),
                    static_cast<long long>(each.scheduled), static_cast<long long>(each.retryable),
                    each.status.c_str());
    return 0;
}
}  // namespace

int main(int argc, char** argv) {
    const words given(argv + std::min(argc, 1), argv + argc);
    const std::string command = given.empty() ? "" : given.front();
    const bool asks_help = given.size() == 2 && given.back() == "--help";  // of a command
    if (command == "--help" || command == "-h" || asks_help) return std::fputs(usage, stdout), 0;
    const bool takes_id = command == "show" || command == "cancel";
    if (command != "push" && command != "queues" && !takes_id)
        return fail(wrong(command.empty() ? "no command" : "unknown command '" + command + "'"));
    if (command != "push" && given.size() != (takes_id ? 2U : 1U))
        return fail(wrong(command + (takes_id ? " needs one ID" : " takes no more words")));
    const auto job = command == "push" ? read_push(given) : ojs::enqueue_request();
    if (!job) return fail(job.error());
    const auto options = ojs::worker_options::from_environment();
    if (!options) return fail(options.error());
    const auto client = ojs::client::create(*options);
    if (!client) return fail(client.error());
    if (command == "push") return push(*client, *job);
    if (takes_id)
        return print(command == "show" ? client->get(given[1], soon()) : client->cancel(given[1], soon()),
                     command == "show");
    return list_queues(*client);
}

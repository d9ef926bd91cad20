// An Open Job Spec backend in memory, on loopback: for development, tests and the demo. Nothing is kept on disk.
//
//   POST   /ojs/v1/jobs                PUSH         POST /ojs/v1/workers/fetch      FETCH
//   POST   /ojs/v1/jobs/batch          PUSH many    POST /ojs/v1/workers/ack        ACK
//   GET    /ojs/v1/jobs/{id}           INFO         POST /ojs/v1/workers/nack       FAIL
//   DELETE /ojs/v1/jobs/{id}           CANCEL       POST /ojs/v1/workers/heartbeat  BEAT
//   POST, GET, DELETE /ojs/v1/jobs/{id}/checkpoint   {"state":any}, handed out as meta.checkpoint with the next FETCH
//   GET    /ojs/v1/health, /ojs/manifest
//
// For development only:
//   GET  /dev/summary                          how many jobs are in which state, and what each worker last said
//   POST /dev/directive {"worker_id":ID or "*","directive":"quiet"|"terminate"|"running"}   told at the next BEAT;
//                       "queues":[NAMES] beside "quiet" means those alone
//   POST /dev/faults    {"faults":"lose:100,reset:50"}  as --faults; "" switches them off
//   POST /dev/delay     {"ms":50}                       as --delay
//
// Requests that a web page can have a browser send are refused: with an Origin or Sec-Fetch-Site, to a Host that is
// neither an address nor localhost, and a POST whose Content-Type is not JSON.
//
// --ledger FILE gets one JSON line an event: t_ms since the start, mono_ns (CLOCK_MONOTONIC, so that the clocks of
// other processes compare), event, and what belongs to it. Every ACK and FAIL is there with the status answered,
// and "lost":true where a fault dropped the answer.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <picojson.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ojs_shutdown.hpp"
#include "schemas.hpp"

namespace {

using std::chrono::milliseconds;

// ---- time ----

std::int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

timespec wall_clock() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return now;
}

std::string iso_time() {
    const timespec now = wall_clock();
    tm utc{};
    gmtime_r(&now.tv_sec, &utc);
    std::array<char, 40> text{};
    const std::size_t length = strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &utc);
    std::snprintf(text.data() + length, text.size() - length, ".%03dZ",
                  static_cast<int>(now.tv_nsec / 1000000));
    return text.data();
}

// ---- JSON ----

// Thrown while a request is handled; becomes the error answer.
struct refusal {
    int status;
    const char* code;
    std::string message;
};

[[noreturn]] void refuse_shape(std::string message) {
    throw refusal{400, "INVALID_PAYLOAD", std::move(message)};
}

std::string quote(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            std::array<char, 8> escaped{};
            std::snprintf(escaped.data(), escaped.size(), "\\u%04x", static_cast<unsigned>(c));
            out += escaped.data();
        } else {
            out += c;
        }
    }
    return out + "\"";
}

// Builds the text of one JSON object.
class json_object {
  public:
    json_object& raw(std::string_view key, std::string_view json) {
        text_.append(text_.size() > 1 ? "," : "").append(quote(key)).append(":").append(json);
        return *this;
    }
    json_object& text(std::string_view key, std::string_view value) { return raw(key, quote(value)); }
    json_object& number(std::string_view key, std::int64_t value) { return raw(key, std::to_string(value)); }
    json_object& flag(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
    json_object& texts(std::string_view key, const std::vector<std::string>& values) {
        std::string list = "[";
        for (const std::string& value : values) list.append(list.size() > 1 ? "," : "").append(quote(value));
        return raw(key, list + "]");
    }
    // What was built so far without its closing brace, and its continuation.
    const std::string& open_text() const { return text_; }
    static json_object continued(std::string open_text) {
        json_object out;
        out.text_ = std::move(open_text);
        return out;
    }
    std::string str() const { return text_ + "}"; }

  private:
    std::string text_ = "{";
};

// Whether the whole of `text` is one JSON value that picojson can hold.
bool parse_whole(const std::string& text, picojson::value& out) {
    std::string why;
    try {
        const auto end = picojson::parse(out, text.begin(), text.end(), &why);
        const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
        return why.empty() && std::all_of(end, text.end(), is_blank);
    } catch (const std::exception&) {  // a number that no double holds
        return false;
    }
}

picojson::value parse_object(const std::string& body) {
    picojson::value out;
    if (!parse_whole(body, out)) refuse_shape("the body is not JSON, or has a number that no double holds");
    if (!out.is<picojson::object>()) refuse_shape("the body is not a JSON object");
    return out;
}

const picojson::value* member(const picojson::value& object, const char* key) {
    if (!object.is<picojson::object>()) return nullptr;
    const picojson::value& found = object.get(key);
    return found.is<picojson::null>() ? nullptr : &found;
}

std::string text_or(const picojson::value& object, const char* key, const std::string& fallback) {
    const picojson::value* found = member(object, key);
    if (found == nullptr) return fallback;
    if (!found->is<std::string>()) refuse_shape(std::string(key) + " is not a string");
    return found->get<std::string>();
}

std::string required_text(const picojson::value& object, const char* key) {
    std::string out = text_or(object, key, "");
    if (out.empty()) refuse_shape(std::string(key) + " is missing or empty");
    return out;
}

std::int64_t integer_or(const picojson::value& object, const char* key, std::int64_t least,
                        std::int64_t fallback) {
    const picojson::value* found = member(object, key);
    if (found == nullptr) return fallback;
    const double number = found->is<double>() ? found->get<double>() : 0.5;
    const bool whole =
        number >= -1e15 && number <= 1e15 && number == static_cast<double>(static_cast<std::int64_t>(number));
    if (!whole || number < static_cast<double>(least)) {
        refuse_shape(std::string(key) + " is not a whole number of at least " + std::to_string(least));
    }
    return static_cast<std::int64_t>(number);
}

// As long as the library's own durations may be: no sum of these leaves what a clock can hold.
constexpr milliseconds longest_time{2147483000};

// A time in units of `unit`, brought to what there is between `least` and longest_time.
milliseconds time_or(const picojson::value& object, const char* key, milliseconds unit, milliseconds least,
                     milliseconds fallback) {
    const picojson::value* found = member(object, key);
    if (found == nullptr) return fallback;
    if (!found->is<double>()) refuse_shape(std::string(key) + " is not a number");
    const auto scale = static_cast<double>(unit.count());
    const double least_ms = static_cast<double>(least.count());
    const double longest_ms = static_cast<double>(longest_time.count());
    const double ms = std::min(std::max(found->get<double>() * scale, least_ms), longest_ms);
    return milliseconds(static_cast<std::int64_t>(ms));
}

bool flag_or(const picojson::value& object, const char* key, bool fallback) {
    const picojson::value* found = member(object, key);
    if (found == nullptr) return fallback;
    if (!found->is<bool>()) refuse_shape(std::string(key) + " is not true or false");
    return found->get<bool>();
}

// The strings of an array; nothing at all where it is absent or no array of strings.
std::optional<std::vector<std::string>> texts_of(const picojson::value& object, const char* key) {
    const picojson::value* found = member(object, key);
    if (found == nullptr || !found->is<picojson::array>()) return std::nullopt;
    std::vector<std::string> out;
    for (const picojson::value& each : found->get<picojson::array>()) {
        if (!each.is<std::string>()) return std::nullopt;
        out.push_back(each.get<std::string>());
    }
    return out;
}

// Cuts JSON that is known to be valid into the source texts of its parts, for what must come back digit for digit:
// picojson holds numbers as doubles.
class json_slicer {
  public:
    using members = std::vector<std::pair<std::string_view, std::string_view>>;

    static members object_members(std::string_view object) {
        json_slicer at(object);
        members out;
        at.take('{');
        while (!at.take('}')) {
            std::string_view key = at.value();
            key = key.substr(1, key.size() - 2);
            at.take(':');
            out.emplace_back(key, at.value());
            at.take(',');
        }
        return out;
    }

    static std::vector<std::string_view> array_elements(std::string_view array) {
        json_slicer at(array);
        std::vector<std::string_view> out;
        at.take('[');
        while (!at.take(']')) {
            out.push_back(at.value());
            at.take(',');
        }
        return out;
    }

    // The object with that member in place of any of its name; an empty `value` only takes those away.
    static std::string with(std::string_view object, std::string_view key, std::string_view value) {
        members all = object_members(object);
        const auto of_that_name = [&](const members::value_type& each) { return each.first == key; };
        all.erase(std::remove_if(all.begin(), all.end(), of_that_name), all.end());
        if (!value.empty()) all.emplace_back(key, value);
        std::string out = "{";
        for (const auto& [name, source] : all) {
            out.append(out.size() > 1 ? ",\"" : "\"").append(name).append("\":").append(source);
        }
        return out + "}";
    }

    // Empty if there is no such member; of several the last, as picojson has it.
    static std::string_view find(const members& all, std::string_view key) {
        std::string_view out;
        for (const auto& [name, value] : all) {
            if (name == key) out = value;
        }
        return out;
    }

    // The same for a member known to be there: its key may be written with escapes.
    static std::string source(std::string_view object, const char* key, const picojson::value& parsed) {
        const std::string_view found = find(object_members(object), key);
        return found.empty() ? parsed.serialize() : std::string(found);
    }

  private:
    explicit json_slicer(std::string_view text) : rest_(text) {}

    void skip_blanks() {
        while (!rest_.empty() && rest_.front() <= ' ' && rest_.front() >= 0) rest_.remove_prefix(1);
    }
    bool take(char wanted) {
        skip_blanks();
        if (rest_.empty()) return true;  // ends every loop above
        if (rest_.front() != wanted) return false;
        rest_.remove_prefix(1);
        return true;
    }
    std::string_view value() {
        skip_blanks();
        const std::size_t length = rest_.empty() ? 0 : value_length();
        const std::string_view out = rest_.substr(0, length);
        rest_.remove_prefix(length);
        return out;
    }
    std::size_t value_length() const {
        std::size_t depth = 0;
        std::size_t at = 0;
        do {
            const char c = rest_[at];
            if (c == '"') {
                at += string_length(at);
            } else if (c == '{' || c == '[') {
                ++depth;
                ++at;
            } else if (c == '}' || c == ']') {
                --depth;
                ++at;
            } else {
                at =
                    std::min(rest_.find_first_of(depth == 0 ? " \t\r\n,]}" : "\"{}[]", at + 1), rest_.size());
            }
        } while (depth > 0 && at < rest_.size());
        return at;
    }
    std::size_t string_length(std::size_t start) const {
        std::size_t at = start + 1;
        while (at < rest_.size() && rest_[at] != '"') at += rest_[at] == '\\' ? 2U : 1U;
        return at + 1 - start;
    }

    std::string_view rest_;
};

// ---- answers ----

ojs::http_response json_answer(int status, std::string body) {
    ojs::http_response out;
    out.status = status;
    out.headers = {{"Content-Type", "application/openjobspec+json"}, {"OJS-Version", "1.0"}};
    out.body = std::move(body);
    return out;
}

ojs::http_response error_answer(const refusal& why) {
    json_object inner;
    inner.text("code", why.code).text("message", why.message).flag("retryable", why.status >= 500);
    return json_answer(why.status, json_object().raw("error", inner.str()).str());
}

// ---- the ledger ----

class ledger {
  public:
    bool open(const std::string& path) {
        file_.open(path, std::ios::app);
        return enabled_ = file_.is_open();
    }
    bool enabled() const { return enabled_; }

    // Under the backend's lock, so that the lines stand in the order of what happened.
    void write(const char* event, const json_object& fields) {
        if (!enabled_) return;
        const std::int64_t now = monotonic_ns();
        std::array<char, 96> head{};
        std::snprintf(head.data(), head.size(), "{\"t_ms\":%.3f,\"mono_ns\":%lld,\"event\":\"%s\"",
                      static_cast<double>(now - start_ns_) / 1e6, static_cast<long long>(now), event);
        std::string rest = fields.str();
        std::replace(rest.begin(), rest.end(), '\n', ' ');  // JSON as others wrote it may span lines
        file_ << head.data() << (rest.size() > 2 ? "," : "") << std::string_view(rest).substr(1) << '\n'
              << std::flush;
    }

  private:
    std::ofstream file_;
    bool enabled_ = false;
    std::int64_t start_ns_ = monotonic_ns();
};

// ---- faults ----

// What is to go wrong with one request.
struct fault_plan {
    milliseconds delay{0};
    bool reset = false;
    bool e500 = false;
    bool lose = false;
};

constexpr std::array<const char*, 4> fault_kinds = {"delay", "reset", "e500", "lose"};
using fault_rates = std::array<std::uint64_t, fault_kinds.size()>;  // permille

bool read_number(std::string_view text, std::uint64_t max, std::uint64_t& out) {
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), out);
    return failed == std::errc() && end == text.data() + text.size() && out <= max;
}

// "KIND:PERMILLE,KIND:PERMILLE"
std::optional<fault_rates> parse_faults(std::string_view text) {
    fault_rates rates{};
    while (!text.empty()) {
        const std::string_view item = text.substr(0, text.find(','));
        const std::string_view kind = item.substr(0, item.find(':'));
        const auto* known = std::find(fault_kinds.begin(), fault_kinds.end(), kind);
        if (known == fault_kinds.end() || kind.size() == item.size()) return std::nullopt;
        std::uint64_t& rate = rates[static_cast<std::size_t>(known - fault_kinds.begin())];
        if (!read_number(item.substr(kind.size() + 1), 1000, rate)) return std::nullopt;
        text.remove_prefix(std::min(item.size() + 1, text.size()));
    }
    return rates;
}

class fault_injector {
  public:
    void seed(std::uint64_t value) { random_.seed(value); }
    void set(const fault_rates& rates) {
        const std::lock_guard<std::mutex> held(mutex_);
        rates_ = rates;
        on_ = rates != fault_rates{};
    }
    fault_plan next() {
        fault_plan plan;
        if (!on_) return plan;
        const std::lock_guard<std::mutex> held(mutex_);
        std::array<bool, fault_kinds.size()> hit{};
        for (std::size_t i = 0; i < hit.size(); ++i) hit[i] = random_() % 1000 < rates_[i];
        if (hit[0]) plan.delay = milliseconds(random_() % 51);
        plan.reset = hit[1];
        plan.e500 = hit[2];
        plan.lose = hit[3];
        return plan;
    }

  private:
    std::mutex mutex_;
    std::mt19937_64 random_;
    fault_rates rates_{};
    std::atomic<bool> on_{false};  // spares the lock where there are no faults
};

// ---- jobs and workers ----

enum class job_state { available, active, completed, retryable, discarded, cancelled };
constexpr std::array<const char*, 6> state_names = {"available", "active",    "completed",
                                                    "retryable", "discarded", "cancelled"};

struct worker;

struct job {
    std::string id;
    std::string queue;
    std::string fixed;  // the part of its envelope that never changes, an open JSON object
    std::string meta;   // JSON, with the checkpoint if there is one
    bool has_checkpoint = false;
    std::int64_t priority = 0;
    std::int64_t max_attempts = 3;
    std::int64_t attempt = 0;
    std::uint64_t turn = 0;  // order of arrival
    job_state state = job_state::available;
    worker* owner = nullptr;                       // while active
    milliseconds lease{0};                         // while active
    ojs::time_point due = ojs::time_point::max();  // end of the lease, or of the wait for a retry
    std::string started_at;
    std::string result;  // JSON
    std::string error;   // JSON
};

struct by_turn {
    bool operator()(const job* a, const job* b) const {
        return a->priority != b->priority ? a->priority > b->priority : a->turn < b->turn;
    }
};

struct worker {
    std::string id;
    std::string state = "running";  // as it says itself
    std::string directive = "running";
    std::vector<std::string> directive_queues;  // that `quiet` is for; empty: all
    std::string registration = "{}";            // the whole of its last BEAT
    std::int64_t beats = 0;
    std::vector<std::string> last_active;
    std::set<job*, by_turn> jobs;
    ojs::time_point dead_at = ojs::time_point::max();  // unknown until it beats
};

bool says_goodbye(const std::string& state) {
    return state == "terminate" || state == "terminated";
}

std::string envelope(const job& shown) {
    json_object out = json_object::continued(shown.fixed);
    out.raw("meta", shown.meta);
    out.text("state", state_names[static_cast<std::size_t>(shown.state)]).number("attempt", shown.attempt);
    if (!shown.started_at.empty()) out.text("started_at", shown.started_at);
    if (!shown.result.empty()) out.raw("result", shown.result);
    if (!shown.error.empty()) out.raw("error", shown.error);
    return out.str();
}

// A PUSH that was read and found good.
struct new_job {
    std::string type;
    std::string queue;
    std::string args;
    std::string meta;
    std::vector<std::string> tags;
    std::string extra;  // members this backend does not know, as `,"key":value`
    std::int64_t priority = 0;
    std::int64_t max_attempts = 3;
    milliseconds timeout{0};  // 0: none
};

bool is_known_member(std::string_view key) {
    constexpr std::array<std::string_view, 16> known = {
        "specversion", "id",           "type",       "queue",      "args",       "meta",
        "priority",    "options",      "retry",      "timeout",    "timeout_ms", "tags",
        "state",       "max_attempts", "created_at", "enqueued_at"};
    return key == "attempt" || std::find(known.begin(), known.end(), key) != known.end();
}

void read_options(const picojson::value& options, new_job& out) {
    out.queue = text_or(options, "queue", out.queue);
    if (out.queue.empty()) refuse_shape("queue is empty");
    out.priority = integer_or(options, "priority", -1000000000, out.priority);
    out.timeout = time_or(options, "timeout", milliseconds(1000), milliseconds(0), out.timeout);
    out.timeout = time_or(options, "timeout_ms", milliseconds(1), milliseconds(0), out.timeout);
    if (const picojson::value* retry = member(options, "retry")) {
        out.max_attempts = integer_or(*retry, "max_attempts", 1, out.max_attempts);
    }
    if (member(options, "delay_until") != nullptr || member(options, "scheduled_at") != nullptr) {
        throw refusal{400, "UNSUPPORTED_FEATURE", "this backend schedules nothing for later"};
    }
}

void read_tags(const picojson::value& from, new_job& out) {
    if (member(from, "tags") == nullptr) return;
    const auto tags = texts_of(from, "tags");
    if (!tags) refuse_shape("tags is not an array of strings");
    out.tags = *tags;
}

// `source` is the text `parsed` was read from.
new_job read_push(const picojson::value& parsed, std::string_view source) {
    new_job out;
    out.queue = "default";
    out.type = required_text(parsed, "type");
    const picojson::value* args = member(parsed, "args");
    if (args == nullptr || !args->is<picojson::array>()) refuse_shape("args is missing or not an array");
    const picojson::value* meta = member(parsed, "meta");
    if (meta != nullptr && !meta->is<picojson::object>()) refuse_shape("meta is not an object");
    read_options(parsed, out);
    out.args = json_slicer::source(source, "args", *args);
    if (meta != nullptr) out.meta = json_slicer::source(source, "meta", *meta);
    read_tags(parsed, out);
    if (const picojson::value* options = member(parsed, "options")) {
        read_options(*options, out);
        read_tags(*options, out);
    }
    for (const auto& [key, value] : json_slicer::object_members(source)) {
        if (!is_known_member(key)) out.extra.append(",\"").append(key).append("\":").append(value);
    }
    return out;
}

// ---- the backend ----

struct settings {
    std::string address = "127.0.0.1:8080";
    std::string ledger_path;
    milliseconds retry_delay{1000};
    milliseconds dead_after{15000};
    milliseconds delay{0};
    fault_rates faults{};
    std::uint64_t seed = 1;
    std::size_t max_connections = 1200;
    std::uint64_t max_checkpoint = 1024 * 1024;  // bytes
    bool no_checkpoints = false;                 // that route is not there
    bool quiet = false;
    bool help = false;
    bool strict = false;            // worker requests must keep to the published schemas
    bool count_heartbeats = false;  // `active_jobs` of a heartbeat must be a number
};

constexpr milliseconds longest_delay{60000};

// One HTTP request on its way through.
struct incoming {
    const ojs::http_request& request;
    std::int64_t received_ns;
    bool lost = false;  // its answer will be dropped
};

class backend {
  public:
    explicit backend(const settings& options) : settings_(options), delay_ms_(options.delay.count()) {
        faults_.seed(options.seed);
        faults_.set(options.faults);
    }

    bool open_ledger() { return settings_.ledger_path.empty() || ledger_.open(settings_.ledger_path); }
    void start() {
        reaper_ = std::thread([this] { reap(); });
    }
    void stop();  // wakes everything that sleeps
    ojs::http_response handle(const ojs::http_request& request);
    std::string summary();

  private:
    using lock = std::unique_lock<std::mutex>;
    using operation = ojs::http_response (backend::*)(const incoming&);
    struct route {
        const char* method;
        const char* path;
        operation run;
    };
    static const std::array<route, 12> routes;

    // routes
    ojs::http_response dispatch(const incoming& in, std::string_view path);
    ojs::http_response handle_worker(incoming in, std::string_view path);
    void require_form(const incoming& in, std::string_view path);
    ojs::http_response push(const incoming& in);
    ojs::http_response push_batch(const incoming& in);
    ojs::http_response fetch(const incoming& in);
    ojs::http_response ack(const incoming& in);
    ojs::http_response nack(const incoming& in);
    ojs::http_response heartbeat(const incoming& in);
    ojs::http_response health(const incoming& in);
    ojs::http_response manifest(const incoming& in);
    ojs::http_response show_summary(const incoming& in);
    ojs::http_response set_directive(const incoming& in);
    ojs::http_response set_faults(const incoming& in);
    ojs::http_response set_delay(const incoming& in);
    ojs::http_response info(const std::string& id);
    ojs::http_response cancel(const std::string& id);
    ojs::http_response checkpoint(const incoming& in, const std::string& id);
    ojs::http_response save_checkpoint(const incoming& in, const std::string& id);
    ojs::http_response load_checkpoint(const std::string& id);
    ojs::http_response drop_checkpoint(const std::string& id);

    // With the lock held.
    job& add(const new_job& given);
    std::string next_id();
    job& find_job(const std::string& id);
    worker& find_worker(const std::string& id);
    std::vector<job*> claim(worker& by, const std::vector<std::string>& queues, std::size_t count,
                            milliseconds lease);
    void move(job& moved, job_state next);
    void schedule(job& timed, ojs::time_point when);
    void expect_beat_by(worker& from, ojs::time_point when);
    std::vector<std::string> extend_leases(worker& of, const std::vector<std::string>& ids,
                                           milliseconds lease);
    void take_back_jobs(worker& from, const char* event);
    job_state after_failure(job& failed, bool retryable, bool requeue);
    std::string settled_answer(const job& settled) const;
    void handle_due(ojs::time_point now);
    ojs::time_point next_due() const;

    template <class Settle>
    ojs::http_response settle(const char* event, const incoming& in, Settle apply);
    void record_fault(const char* kind, const incoming& in, std::string_view path);
    void pause(milliseconds duration);
    void reap();

    const settings settings_;
    fault_injector faults_;
    std::atomic<std::int64_t> delay_ms_;
    std::thread reaper_;

    std::mutex pause_mutex_;
    std::condition_variable pause_end_;
    bool stopping_ = false;  // under both locks

    std::mutex mutex_;  // guards everything below
    std::condition_variable due_changed_;
    ojs::time_point reaper_wakes_at_ = ojs::time_point::max();
    ledger ledger_;
    std::unordered_map<std::string, std::unique_ptr<job>> jobs_;
    std::unordered_map<std::string, std::set<job*, by_turn>> available_;  // by queue
    std::set<std::pair<ojs::time_point, job*>> due_jobs_;
    std::map<std::string, std::unique_ptr<worker>> workers_;
    std::set<std::pair<ojs::time_point, worker*>> due_workers_;
    std::string directive_for_new_ = "running";
    std::array<std::int64_t, state_names.size()> in_state_{};
    std::int64_t handed_back_ = 0;
    std::int64_t expired_ = 0;
    std::int64_t conflicts_ = 0;
    std::uint64_t last_turn_ = 0;
    std::int64_t last_id_ms_ = 0;
    std::uint64_t id_counter_ = 0;
    std::mt19937_64 id_random_{std::random_device{}()};
};

const std::array<backend::route, 12> backend::routes = {{
    {"POST", "/ojs/v1/workers/fetch", &backend::fetch},
    {"POST", "/ojs/v1/workers/ack", &backend::ack},
    {"POST", "/ojs/v1/workers/nack", &backend::nack},
    {"POST", "/ojs/v1/workers/heartbeat", &backend::heartbeat},
    {"POST", "/ojs/v1/jobs", &backend::push},
    {"POST", "/ojs/v1/jobs/batch", &backend::push_batch},
    {"GET", "/ojs/v1/health", &backend::health},
    {"GET", "/ojs/manifest", &backend::manifest},
    {"GET", "/dev/summary", &backend::show_summary},
    {"POST", "/dev/directive", &backend::set_directive},
    {"POST", "/dev/faults", &backend::set_faults},
    {"POST", "/dev/delay", &backend::set_delay},
}};

// ---- web pages ----
//
// A page that a browser shows may have it send requests to any address on this machine. What they look like is refused:
// whoever develops here also browses.

std::string lower_case(std::string_view text) {
    std::string out(text);
    for (char& each : out) each = each >= 'A' && each <= 'Z' ? static_cast<char>(each - 'A' + 'a') : each;
    return out;
}

// "application/json; charset=utf-8", "application/openjobspec+json": no form, and no page unasked, can send these.
bool is_json_type(std::string_view content_type) {
    std::string type = lower_case(content_type.substr(0, content_type.find(';')));
    type.erase(type.find_last_not_of(" \t") + 1);
    constexpr std::string_view suffix = "+json";
    return type == "application/json" ||
           (type.size() > suffix.size() &&
            type.compare(type.size() - suffix.size(), suffix.size(), suffix) == 0);
}

// "127.0.0.1:8080", "[::1]:8080", "localhost": a name of somebody's own may be made to lead here, and is then the
// page's own origin to the browser.
bool is_address(std::string_view host) {
    const bool bracketed = !host.empty() && host.front() == '[';
    const std::size_t end = bracketed ? host.find(']') : host.find(':');
    const std::string name = lower_case(host.substr(0, end).substr(bracketed ? 1 : 0));
    std::array<unsigned char, sizeof(in6_addr)> bytes{};
    if (bracketed) return end != host.npos && inet_pton(AF_INET6, name.c_str(), bytes.data()) == 1;
    return name == "localhost" || name == "localhost." || inet_pton(AF_INET, name.c_str(), bytes.data()) == 1;
}

void refuse_web_pages(const ojs::http_request& request) {
    for (const char* name : {"Origin", "Sec-Fetch-Site"}) {
        if (ojs::find_header(request.headers, name).data() != nullptr)
            throw refusal{403, "FORBIDDEN", "not for web pages"};
    }
    const std::string_view host = ojs::find_header(request.headers, "Host");
    if (host.data() != nullptr && !is_address(host))
        throw refusal{403, "FORBIDDEN", "the Host is neither an address nor localhost"};
    if (request.method == "POST" && !is_json_type(ojs::find_header(request.headers, "Content-Type")))
        throw refusal{415, "INVALID_PAYLOAD", "Content-Type is not application/json"};
}

// ---- requests ----

constexpr std::string_view job_path = "/ojs/v1/jobs/";

bool is_worker_route(std::string_view path) {
    constexpr std::string_view all = "/ojs/v1/workers/";
    return path.substr(0, all.size()) == all;
}

// The id in the path of a checkpoint; empty for any other path.
std::string checkpoint_owner(std::string_view path) {
    constexpr std::string_view end = "/checkpoint";
    if (path.size() <= job_path.size() + end.size() || path.substr(0, job_path.size()) != job_path) return {};
    if (path.substr(path.size() - end.size()) != end) return {};
    path.remove_prefix(job_path.size());
    return std::string(path.substr(0, path.size() - end.size()));
}

ojs::http_response backend::handle(const ojs::http_request& request) {
    const incoming in{request, monotonic_ns()};
    const std::string_view path = std::string_view(request.target).substr(0, request.target.find('?'));
    try {
        refuse_web_pages(request);
    } catch (const refusal& why) {
        return error_answer(why);
    }
    if (is_worker_route(path) || !checkpoint_owner(path).empty()) return handle_worker(in, path);
    return dispatch(in, path);
}

ojs::http_response backend::dispatch(const incoming& in, std::string_view path) {
    try {
        if (is_worker_route(path)) require_form(in, path);
        bool known = false;
        for (const route& each : routes) {
            if (path != each.path) continue;
            if (in.request.method == each.method) return (this->*each.run)(in);
            known = true;
        }
        const std::string owner = checkpoint_owner(path);
        if (!owner.empty() && !settings_.no_checkpoints) return checkpoint(in, owner);
        if (!known && owner.empty() && path.substr(0, job_path.size()) == job_path) {
            const std::string id(path.substr(job_path.size()));
            if (in.request.method == "GET") return info(id);
            if (in.request.method == "DELETE") return cancel(id);
            known = true;
        }
        if (known) throw refusal{405, "INVALID_PAYLOAD", "method not allowed"};
        throw refusal{404, "NOT_FOUND", "no such route"};
    } catch (const refusal& why) {
        return error_answer(why);
    }
}

// --strict and --count-heartbeats.
void backend::require_form(const incoming& in, std::string_view path) {
    if (!settings_.strict && !settings_.count_heartbeats) return;
    const picojson::value body = parse_object(in.request.body);
    std::string fault = settings_.strict ? schemas::fault_of_request(path, body) : "";
    if (settings_.count_heartbeats && path == "/ojs/v1/workers/heartbeat") {
        const picojson::value* active = member(body, "active_jobs");
        if (active == nullptr || !active->is<double>()) fault = "active_jobs is not a number";
    }
    if (fault.empty()) return;
    const lock held(mutex_);
    ledger_.write("refused_form",
                  json_object().text("route", path).text("why", fault).raw("body", in.request.body));
    throw refusal{400, "INVALID_PAYLOAD", fault};
}

// The worker routes and checkpoints are where --faults and --delay apply.
ojs::http_response backend::handle_worker(incoming in, std::string_view path) {
    const fault_plan plan = faults_.next();
    if (plan.delay.count() > 0) record_fault("delay", in, path);
    pause(plan.delay);
    ojs::http_response out;
    if (plan.reset) {
        record_fault("reset", in, path);
        out.drop = true;
        return out;
    }
    if (plan.e500) {
        record_fault("e500", in, path);
        return error_answer({500, "BACKEND_ERROR", "injected fault"});
    }
    in.lost = plan.lose;
    out = dispatch(in, path);
    if (plan.lose) record_fault("lose", in, path);
    out.drop = plan.lose;
    pause(milliseconds(delay_ms_.load()));
    return out;
}

void backend::record_fault(const char* kind, const incoming& in, std::string_view path) {
    json_object fields;
    fields.text("kind", kind).text("route", path);
    try {
        const picojson::value body = parse_object(in.request.body);
        for (const char* key : {"worker_id", "job_id"}) {
            const std::string known = text_or(body, key, "");
            if (!known.empty()) fields.text(key, known);
        }
    } catch (const refusal&) {  // a bad body: then they are not known
    }
    const lock held(mutex_);
    ledger_.write("fault", fields);
}

// Sleeps without any lock that others need, and no longer than until stop().
void backend::pause(milliseconds duration) {
    if (duration.count() <= 0) return;
    lock held(pause_mutex_);
    pause_end_.wait_for(held, duration, [this] { return stopping_; });
}

void backend::stop() {
    {
        const std::scoped_lock held(pause_mutex_, mutex_);
        stopping_ = true;
    }
    pause_end_.notify_all();
    due_changed_.notify_all();
    if (reaper_.joinable()) reaper_.join();
}

// ---- PUSH, INFO, CANCEL ----

ojs::http_response backend::push(const incoming& in) {
    const new_job given = read_push(parse_object(in.request.body), in.request.body);
    const lock held(mutex_);
    return json_answer(201, json_object().raw("job", envelope(add(given))).str());
}

ojs::http_response backend::push_batch(const incoming& in) {
    const picojson::value parsed = parse_object(in.request.body);
    const picojson::value* list = member(parsed, "jobs");
    if (list == nullptr || !list->is<picojson::array>() || list->get<picojson::array>().empty()) {
        refuse_shape("jobs is missing, empty or not an array");
    }
    const auto elements =
        json_slicer::array_elements(json_slicer::find(json_slicer::object_members(in.request.body), "jobs"));
    const picojson::array& values = list->get<picojson::array>();
    if (elements.size() != values.size()) refuse_shape("jobs is written in a way this backend does not read");
    std::vector<new_job> given;  // read them all before any is added: all or none
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (!values[i].is<picojson::object>()) refuse_shape("a job is not an object");
        given.push_back(read_push(values[i], elements[i]));
    }
    const lock held(mutex_);
    std::string out = "{\"jobs\":[";
    for (const new_job& each : given) {
        if (out.back() != '[') out += ',';
        out += envelope(add(each));
    }
    return json_answer(201, out + "],\"count\":" + std::to_string(given.size()) + "}");
}

job& backend::add(const new_job& given) {
    auto added = std::make_unique<job>();
    const std::string now = iso_time();
    added->id = next_id();
    added->queue = given.queue;
    added->priority = given.priority;
    added->max_attempts = given.max_attempts;
    added->turn = ++last_turn_;
    json_object fixed;
    fixed.text("specversion", "1.0")
        .text("id", added->id)
        .text("type", given.type)
        .text("queue", given.queue);
    added->meta = given.meta.empty() ? "{}" : given.meta;
    fixed.raw("args", given.args);
    fixed.number("priority", given.priority).number("max_attempts", given.max_attempts);
    if (given.timeout.count() > 0) fixed.number("timeout_ms", given.timeout.count());
    if (!given.tags.empty()) fixed.texts("tags", given.tags);
    fixed.text("created_at", now).text("enqueued_at", now);
    added->fixed = fixed.open_text() + given.extra;
    job& out = *jobs_.emplace(added->id, std::move(added)).first->second;
    ++in_state_[static_cast<std::size_t>(job_state::available)];
    available_[out.queue].insert(&out);
    ledger_.write("push",
                  json_object().text("job_id", out.id).text("type", given.type).text("queue", out.queue));
    return out;
}

// A UUIDv7: milliseconds, a counter that keeps ids of one millisecond in order, random bits.
std::string backend::next_id() {
    const timespec now = wall_clock();
    const std::int64_t ms = std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
    id_counter_ = ms > last_id_ms_ ? 0 : id_counter_ + 1;
    last_id_ms_ = std::max(ms, last_id_ms_);
    if (id_counter_ > 0xfff) {  // more than 4096 in a millisecond: borrow the next
        id_counter_ = 0;
        ++last_id_ms_;
    }
    const auto time = static_cast<unsigned long long>(last_id_ms_);
    const unsigned long long random = id_random_();
    std::array<char, 40> text{};
    std::snprintf(text.data(), text.size(), "%08llx-%04llx-7%03llx-%04llx-%012llx", time >> 16U & 0xffffffffU,
                  time & 0xffffU, static_cast<unsigned long long>(id_counter_),
                  0x8000U | (random >> 48U & 0x3fffU), random & 0xffffffffffffU);
    return text.data();
}

ojs::http_response backend::info(const std::string& id) {
    const lock held(mutex_);
    return json_answer(200, json_object().raw("job", envelope(find_job(id))).str());
}

ojs::http_response backend::cancel(const std::string& id) {
    const lock held(mutex_);
    job& found = find_job(id);
    if (found.state != job_state::available && found.state != job_state::active &&
        found.state != job_state::retryable) {
        throw refusal{409, "INVALID_STATE_TRANSITION", "the job has ended already"};
    }
    move(found, job_state::cancelled);
    ledger_.write("cancelled", json_object().text("job_id", id));
    return json_answer(200, json_object().raw("job", envelope(found)).str());
}

job& backend::find_job(const std::string& id) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) throw refusal{404, "NOT_FOUND", "no such job"};
    return *found->second;
}

// The one place where a job changes its state: keeps queues, owners, timers and counts in step.
void backend::move(job& moved, job_state next) {
    if (moved.state == job_state::available) available_[moved.queue].erase(&moved);
    if (moved.owner != nullptr) moved.owner->jobs.erase(&moved);
    moved.owner = nullptr;
    schedule(moved, ojs::time_point::max());
    --in_state_[static_cast<std::size_t>(moved.state)];
    ++in_state_[static_cast<std::size_t>(next)];
    moved.state = next;
    if (next == job_state::available) available_[moved.queue].insert(&moved);
}

// ---- FETCH ----

ojs::http_response backend::fetch(const incoming& in) {
    const picojson::value body = parse_object(in.request.body);
    const auto queues = texts_of(body, "queues");
    if (!queues || queues->empty()) refuse_shape("queues is missing, empty or not an array of strings");
    const std::int64_t count = integer_or(body, "count", 1, 1);
    const milliseconds lease =
        time_or(body, "visibility_timeout_ms", milliseconds(1), milliseconds(1), milliseconds(30000));
    const std::string worker_id = text_or(body, "worker_id", "");

    const lock held(mutex_);
    worker& by = find_worker(worker_id);
    json_object event;
    event.text("worker_id", worker_id).number("count", count).number("recv_mono_ns", in.received_ns);
    if (by.state != "running") {
        ledger_.write("refused_fetch", event.text("state", by.state));
        return json_answer(200, "{\"jobs\":[]}");
    }
    std::vector<std::string> ids;
    std::string out = "{\"jobs\":[";
    for (const job* each : claim(by, *queues, static_cast<std::size_t>(count), lease)) {
        if (out.back() != '[') out += ',';
        out += envelope(*each);
        ids.push_back(each->id);
    }
    event.texts("jobs", ids);
    if (in.lost) event.flag("lost", true);
    ledger_.write("fetch", event);
    return json_answer(200, out + "]}");
}

std::vector<job*> backend::claim(worker& by, const std::vector<std::string>& queues, std::size_t count,
                                 milliseconds lease) {
    std::vector<job*> out;
    const std::string now = iso_time();
    for (const std::string& queue : queues) {
        const auto waiting = available_.find(queue);
        while (waiting != available_.end() && !waiting->second.empty() && out.size() < count) {
            job& next = **waiting->second.begin();
            move(next, job_state::active);
            next.owner = &by;
            by.jobs.insert(&next);
            next.lease = lease;
            next.started_at = now;
            ++next.attempt;
            schedule(next, ojs::steady_clock::now() + lease);
            out.push_back(&next);
        }
    }
    return out;
}

// ---- ACK and FAIL ----

// What comes late must not touch what meanwhile is another worker's.
void require_holder(const job& held, std::string_view from) {
    if (from.empty() || held.owner == nullptr || held.owner->id == from) return;
    throw refusal{409, "INVALID_STATE_TRANSITION", "another worker holds the job"};
}

// Finds the active job, has `apply(body, job, event)` settle it, and records the request whatever came of it.
template <class Settle>
ojs::http_response backend::settle(const char* event, const incoming& in, Settle apply) {
    json_object fields;
    const std::string from(ojs::find_header(in.request.headers, "X-OJS-Worker-ID"));
    if (!from.empty()) fields.text("from", from);
    ojs::http_response out;
    lock held(mutex_, std::defer_lock);
    try {
        const picojson::value body = parse_object(in.request.body);
        const std::string id = required_text(body, "job_id");
        fields.text("job_id", id);
        held.lock();
        job& found = find_job(id);
        if (found.owner != nullptr) fields.text("worker_id", found.owner->id);
        require_holder(found, from);
        out = apply(body, found, fields);
    } catch (const refusal& why) {
        out = error_answer(why);
    }
    if (!held.owns_lock()) held.lock();
    if (out.status == 409) ++conflicts_;
    fields.number("status", out.status).number("recv_mono_ns", in.received_ns);
    if (in.lost) fields.flag("lost", true);
    ledger_.write(event, fields);
    return out;
}

void require_active(const job& settled) {
    if (settled.state == job_state::active) return;
    const std::string state = state_names[static_cast<std::size_t>(settled.state)];
    throw refusal{409, "INVALID_STATE_TRANSITION", "the job is not active but " + state};
}

void keep_checkpoint(job& of, std::string_view state) {
    of.meta = json_slicer::with(of.meta, "checkpoint", state);
    of.has_checkpoint = true;
}

void forget_checkpoint(job& of) {
    of.meta = json_slicer::with(of.meta, "checkpoint", "");
    of.has_checkpoint = false;
}

std::string backend::settled_answer(const job& settled) const {
    json_object out;
    out.flag("acknowledged", true).text("id", settled.id).text("job_id", settled.id);
    out.text("state", state_names[static_cast<std::size_t>(settled.state)]);
    return out.number("attempt", settled.attempt).number("max_attempts", settled.max_attempts).str();
}

ojs::http_response backend::ack(const incoming& in) {
    return settle("ack", in, [&](const picojson::value& body, job& done, json_object& event) {
        std::string result;
        if (const picojson::value* given = member(body, "result")) {
            result = json_slicer::source(in.request.body, "result", *given);
            event.raw("result", result);
        }
        require_active(done);
        done.result = std::move(result);
        if (done.has_checkpoint) forget_checkpoint(done);
        move(done, job_state::completed);
        return json_answer(200, settled_answer(done));
    });
}

bool is_interruption(const picojson::value& error) {
    return text_or(error, "code", "") == "ShutdownError" || text_or(error, "type", "") == "ShutdownError";
}

ojs::http_response backend::nack(const incoming& in) {
    return settle("nack", in, [&](const picojson::value& body, job& failed, json_object& event) {
        const picojson::value* error = member(body, "error");
        if (error == nullptr || !error->is<picojson::object>())
            refuse_shape("error is missing or not an object");
        const std::string source = json_slicer::source(in.request.body, "error", *error);
        // An interruption is not the job's fault, whatever the worker says of it. [GS 6]
        const bool retryable = flag_or(*error, "retryable", true) || is_interruption(*error);
        const bool requeue = flag_or(body, "requeue", false);
        event.text("code", required_text(*error, "code")).text("type", text_or(*error, "type", ""));
        event.text("message", text_or(*error, "message", ""))
            .flag("retryable", retryable)
            .flag("requeue", requeue);
        const picojson::value* details = member(*error, "details");
        if (details != nullptr) event.raw("details", json_slicer::source(source, "details", *details));
        std::string state;
        if (const picojson::value* meta = member(body, "meta")) {
            if (!meta->is<picojson::object>()) refuse_shape("meta is not an object");
            const std::string members = json_slicer::source(in.request.body, "meta", *meta);
            state = json_slicer::find(json_slicer::object_members(members), "checkpoint");
            if (!state.empty()) event.raw("checkpoint", state);
        }
        require_active(failed);
        failed.error = source;
        if (!state.empty()) keep_checkpoint(failed, state);
        const job_state next = after_failure(failed, retryable, requeue);
        event.text("state", state_names[static_cast<std::size_t>(next)]);
        return json_answer(200, settled_answer(failed));
    });
}

job_state backend::after_failure(job& failed, bool retryable, bool requeue) {
    job_state next = job_state::discarded;
    if (requeue) {
        next = job_state::available;
        --failed.attempt;  // handed back, not tried: the attempt does not count
        ++handed_back_;
    } else if (retryable && failed.attempt < failed.max_attempts) {
        next = job_state::retryable;
    }
    move(failed, next);
    if (next == job_state::retryable) schedule(failed, ojs::steady_clock::now() + settings_.retry_delay);
    return next;
}

// ---- checkpoints ----

ojs::http_response backend::checkpoint(const incoming& in, const std::string& id) {
    if (in.request.method == "POST") return save_checkpoint(in, id);
    if (in.request.method == "GET") return load_checkpoint(id);
    if (in.request.method == "DELETE") return drop_checkpoint(id);
    throw refusal{405, "INVALID_PAYLOAD", "method not allowed"};
}

ojs::http_response backend::save_checkpoint(const incoming& in, const std::string& id) {
    json_object event;
    const std::string from(ojs::find_header(in.request.headers, "X-OJS-Worker-ID"));
    event.text("job_id", id).text("worker_id", from);
    ojs::http_response out = json_answer(200, json_object().text("job_id", id).str());
    lock held(mutex_, std::defer_lock);
    try {
        parse_object(in.request.body);
        const std::string_view state =
            json_slicer::find(json_slicer::object_members(in.request.body), "state");
        if (state.empty()) refuse_shape("state is missing");
        held.lock();
        job& of = find_job(id);
        require_holder(of, from);
        require_active(of);
        if (state.size() > settings_.max_checkpoint) {
            throw refusal{413, "INVALID_PAYLOAD", "the checkpoint is too large"};
        }
        keep_checkpoint(of, state);
        event.raw("state", state);
    } catch (const refusal& why) {
        out = error_answer(why);
    }
    if (!held.owns_lock()) held.lock();
    event.number("status", out.status);
    if (in.lost) event.flag("lost", true);
    ledger_.write("checkpoint", event);
    return out;
}

ojs::http_response backend::load_checkpoint(const std::string& id) {
    const lock held(mutex_);
    const job& of = find_job(id);
    if (!of.has_checkpoint) throw refusal{404, "NOT_FOUND", "the job has no checkpoint"};
    const std::string_view state = json_slicer::find(json_slicer::object_members(of.meta), "checkpoint");
    return json_answer(200, json_object().text("job_id", id).raw("state", state).str());
}

ojs::http_response backend::drop_checkpoint(const std::string& id) {
    const lock held(mutex_);
    job& of = find_job(id);
    if (!of.has_checkpoint) throw refusal{404, "NOT_FOUND", "the job has no checkpoint"};
    forget_checkpoint(of);
    ledger_.write("checkpoint_dropped", json_object().text("job_id", id));
    return json_answer(200, json_object().text("job_id", id).str());
}

// ---- BEAT ----

ojs::http_response backend::heartbeat(const incoming& in) {
    const picojson::value body = parse_object(in.request.body);
    const std::string worker_id = required_text(body, "worker_id");
    const std::string state = text_or(body, "state", "running");
    const milliseconds lease =
        time_or(body, "visibility_timeout_ms", milliseconds(1), milliseconds(1), milliseconds(0));
    auto active = texts_of(body, "active_jobs");
    if (!active) active = texts_of(body, "active_job_ids");  // active_jobs was a count

    const lock held(mutex_);
    worker& from = find_worker(worker_id);
    from.state = state;
    from.registration = in.request.body;
    from.last_active = active.value_or(std::vector<std::string>());
    ++from.beats;
    json_object event;
    event.text("worker_id", worker_id).text("state", state).texts("active", from.last_active);
    event.flag("says_state", member(body, "state") != nullptr);
    event.number("recv_mono_ns", in.received_ns);
    if (in.lost) event.flag("lost", true);
    ledger_.write("beat", event);
    const std::vector<std::string> extended = extend_leases(from, from.last_active, lease);
    if (says_goodbye(state)) {
        ledger_.write("deregistered", json_object().text("worker_id", worker_id));
        take_back_jobs(from, "requeued_at_deregistration");
        expect_beat_by(from, ojs::time_point::max());
    } else {
        expect_beat_by(from, ojs::steady_clock::now() + settings_.dead_after);
    }
    json_object out;
    out.text("state", from.directive).texts("jobs_extended", extended).text("server_time", iso_time());
    if (!from.directive_queues.empty()) out.texts("queues", from.directive_queues);
    return json_answer(200, out.str());
}

worker& backend::find_worker(const std::string& id) {
    std::unique_ptr<worker>& found = workers_[id];
    if (!found) {
        found = std::make_unique<worker>();
        found->id = id;
        found->directive = directive_for_new_;
    }
    return *found;
}

std::vector<std::string> backend::extend_leases(worker& of, const std::vector<std::string>& ids,
                                                milliseconds lease) {
    std::vector<std::string> out;
    for (const std::string& id : ids) {
        const auto found = jobs_.find(id);
        if (found == jobs_.end() || found->second->owner != &of) continue;
        job& extended = *found->second;
        if (lease.count() > 0) extended.lease = lease;
        schedule(extended, ojs::steady_clock::now() + extended.lease);
        out.push_back(id);
    }
    return out;
}

// A worker that is gone no longer works on anything.
void backend::take_back_jobs(worker& from, const char* event) {
    while (!from.jobs.empty()) {
        job& taken = **from.jobs.begin();
        move(taken, job_state::available);
        ledger_.write(event, json_object().text("worker_id", from.id).text("job_id", taken.id));
    }
}

// ---- what time brings: leases that end, workers that die, retries that fall due ----

void backend::schedule(job& timed, ojs::time_point when) {
    if (timed.due != ojs::time_point::max()) due_jobs_.erase({timed.due, &timed});
    timed.due = when;
    if (when != ojs::time_point::max()) due_jobs_.insert({when, &timed});
    if (when < reaper_wakes_at_) due_changed_.notify_one();
}

void backend::expect_beat_by(worker& from, ojs::time_point when) {
    if (from.dead_at != ojs::time_point::max()) due_workers_.erase({from.dead_at, &from});
    from.dead_at = when;
    if (when != ojs::time_point::max()) due_workers_.insert({when, &from});
    if (when < reaper_wakes_at_) due_changed_.notify_one();
}

void backend::reap() {
    lock held(mutex_);
    while (!stopping_) {
        handle_due(ojs::steady_clock::now());
        reaper_wakes_at_ = next_due();
        if (reaper_wakes_at_ == ojs::time_point::max()) {
            due_changed_.wait(held);
        } else {
            due_changed_.wait_until(held, reaper_wakes_at_);
        }
    }
}

ojs::time_point backend::next_due() const {
    ojs::time_point first = ojs::time_point::max();
    if (!due_jobs_.empty()) first = std::min(first, due_jobs_.begin()->first);
    if (!due_workers_.empty()) first = std::min(first, due_workers_.begin()->first);
    return first;
}

void backend::handle_due(ojs::time_point now) {
    while (!due_workers_.empty() && due_workers_.begin()->first <= now) {
        worker& silent = *due_workers_.begin()->second;
        ledger_.write("dead", json_object()
                                  .text("worker_id", silent.id)
                                  .number("jobs", static_cast<std::int64_t>(silent.jobs.size())));
        take_back_jobs(silent, "requeued_from_dead");
        expect_beat_by(silent, ojs::time_point::max());
    }
    while (!due_jobs_.empty() && due_jobs_.begin()->first <= now) {
        job& due = *due_jobs_.begin()->second;
        json_object event;
        event.text("job_id", due.id);
        if (due.owner != nullptr) event.text("worker_id", due.owner->id);
        const bool was_active = due.state == job_state::active;
        if (was_active) ++expired_;
        move(due, job_state::available);
        ledger_.write(was_active ? "expired" : "promoted", event);
    }
}

// ---- the rest of the routes ----

ojs::http_response backend::health(const incoming&) {
    return json_answer(200, "{\"status\":\"ok\"}");
}

ojs::http_response backend::manifest(const incoming&) {
    json_object implementation;
    implementation.text("name", "dev_backend").text("version", OJS_SHUTDOWN_VERSION).text("language", "c++");
    json_object out;
    json_object shutdown;
    shutdown.text("name", "graceful-shutdown").text("uri", "urn:ojs:ext:graceful-shutdown");
    json_object extensions;
    extensions.raw("official", "[" + shutdown.text("version", "1.0.0-rc.1").str() + "]");
    out.text("specversion", "1.0").raw("implementation", implementation.str()).number("conformance_level", 1);
    out.raw("extensions", extensions.str());
    return json_answer(200, out.texts("protocols", {"http"}).text("backend", "memory").str());
}

ojs::http_response backend::show_summary(const incoming&) {
    return json_answer(200, summary());
}

std::string backend::summary() {
    const lock held(mutex_);
    json_object workers;
    for (const auto& [id, each] : workers_) {
        json_object shown;
        shown.text("state", each->state).number("beats", each->beats).texts("last_active", each->last_active);
        workers.raw(quote(id).substr(1, quote(id).size() - 2),
                    shown.raw("registration", each->registration).str());
    }
    json_object out;
    out.number("pushed", static_cast<std::int64_t>(jobs_.size())).number("scheduled", 0);
    for (std::size_t i = 0; i < state_names.size(); ++i) out.number(state_names[i], in_state_[i]);
    out.number("handed_back", handed_back_).number("expired", expired_).number("conflicts", conflicts_);
    return out.raw("workers", workers.str()).str();
}

ojs::http_response backend::set_directive(const incoming& in) {
    const picojson::value body = parse_object(in.request.body);
    const std::string worker_id = required_text(body, "worker_id");
    const std::string directive = required_text(body, "directive");
    if (directive != "running" && directive != "quiet" && directive != "terminate") {
        refuse_shape("directive is none of running, quiet, terminate");
    }
    const std::vector<std::string> queues = texts_of(body, "queues").value_or(std::vector<std::string>());
    if (!queues.empty() && directive != "quiet") refuse_shape("queues go with the directive quiet alone");
    const auto tell = [&](worker& told) {
        told.directive = directive;
        told.directive_queues = queues;
    };
    const lock held(mutex_);
    if (worker_id != "*") {
        tell(find_worker(worker_id));
    } else {
        directive_for_new_ = queues.empty() ? directive : "running";
        for (const auto& entry : workers_) tell(*entry.second);
    }
    return json_answer(200, "{}");
}

ojs::http_response backend::set_faults(const incoming& in) {
    const auto rates = parse_faults(text_or(parse_object(in.request.body), "faults", ""));
    if (!rates) refuse_shape("faults is not KIND:PERMILLE,... of delay, reset, e500, lose");
    faults_.set(*rates);
    return json_answer(200, "{}");
}

ojs::http_response backend::set_delay(const incoming& in) {
    const milliseconds asked =
        time_or(parse_object(in.request.body), "ms", milliseconds(1), milliseconds(0), milliseconds(0));
    delay_ms_.store(std::min(asked, longest_delay).count());
    return json_answer(200, "{}");
}

// ---- the command line ----

constexpr const char* usage =
    "usage: dev_backend [flags]\n"
    "An Open Job Spec backend in memory, on loopback, for development and tests.\n"
    "\n"
    "  --port N             where to listen; 0 takes a free port (default 8080)\n"
    "  --ledger FILE        append one JSON line an event\n"
    "  --retry-delay D      from a FAIL until the job is available again (default 1s)\n"
    "  --dead-after D       take the jobs of a worker that is silent for so long (default 15s)\n"
    "  --delay D            answer workers so much later (default 0s)\n"
    "  --faults LIST        KIND:PERMILLE,... for worker requests; kinds: delay (0-50 ms before\n"
    "                       processing), reset (drop unprocessed), e500 (500 unprocessed),\n"
    "                       lose (process, then drop the answer)\n"
    "  --seed N             of the faults (default 1)\n"
    "  --max-connections N  at a time (default 1200)\n"
    "  --max-checkpoint N   bytes of a checkpoint, above which it is refused with 413 (default 1048576)\n"
    "  --no-checkpoints     without the route for checkpoints: they come with a FAIL alone\n"
    "  --strict             worker requests must keep to the published schemas, else 400\n"
    "  --count-heartbeats   active_jobs of a heartbeat must be a number, else 400\n"
    "  --quiet              no summary at the end\n"
    "\n"
    "Durations: 500ms, 30s, 1m30s. The first line of output is `listening on 127.0.0.1:PORT`.\n"
    "SIGTERM and SIGINT stop it; exit status 0. A wrong flag: 64.\n";

bool read_duration(const std::string& text, milliseconds longest, milliseconds& out) {
    const auto parsed = ojs::parse_duration(text);
    if (!parsed || *parsed > longest) return false;
    out = *parsed;
    return true;
}

// False: `value` is no good for this flag.
bool set_flag(const std::string& flag, const std::string& value, settings& out) {
    constexpr milliseconds day{86400000};
    std::uint64_t number = 0;
    if (flag == "--retry-delay") return read_duration(value, day, out.retry_delay);
    if (flag == "--dead-after") return read_duration(value, day, out.dead_after);
    if (flag == "--delay") return read_duration(value, longest_delay, out.delay);
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

ojs::error wrong_flag(std::string text) {
    return {ojs::errc::invalid_argument, 0, std::move(text)};
}

// The flags without a value.
bool* find_switch(std::string_view flag, settings& out) {
    if (flag == "--quiet") return &out.quiet;
    if (flag == "--help") return &out.help;
    if (flag == "--strict") return &out.strict;
    if (flag == "--no-checkpoints") return &out.no_checkpoints;
    if (flag == "--count-heartbeats") return &out.count_heartbeats;
    return nullptr;
}

// Flags are written --flag VALUE or --flag=VALUE.
ojs::result<settings> read_flags(int argc, char** argv) {
    constexpr std::array<std::string_view, 9> with_value = {
        "--port",   "--ledger", "--retry-delay",     "--dead-after",    "--delay",
        "--faults", "--seed",   "--max-connections", "--max-checkpoint"};
    settings out;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        const std::size_t equals = argument.find('=');
        const std::string flag = argument.substr(0, equals);
        if (bool* chosen = find_switch(argument, out)) {
            *chosen = true;
            continue;
        }
        if (std::find(with_value.begin(), with_value.end(), flag) == with_value.end()) {
            return wrong_flag("unknown flag " + argument + "; --help lists them");
        }
        if (equals == std::string::npos && i + 1 == argc) return wrong_flag(flag + " needs a value");
        const std::string value = equals == std::string::npos ? argv[++i] : argument.substr(equals + 1);
        if (!set_flag(flag, value, out)) return wrong_flag(flag + ": '" + value + "' is not a value for it");
    }
    return out;
}

// Some systems allow 1024 descriptors, fewer than the connections this may have to hold.
void raise_descriptor_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

void print_line(const std::string& text) {
    std::fputs((text + "\n").c_str(), stdout);
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // first: a SIGTERM during start-up is kept
    if (!signals) return ojs::report_usage(signals.error());
    const auto options = read_flags(argc, argv);
    if (!options) return ojs::report_usage(options.error());
    if (options->help) {
        std::fputs(usage, stdout);
        return 0;
    }

    raise_descriptor_limit();
    backend jobs(*options);
    if (!jobs.open_ledger())
        return ojs::report_usage(wrong_flag("--ledger: cannot write " + options->ledger_path));
    ojs::http_server_options server_options;
    server_options.max_connections = options->max_connections;
    auto server = ojs::http_server::start(
        options->address, [&jobs](const ojs::http_request& request) { return jobs.handle(request); },
        server_options);
    if (!server) return ojs::report_usage(server.error());
    jobs.start();
    print_line("listening on " + server->address());

    while (lifecycle.phase() < ojs::phase::draining) signals->wait();
    jobs.stop();
    server->stop(ojs::steady_clock::now() + std::chrono::seconds(2));
    if (!options->quiet) print_line("summary " + jobs.summary());
    return 0;
}

// Shared by the acts of the demonstration: the backend and the workers as child processes, their output, and the account
// of every job.
#pragma once

#include <picojson.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ojs_client.hpp"
#include "ojs_process.hpp"

extern char** environ;

namespace demo {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using texts = std::vector<std::string>;

inline constexpr int concurrency = 4;
inline constexpr std::chrono::seconds step_timeout{30};

// Thrown to end the demo early; children are ended on the way out.
struct failed {
    std::string why;
};
struct interrupted {
    int signal;
};

inline std::int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

inline double seconds_between(std::int64_t from_ns, std::int64_t until_ns) {
    return static_cast<double>(until_ns - from_ns) / 1e9;
}

// ---- output ----

enum class style { plain, title, good, bad, faint };

inline void print(const std::string& text, style style = style::plain) {
    static const bool colour = isatty(STDOUT_FILENO) == 1 && getenv("NO_COLOR") == nullptr;
    constexpr std::array<const char*, 5> codes = {"", "\033[1m", "\033[32m", "\033[31m", "\033[2m"};
    const char* code = colour ? codes[static_cast<std::size_t>(style)] : "";
    std::printf("%s%s%s\n", code, text.c_str(), *code == '\0' ? "" : "\033[0m");
    // SIGPIPE is ignored, so that this error still lets the demo clean up.
    if (std::fflush(stdout) != 0) throw failed{"cannot write the output"};
}

inline std::string one_decimal(double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.1f", value);
    return text.data();
}

// ---- JSON ----

inline picojson::value parse(const std::string& text) {
    const ojs::result<picojson::object> read = ojs::json_view(text).as<picojson::object>();
    if (!read) throw failed{"not a JSON object: " + text};
    return picojson::value(*read);
}

inline const picojson::value& member(const picojson::value& object, const char* key) {
    static const picojson::value null;
    return object.is<picojson::object>() ? object.get(key) : null;
}

// A string as it is, anything else as JSON.
inline std::string text_of(const picojson::value& object, const char* key) { return member(object, key).to_str(); }

inline std::int64_t number_of(const picojson::value& object, const char* key) {
    const picojson::value& found = member(object, key);
    return found.is<double>() ? static_cast<std::int64_t>(found.get<double>()) : 0;
}

inline texts ids_of(const picojson::value& event, const char* key) {
    texts out;
    const picojson::value& list = member(event, key);
    if (!list.is<picojson::array>()) return out;
    for (const picojson::value& id : list.get<picojson::array>()) out.push_back(id.to_str());
    return out;
}
// ---- child processes ----

// The output lines of the children with their times. Filled by the threads that read them.
class mailbox {
  public:
    struct line {
        std::int64_t ns;
        std::string from;
        std::string text;
    };
    void put(const std::string& from, std::string_view text) {
        const std::lock_guard<std::mutex> held(mutex_);
        lines_.push_back({monotonic_ns(), from, std::string(text)});
    }
    std::vector<line> take() {
        const std::lock_guard<std::mutex> held(mutex_);
        return std::exchange(lines_, {});
    }

  private:
    std::mutex mutex_;
    std::vector<line> lines_;
};

// Our environment without OJS_ variables, which would configure the worker.
inline texts environment_with(texts added) {
    for (char** entry = environ; *entry != nullptr; ++entry) {
        if (std::strncmp(*entry, "OJS_", 4) != 0) added.emplace_back(*entry);
    }
    return added;
}

// A child process in its own group, so that Ctrl-C reaches the demo alone. The destructor kills it if it still runs.
class program {
  public:
    program(std::string name, texts command, texts variables, mailbox& to) : name_(std::move(name)) {
        const auto line = [&to, from = name_](std::string_view text) { to.put(from, text); };
        ojs::child_options options;
        options.command = std::move(command);
        options.environment = environment_with(std::move(variables));
        options.inherit_environment = false;
        options.output = options.errors = ojs::child_stream::lines(line);
        ojs::result<ojs::child_process> started = ojs::child_process::start(options);
        if (!started) throw failed{"cannot start " + name_ + ": " + started.error().text};
        process_ = std::move(*started);
    }

    const std::string& name() const { return name_; }
    std::string pid() const { return std::to_string(process_.pid()); }
    void signal(int number) {
        if (!process_.signal(number)) throw failed{name_ + " is gone"};
    }
    bool has_ended() {
        if (end_) return true;
        const ojs::result<ojs::child_exit> end = process_.wait(ojs::steady_clock::now());
        if (end) end_ = *end;
        if (!end && end.error().code != ojs::errc::timed_out) throw failed{name_ + ": " + end.error().text};
        return end_.has_value();
    }
    const ojs::child_exit& end() const { return *end_; }

  private:
    std::string name_;
    ojs::child_process process_;
    std::optional<ojs::child_exit> end_;
};

// ---- the account: the end of every claim, from the backend's ledger ----

class account {
  public:
    void add(const std::string& kind, const picojson::value& event) {
        const std::string id = text_of(event, "job_id");
        if (kind == "push") {
            jobs_[id];
        } else if (kind == "fetch") {
            for (const std::string& claimed : ids_of(event, "jobs")) claim(jobs_[claimed]);
        } else if (kind == "ack" || kind == "nack") {
            settle(event, jobs_[id], kind == "ack" ? "completed" : text_of(event, "state"));
        } else if (kind == "expired" || kind == "requeued_at_deregistration" || kind == "requeued_from_dead") {
            jobs_[id].state = "available";  // taken back unsettled: that claim counts as lost
        } else if (kind == "promoted") {
            jobs_[id].state = "available";
        }
    }

    std::int64_t pushed() const { return static_cast<std::int64_t>(jobs_.size()); }
    std::int64_t in_state(std::string_view state) const {
        return std::count_if(jobs_.begin(), jobs_.end(), [&](const auto& job) { return job.second.state == state; });
    }
    bool was_claimed(const std::string& id) const {
        const auto found = jobs_.find(id);
        return found != jobs_.end() && found->second.claims > 0;
    }
    // Of the completed run the first pass, and the pass in the last checkpoint.
    std::int64_t first_pass(const std::string& id) const { return jobs_.at(id).first_pass; }
    std::int64_t last_pass(const std::string& id) const { return jobs_.at(id).last_pass; }
    const texts& requeued() const { return requeued_; }
    const picojson::value& last_result() const { return last_result_; }

    // Claims that were never settled. Meaningless while a worker runs.
    std::int64_t lost() const {
        return sum([](const entry& job) { return job.claims - job.settlements; });
    }
    // Settlements beyond one per claim, completions beyond one per job, and settlements the backend refused.
    std::int64_t duplicated() const {
        return refused_ + sum([](const entry& job) { return job.settlements - job.claims; }) +
               sum([](const entry& job) { return job.completions - 1; });
    }

  private:
    struct entry {
        int claims = 0;
        int settlements = 0;
        int completions = 0;
        std::int64_t first_pass = 0;
        std::int64_t last_pass = 0;
        std::string state = "available";
    };

    static void claim(entry& job) {
        ++job.claims;
        job.state = "active";
    }
    void settle(const picojson::value& event, entry& job, const std::string& state) {
        if (number_of(event, "status") != 200) {
            ++refused_;
            return;
        }
        ++job.settlements;
        if (state == "completed") ++job.completions;
        if (state == "completed") last_result_ = member(event, "result");
        if (state == "completed")
            job.first_pass = number_of(last_result_, "first_pass");
        else
            job.last_pass = number_of(member(event, "checkpoint"), "pass");
        if (text_of(event, "requeue") == "true") requeued_.push_back(text_of(event, "job_id"));
        job.state = state;
    }
    template <class Count>
    std::int64_t sum(Count count) const {
        std::int64_t out = 0;
        for (const auto& job : jobs_) out += std::max(0, count(job.second));
        return out;
    }

    std::map<std::string, entry> jobs_;
    texts requeued_;
    std::int64_t refused_ = 0;
    picojson::value last_result_;
};

// ---- the stage: everything the acts share ----

// An event of the backend's ledger, a worker's change of phase from its log ("phase"), or a signal of the demo ("signal").
struct event {
    std::int64_t ns = 0;
    std::string kind;
    std::string worker;
    picojson::value record;
};

class stage {
  public:
    stage(fs::path folder, ojs::lifecycle& lifecycle, ojs::signals& signals)
        : folder_(std::move(folder)),
          lifecycle_(lifecycle),
          signals_(signals),
          backend_("backend", {sibling("dev_backend"), "--port", "0", "--ledger", "/dev/stdout", "--quiet"}, {},
                   mailbox_),
          address_(await_address()),
          client_(connect()) {}

    const std::string& address() const { return address_; }
    const program& backend() const { return backend_; }
    demo::account& account() { return account_; }
    const std::vector<event>& history() const { return history_; }

    program start_worker(const std::string& name, const std::string& queues, const std::string& grace) {
        return {name,
                {sibling("worker")},
                {"OJS_URL=http://" + address_, "OJS_WORKER_ID=" + name, "OJS_QUEUES=" + queues,
                 "OJS_CONCURRENCY=" + std::to_string(concurrency), "OJS_SHUTDOWN_GRACE_PERIOD=" + grace,
                 "OJS_HEARTBEAT_INTERVAL=500ms", "OJS_POLL_INTERVAL=200ms", "OJS_LABELS=demo," + name,
                 "OJS_LOG_FORMAT=json"},
                mailbox_};
    }

    // Waits in steps until `done`, and calls `on_event` with each event after the account has it.
    using event_callback = std::function<void(const event&)>;
    void watch_until(const std::function<bool()>& done, const event_callback& on_event = nullptr) {
        const auto deadline = ojs::steady_clock::now() + step_timeout;
        for (bool last = false; !last;) {
            last = done();  // before reading, so that no event before it is missed
            read(on_event);
            if (last) return;
            if (ojs::steady_clock::now() > deadline) throw failed{"a step exceeded its timeout"};
            if (backend_.has_ended()) throw failed{"the backend has ended: " + last_output("backend")};
            pause();
        }
    }
    void watch_for(milliseconds time) {
        const auto end = ojs::steady_clock::now() + time;
        watch_until([&] { return ojs::steady_clock::now() >= end; });
    }

    void signal(program& worker, int number) {
        print("  kill -" + ojs::signal_name(number).substr(3) + " " + worker.pid());
        read(nullptr);  // what happened before
        history_.push_back({monotonic_ns(), "signal", worker.name(), picojson::value(ojs::signal_name(number))});
        worker.signal(number);
    }

    const ojs::client& client() const { return client_; }
    static ojs::client_call soon() { return {ojs::deadline_after(std::chrono::seconds(5)), {}}; }
    template <class Value>
    static Value value_of(const ojs::result<Value>& got) {
        if (!got) throw failed{got.error().text};
        return *got;
    }

    std::string last_output(const std::string& program) { return last_output_[program]; }

  private:
    std::string sibling(const char* name) const {
        const fs::path path = folder_ / name;
        if (access(path.c_str(), X_OK) != 0) throw failed{path.string() + " is missing: build it first (make)"};
        return path.string();
    }
    std::string await_address() {
        constexpr std::string_view greeting = "listening on ";
        watch_until([&] { return !last_output("backend").empty(); });
        const std::string line = last_output("backend");
        if (line.compare(0, greeting.size(), greeting) != 0) throw failed{"unexpected backend output: " + line};
        return line.substr(greeting.size());
    }
    ojs::client connect() const {
        ojs::client_options options;
        options.url = "http://" + address_;
        return value_of(ojs::client::create(options));
    }

    void read(const event_callback& on_event) {
        std::vector<event> events;
        for (const mailbox::line& line : mailbox_.take()) {
            last_output_[line.from] = line.text;
            if (line.text.substr(0, 1) != "{") continue;
            const picojson::value record = parse(line.text);
            if (line.from == "backend") {
                events.push_back(
                    {number_of(record, "mono_ns"), text_of(record, "event"), text_of(record, "worker_id"), record});
            } else if (text_of(record, "message") == "phase changed") {
                events.push_back({line.ns, "phase", line.from, member(record, "attributes")});
            }
        }
        const auto earlier = [](const event& a, const event& b) { return a.ns < b.ns; };
        std::stable_sort(events.begin(), events.end(), earlier);
        for (const event& event : events) {
            account_.add(event.kind, event.record);
            history_.push_back(event);
            if (on_event) on_event(event);
        }
    }
    // A short sleep that Ctrl-C ends.
    void pause() {
        const ojs::received_signal got = signals_.wait(ojs::steady_clock::now() + milliseconds(20));
        if (lifecycle_.phase() >= ojs::phase::draining) throw interrupted{got.number};
    }

    fs::path folder_;
    ojs::lifecycle& lifecycle_;
    ojs::signals& signals_;
    mailbox mailbox_;
    std::map<std::string, std::string> last_output_;
    demo::account account_;
    std::vector<event> history_;
    program backend_;
    std::string address_;
    ojs::client client_;
};
}  // namespace demo

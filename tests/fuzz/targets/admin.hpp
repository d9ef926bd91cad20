// admin: the requests of operators to a launcher. Only a granted POST changes anything, and what is logged is one line.
#pragma once
#include "../fuzz.hpp"

namespace fuzz {
namespace admin_detail {
namespace internal = ojs::detail;

// A process that is ready once it has started, and ends when it is asked to.
class fake_process final : public internal::instance {
  public:
    fake_process(const internal::instance_spec& spec, internal::instance_callback changed)
        : changed_(std::move(changed)) {
        info_.id = spec.id;
        info_.group = spec.group;
        info_.generation = spec.generation;
        info_.pid = 1;
        becomes(ojs::instance_state::ready);
    }
    ojs::process_info info() const override { return info_; }
    void shut_down(const ojs::shutdown_options& options) override {
        becomes(ojs::instance_state::shutdown_requested, options.reason);
        becomes(ojs::instance_state::complete);
    }
    void force() override { becomes(ojs::instance_state::forced); }
    void poll() override {}
    ojs::result<ojs::shutdown_status> request_status(ojs::time_point) override { return ojs::shutdown_status{}; }

  private:
    void becomes(ojs::instance_state state, std::string message = {}) {
        if (ojs::is_final(info_.state)) return;
        const ojs::instance_state before = info_.state;
        info_.state = state;
        info_.routable = state == ojs::instance_state::ready;
        info_.message = std::move(message);
        changed_(info_, before);
    }

    const internal::instance_callback changed_;
    ojs::process_info info_;
};

// Two groups and their server, without threads: this is also the supervisor, whose time the input moves.
class launcher {
  public:
    explicit launcher(bool has_token) : admin_(options_, life_) {
        options_.admin_address = "127.0.0.1:1";
        options_.admin_token = has_token ? "secret" : "";
        options_.status_page = "<html>";
        ojs::log_options log;
        log.level = ojs::log_level::debug;
        log.hook = [](const ojs::log_record& record) {
            for (const auto format : {ojs::log_format::text, ojs::log_format::logfmt, ojs::log_format::json})
                expect_printable(ojs::format_log_record(record, format), 4000);
        };
        context_->log = internal::logger(log, "launcher");
        context_->life = &life_;
        context_->wake = [] {};
        context_->routing = internal::make_ref<internal::routing_hooks>(nullptr, nullptr, nullptr, context_->log);
        context_->starter = [](const internal::instance_spec& spec,
                               internal::instance_callback changed) -> ojs::result<internal::ref<internal::instance>> {
            return internal::ref<internal::instance>(internal::make_ref<fake_process>(spec, std::move(changed)).get());
        };
        for (const char* name : {"web", "jobs"}) {
            ojs::group_options group;
            group.name = name;
            group.desired = 2;
            group.process.child.command = {"/bin/true"};
            groups_.push_back(internal::make_ref<internal::process_group>(group, context_));
        }
        expect(admin_.prepare(groups_, *context_).has_value(), "the options are valid");
        context_->events->end(now_);  // nothing waits for a change
        run();
    }
    ~launcher() {
        for (const auto& each : groups_) {
            each->stop_starting();
            for (const auto& member : each->members()) member->process->force();
            each->release_exited();
        }
        std::string last_read;  // else the server waits for a client that follows them
        context_->events->collect(0, {}, last_read);
    }

    ojs::http_response answer(const internal::served_request& request) { return admin_.answer(request); }
    void pass(std::chrono::milliseconds time) {
        now_ += time;
        run();
    }
    // All that a request may change.
    std::string state() const {
        std::string out;
        for (const auto& each : groups_) {
            const ojs::group_info info = each->info();
            internal::append(out, {info.replacing ? "replacing " : "", ojs::to_string(info.rollout.phase), " ",
                                   info.generation, " ", info.message, "|"});
            for (const ojs::process_info& process : info.processes)
                internal::append(out, {process.id, " ", ojs::to_string(process.state), "|"});
        }
        return out;
    }

  private:
    void run() {
        for (const auto& each : groups_) {
            for (int i = 0; i < 20 && each->reconcile(now_) <= now_; ++i) continue;
        }
    }

    ojs::launcher_options options_;
    ojs::lifecycle life_;
    internal::ref<internal::launcher_context> context_ = internal::make_ref<internal::launcher_context>();
    internal::process_groups groups_;
    internal::launcher_admin admin_;
    ojs::time_point now_ = ojs::steady_clock::now();
};

// A method, a target and a body, each short for those that there are, or the input's own.
inline internal::served_request read_request(input& in) {
    internal::served_request out;
    static constexpr const char* methods[] = {"POST", "GET", "HEAD", "PUT"};
    static const std::vector<std::string> targets{"ShutdownProcess", "GetProcessStatus", "ShutdownGroup",
                                                  "GetGroupStatus",  "RollingReplace",   "CancelReplace",
                                                  "ListGroups",      "StopProcess"};
    const unsigned how = in.byte();
    const unsigned which = in.byte();
    const std::string line(in.line());
    out.method = methods[how % 4];
    out.target = line;
    if (which < targets.size())
        out.target =
            internal::cat({"/", which == 7 ? ojs::admin_service : ojs::manager_service, "/", targets[which], line});
    if (which == 8) out.target = "/events?" + line;
    out.headers.push_back({"Content-Type", "application/json"});
    if (how & 4U) out.headers.push_back({"Authorization", "Bearer secret"});
    if (how & 8U) out.headers.push_back({"Host", how & 16U ? "evil.example" : "127.0.0.1"});
    if (how & 32U) out.headers.push_back({"Origin", "http://evil.example"});
    if (how & 64U) out.headers.push_back({"Connect-Timeout-Ms", line});
    out.body = in.line();
    return out;
}

template <class Message>
bool is_dry_run(const std::string& body) {
    const auto read = ojs::read_message<Message>(body);
    if constexpr (!std::is_same_v<Message, ojs::rollout_request>)
        expect(!read || (read->grace_period_seconds >= 0 && read->max_shutdown_seconds >= 0),
               "a granted time is not negative", body);
    return read && read->dry_run;
}
// A request that was granted.
inline bool may_change(const std::string& path, const std::string& body) {
    const std::string method = path.substr(path.rfind('/') + 1);
    if (method == "ShutdownGroup") return !is_dry_run<ojs::shutdown_group_request>(body);
    if (method == "ShutdownProcess" || method == "StopProcess") return !is_dry_run<ojs::shutdown_process_request>(body);
    if (method == "RollingReplace") return !is_dry_run<ojs::rollout_request>(body);
    return method == "CancelReplace";
}

inline void check_response(const ojs::http_response& response) {
    const std::string body = response.body;
    for (const ojs::http_header& header : response.headers)
        expect(internal::is_token(header.name) && internal::is_field_value(header.value),
               "a header holds no control character", header.value);
    expect(internal::is_utf8(body), "a response is UTF-8", body);
    const std::string_view type = ojs::find_header(response.headers, "Content-Type");
    picojson::value parsed;
    if (type == "application/json") {
        expect(read_json(body, parsed) && parsed.is<picojson::object>(), "a response is JSON", body);
        expect(response.status == 200 || body.size() <= 500, "an error does not echo the request", body);
    }
    if (type == "application/x-ndjson") {
        expect(body.size() <= 1024 * 1024, "the events are bounded");
        for (std::string_view rest = body; !rest.empty();) {
            const std::string_view line = internal::next_part(rest, "\n");
            expect(read_json(line, parsed) && parsed.is<picojson::object>(), "an event is JSON", std::string(line));
        }
    }
}
}  // namespace admin_detail

// The first byte: whether there is a token. Then requests, each with the seconds that pass after it.
inline void admin(input in) {
    using namespace admin_detail;
    const bool has_token = in.byte() % 2 == 1;
    launcher on(has_token);
    for (int requests = 0; !in.empty() && requests < 8; ++requests) {
        const internal::served_request request = read_request(in);
        if (!internal::is_target(request.target)) continue;  // no server passes that on
        const std::string before = on.state();
        const ojs::http_response response = on.answer(request);
        on.pass(std::chrono::seconds(0));
        check_response(response);
        const bool is_trusted = ojs::find_header(request.headers, "Host") != "evil.example" &&
                                ojs::find_header(request.headers, "Origin").empty();
        const bool has_right = !has_token || !ojs::find_header(request.headers, "Authorization").empty();
        const std::string path = request.target.substr(0, request.target.find('?'));
        const bool is_open = path == "/" || path == "/healthz" || path == "/metrics";
        expect(response.status != 200 || is_open || (is_trusted && has_right),
               "neither web pages nor clients without the token are answered", request.target);
        const bool is_granted = response.status == 200 && request.method == "POST";
        if (!is_granted || !may_change(path, request.body))
            expect(on.state() == before, "only a granted request changes anything", before + "\n" + on.state());
        on.pass(std::chrono::seconds(in.byte()));
    }
}
}  // namespace fuzz

// launcher_admin: what a launcher answers an operator: states, shutdowns, replacements and their progress, metrics. [RFC-041
// "Admin Delegated Shutdown"]
//
// POST /prism.interfaces.ProcessManagerInterface/METHOD is the service of admin.proto; every method answers at once. GET
// /events follows what comes of it, /metrics and /healthz are for machines. Nothing here takes a command line: who may
// administrate a launcher may not make it run programs. New configurations come from launcher_options::reload.
#pragma once

#include "../../core/lifecycle.hpp"
#include "../../net/detail/http_routes.hpp"
#include "../../net/detail/url.hpp"
#include "../../net/http_server.hpp"
#include "../coordinator.ipp"
#include "rolling_replace.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

using process_groups = array<ref<process_group>>;

inline error no_such(const char* what, const std::string& name) {
    return error{errc::rejected, 0, cat({"no such ", what, ": ", printable(name, 60)})};
}

// ---- /metrics ----

inline int count_in_state(const group_info& of, instance_state state) noexcept {
    int out = 0;
    for (const process_info& each : of.processes) out += each.state == state ? 1 : 0;
    return out;
}

// Page and group by group, so that each family stands together.
class launcher_metrics_page {
  public:
    explicit launcher_metrics_page(const process_groups& of) : groups_(of) {
        for (const ref<process_group>& each : of) infos_.push_back(each->info());
    }

    std::string text() {
        show_now();
        show_times();
        show_counts();
        page_.family("ojs_launcher_build_info", "gauge",
                     "Always 1; the label has the version of ojs_shutdown.");
        page_.sample(1, label("version", OJS_SHUTDOWN_VERSION));
        return std::move(page_.text);
    }

  private:
    std::string group_label(std::size_t i) const { return label("group", infos_[i].options.name); }

    template <class Value>
    void gauge(const char* name, const char* help, Value value) {
        page_.family(name, "gauge", help);
        for (std::size_t i = 0; i < infos_.size(); ++i) page_.sample(value(infos_[i]), group_label(i));
    }
    void total(const char* name, const char* help, counter group_metrics::*of) {
        page_.family(name, "counter", help);
        for (std::size_t i = 0; i < groups_.size(); ++i)
            page_.sample(read_counter(groups_[i]->metrics().*of), group_label(i));
    }
    void show_now() {
        page_.family("ojs_launcher_processes", "gauge", "Processes that have not ended, by state.");
        for (std::size_t i = 0; i < infos_.size(); ++i) {
            for (int each = 0; each <= static_cast<int>(instance_state::draining); ++each) {
                const auto state = static_cast<instance_state>(each);
                page_.sample(count_in_state(infos_[i], state),
                             cat({group_label(i), ",", label("state", to_string(state))}));
            }
        }
        gauge("ojs_launcher_desired", "Processes the group shall have.",
              [](const group_info& of) { return of.options.desired; });
        gauge("ojs_launcher_ready", "Processes that take work.",
              [](const group_info& of) { return of.ready; });
        gauge("ojs_launcher_min_healthy", "So many stay ready while the group is replaced.",
              [](const group_info& of) { return of.options.min_healthy; });
        gauge("ojs_launcher_degraded", "1: the group goes on with fewer, because some failed too often.",
              [](const group_info& of) { return of.degraded ? 1 : 0; });
        gauge("ojs_launcher_replacing", "1: a rolling replacement is under way.",
              [](const group_info& of) { return of.replacing ? 1 : 0; });
    }
    void show_times() {
        page_.family("ojs_launcher_startup_seconds", "histogram", "From the start of a process to ready.");
        for (std::size_t i = 0; i < groups_.size(); ++i)
            page_.samples(groups_[i]->metrics().startup, startup_bounds, group_label(i));
        page_.family("ojs_launcher_shutdown_seconds", "histogram",
                     "From the request to end to the end, by how that was.");
        for (std::size_t i = 0; i < groups_.size(); ++i) {
            for (std::size_t way = 0; way < 3; ++way)
                page_.samples(groups_[i]->metrics().shutdown[way], shutdown_bounds,
                              cat({group_label(i), ",", label("outcome", shutdown_outcome_names[way])}));
        }
    }
    void show_counts() {
        page_.family("ojs_launcher_kills_total", "counter",
                     "Processes ended by force, by the signal that did it.");
        for (std::size_t i = 0; i < groups_.size(); ++i) {
            const group_metrics& counted = groups_[i]->metrics();
            const std::string of = group_label(i) + ",";
            page_.sample(read_counter(counted.terminated), of + label("signal", "SIGTERM"));
            page_.sample(read_counter(counted.killed), of + label("signal", "SIGKILL"));
        }
        total("ojs_launcher_crashes_total", "Processes that ended though nobody had asked them to.",
              &group_metrics::crashes);
        total("ojs_launcher_extensions_total", "Shutdowns in which more time was asked for.",
              &group_metrics::extensions);
        total("ojs_launcher_readiness_failures_total", "Processes that did not become ready.",
              &group_metrics::readiness_failures);
        total("ojs_launcher_restarts_total", "Processes started for one that had ended by itself.",
              &group_metrics::restarts);
        page_.family("ojs_launcher_rolling_replaces_total", "counter",
                     "Rolling replacements, by how they ended.");
        for (std::size_t i = 0; i < groups_.size(); ++i) {
            for (std::size_t end = 0; end < 3; ++end)
                page_.sample(read_counter(groups_[i]->metrics().replacements[end]),
                             cat({group_label(i), ",", label("result", replacement_end_names[end])}));
        }
    }

    const process_groups& groups_;
    array<group_info> infos_;
    metrics_page page_;
};

// ---- what is told of a process ----

inline process_status status_of(const process_info& of) {
    process_status out;
    out.process_id = of.id;
    out.group = of.group;
    out.state = of.state;
    out.pid = of.pid;
    out.message = of.message;
    out.readiness = of.readiness;
    out.shutdown = of.shutdown;
    const time_point end = is_over(of.state) ? of.changed : steady_clock::now();
    if (of.started != time_point())
        out.uptime_ms = std::chrono::duration_cast<std::chrono::milliseconds>(end - of.started).count();
    if (is_over(of.state) && of.pid != 0) out.exit = of.exit.describe();
    return out;
}

// Where it stands is what the group acts on; what it says while it stands there is newer in the process itself.
inline process_info newest(const process_group& group, const members& running, const process_info& known) {
    process_info out = known;
    for (const ref<member>& each : running) {
        if (each->id != known.id) continue;
        const ref<instance> asked = group.process_of(*each);
        if (!asked) return out;
        const process_info now = asked->info();
        out.readiness = now.readiness;
        out.shutdown = now.shutdown;
    }
    return out;
}

// ---- the replacements ----

// Each in a thread of its own.
class replacement_threads {
  public:
    ~replacement_threads() { join(); }

    // Returns when it has begun. Errors: as rolling_replacement::begin().
    result<void> start(const ref<process_group>& group, const group_options& wanted,
                       const rolling_options& how) {
        const lock_guard held(mutex_);
        forget_ended();
        const ref<task> added = make_ref<task>(group, wanted, how);
        const result<void> begun = added->work.begin();
        if (!begun) return begun;
        result<thread> started = thread::start([added] { added->run(); }, {0, 0, false, "ojs-rolling"});
        if (!started) {
            added->work.give_up();
            return started.error();
        }
        added->runner = std::move(*started);
        tasks_.push_back(added);
        return {};
    }
    // They end with their groups' stop_starting().
    void join() {
        const lock_guard held(mutex_);
        for (const ref<task>& each : tasks_) each->runner.join();
        tasks_.clear();
    }

  private:
    struct task : ref_counted {
        task(const ref<process_group>& of, const group_options& wanted, const rolling_options& how)
            : group(of), work(*group, wanted, how, {}) {}
        void run() {
            static_cast<void>(work.go_on());
            ended.store(true, std::memory_order_release);
        }

        const ref<process_group> group;
        rolling_replacement work;
        std::atomic<bool> ended{false};
        thread runner;
    };

    void forget_ended() {
        for (std::size_t i = 0; i < tasks_.size();) {
            if (tasks_[i]->ended.load(std::memory_order_acquire)) {
                tasks_[i]->runner.join();
                tasks_.remove(i);
            } else {
                ++i;
            }
        }
    }

    mutex mutex_;
    array<ref<task>> tasks_;
};

// ---- the answers ----

// From several threads at once. Everything it touches outlives the server: groups by references, the lifecycle because the
// launcher stops the server first.
class admin_answers : public ref_counted {
  public:
    admin_answers(const process_groups& groups, const launcher_options& options, const lifecycle& life,
                  ref<launcher_events> events, const http_guard& guard)
        : groups_(groups),
          reload_(options.reload),
          life_(life),
          events_(std::move(events)),
          guard_(guard),
          service_(manager_service, guard) {
        add_methods();
    }

    http_response answer(const http_request& request) {
        if (service_.is_for(request.target)) return service_.answer(request);
        static constexpr http_route routes[] = {{"/healthz", {"GET", "HEAD"}, false},
                                                {"/metrics", {"GET", "HEAD"}, false},
                                                {"/events", {"GET", nullptr}, true}};
        static constexpr http_response (admin_answers::*answers[])(const http_request&) = {
            &admin_answers::health, &admin_answers::metrics, &admin_answers::follow};
        http_response refused;
        const int chosen = choose_route(routes, 3, guard_, request, refused);
        return chosen < 0 ? refused : (this->*answers[chosen])(request);
    }
    // After the groups' stop_starting().
    void end() {
        events_->end(deadline_after(last_words));
        replacements_.join();
    }

  private:
    static constexpr std::chrono::milliseconds longest_wait{30000};
    static constexpr std::chrono::milliseconds last_words{500};  // for followers, when the launcher has ended
    static constexpr std::chrono::milliseconds peer_look{1000};
    static constexpr std::chrono::milliseconds preview_time{2000};
    // At a time: well below the connections, so that others always get one.
    static constexpr int most_waits = 8;

    template <class Request, class Answer>
    void add(const char* method, result<Answer> (admin_answers::*handler)(const Request&)) {
        service_.add<Request, Answer>(
            method, [this, handler](const Request& request) { return (this->*handler)(request); });
    }
    void add_methods() {
        add("ShutdownProcess", &admin_answers::shut_down_process);
        add("GetProcessStatus", &admin_answers::get_process);
        add("ShutdownGroup", &admin_answers::shut_down_group);
        add("GetGroupStatus", &admin_answers::get_group);
        add("RollingReplace", &admin_answers::replace);
        add("ListGroups", &admin_answers::list);
    }

    // ---- finding ----

    ref<process_group> find_group(const std::string& name) const {
        for (const ref<process_group>& each : groups_) {
            if (each->options().name == name) return each;
        }
        return {};
    }
    ref<process_group> find_process(const std::string& id, process_info& out) const {
        for (const ref<process_group>& each : groups_) {
            if (!each->find(id, out)) continue;
            out = newest(*each, each->running(), out);
            return each;
        }
        return {};
    }
    static ref<member> running_member(const process_group& of, const std::string& id) {
        for (const ref<member>& each : of.running()) {
            if (each->id == id) return each;
        }
        return {};
    }
    bool is_stopping() const noexcept { return life_.state().phase >= phase::draining; }

    // ---- the methods ----

    result<list_groups_response> list(const list_groups_request&) {
        list_groups_response out;
        for (const ref<process_group>& each : groups_) out.groups.push_back(each->options().name);
        return out;
    }
    result<process_status> get_process(const process_status_request& asked) {
        process_info found;
        if (!find_process(asked.process_id, found)) return no_such("process", asked.process_id);
        return status_of(found);
    }
    result<group_status> get_group(const group_status_request& asked) {
        const ref<process_group> found = find_group(asked.group);
        if (!found) return no_such("group", asked.group);
        const group_info info = found->info();
        group_status out;
        out.group = info.options.name;
        out.desired = info.options.desired;
        out.min_healthy = info.options.min_healthy;
        out.ready = info.ready;
        out.replacing = info.replacing;
        out.degraded = info.degraded;
        out.message = info.message;
        const members running = found->running();
        for (const process_info& each : info.processes)
            out.processes.push_back(status_of(newest(*found, running, each)));
        return out;
    }

    result<shutdown_process_response> shut_down_process(const shutdown_process_request& asked) {
        if (asked.grace_period_seconds < 0 || asked.max_shutdown_seconds < 0)
            return error{errc::invalid_argument, 0, "a time is negative"};
        process_info now;
        const ref<process_group> group = find_process(asked.process_id, now);
        if (!group) return no_such("process", asked.process_id);
        shutdown_process_response out;
        const ref<member> target = running_member(*group, asked.process_id);
        out.status = now.shutdown;
        if (!target) {
            out.message = cat({"has ended already: ", to_string(now.state)});
            return out;
        }
        if (asked.dry_run) return preview_of(*group, *target);
        group->drain({target}, {asked.reason.empty() ? "operator" : asked.reason,
                                std::chrono::seconds(asked.grace_period_seconds),
                                std::chrono::seconds(asked.max_shutdown_seconds)});
        out.acknowledged = true;
        out.message = "is asked to shut down";
        return out;
    }
    static result<shutdown_process_response> preview_of(const process_group& group, const member& target) {
        const ref<instance> asked = group.process_of(target);
        if (!asked) return error{errc::unavailable, 0, "is being started"};
        const result<shutdown_status> status = asked->ask_status(deadline_after(preview_time));
        if (!status) return status.error();
        shutdown_process_response out;
        out.message = "would be asked to shut down";
        out.status = *status;
        return out;
    }

    result<shutdown_group_response> shut_down_group(const shutdown_group_request& asked) {
        const ref<process_group> group = find_group(asked.group);
        if (!group) return no_such("group", asked.group);
        shutdown_group_response out;
        if (asked.dry_run) {
            const result<void> seen = preview(*group, group->options(), out.processes);
            if (!seen) return seen.error();
            out.message = cat({"would shut down ", out.processes.size(), " of group ", asked.group});
            return out;
        }
        const result<void> begun =
            group->shut_down({asked.reason.empty() ? "operator" : asked.reason, {}, {}});
        if (!begun) return begun.error();
        out.acknowledged = true;
        out.message = "is asked to shut down, and stays empty until it is replaced";
        return out;
    }

    result<rolling_replace_response> replace(const rolling_replace_request& asked) {
        const ref<process_group> group = find_group(asked.group);
        if (!group) return no_such("group", asked.group);
        if (asked.canary < 0 || asked.canary_seconds < 0)
            return error{errc::invalid_argument, 0, "canary or canary_seconds is negative"};
        const result<group_options> wanted = wanted_for(*group);
        if (!wanted) return wanted.error();
        rolling_replace_response out;
        if (asked.dry_run) {
            const result<void> seen = preview(*group, *wanted, out.processes);
            if (!seen) return seen.error();
            out.message = cat({"would replace ", out.processes.size(), " by ", wanted->desired});
            return out;
        }
        const result<void> begun = begin(group, *wanted, asked);
        if (!begun) return begun.error();
        out.acknowledged = true;
        out.message = "has begun";
        return out;
    }
    result<void> begin(const ref<process_group>& group, const group_options& wanted,
                       const rolling_replace_request& asked) {
        if (is_stopping()) return error{errc::busy, 0, "the launcher is stopping"};
        rolling_options how;
        how.reason = asked.reason;
        how.canary = asked.canary;
        how.canary_wait = std::chrono::seconds(asked.canary_seconds);
        return replacements_.start(group, wanted, how);
    }
    // The configuration it is to have: the one it has, where nobody gives another.
    result<group_options> wanted_for(const process_group& group) const {
        const group_options now = group.options();
        if (!reload_) return now;
        result<group_options> read = reload_(now.name);
        if (!read) return error{errc::invalid_argument, 0, cat({"reload: ", read.error().text})};
        if (read->name != now.name) return error{errc::invalid_argument, 0, "reload: a group keeps its name"};
        const result<void> sound = check_group(*read);
        if (!sound) return error{errc::invalid_argument, 0, cat({"reload: ", sound.error().text})};
        return read;
    }
    static result<void> preview(process_group& group, const group_options& wanted,
                                std::vector<process_status>& out) {
        rolling_options how;
        how.dry_run = true;
        const result<rolling_report> seen = rolling_replacement(group, wanted, how, {}).run();
        if (!seen) return seen.error();
        for (const drain_preview& each : seen->would_drain) {
            process_info known;
            static_cast<void>(group.find(each.id, known));
            out.push_back(status_of(known));
            out.back().shutdown.metrics = each.in_flight;
            if (!each.error.empty()) out.back().message = each.error;
        }
        return {};
    }

    // ---- the pages ----

    http_response health(const http_request&) {
        const phase now = life_.state().phase;
        std::string body = cat({"{\"phase\":\"", to_string(now), "\",\"groups\":["});
        for (std::size_t i = 0; i < groups_.size(); ++i) {
            const group_info info = groups_[i]->info();
            append(body, {i == 0 ? "" : ",", "{\"group\":", json_quote(info.options.name),
                          ",\"desired\":", info.options.desired, ",\"ready\":", info.ready,
                          ",\"degraded\":", info.degraded ? "true" : "false",
                          ",\"replacing\":", info.replacing ? "true}" : "false}"});
        }
        return json_answer(now == phase::running ? 200 : 503, body + "]}");
    }
    http_response metrics(const http_request&) {
        http_response out;
        out.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}};
        out.body = launcher_metrics_page(groups_).text();
        return out;
    }

    // Lines of JSON, each a change, after the number `after`; without any, once `wait` is over. The last line has the number
    // to go on with. Without `after`: only that line.
    http_response follow(const http_request& request) {
        event_filter wanted;
        std::uint64_t after = events_->last();
        std::chrono::milliseconds wait{0};
        const std::string fault = read_question(request.target, wanted, after, wait);
        if (!fault.empty()) return json_problem(400, fault);
        if (!wanted.group.empty() && !find_group(std::string(wanted.group)))
            return json_problem(404, no_such("group", std::string(wanted.group)).text);
        http_response out;
        out.headers = {{"Content-Type", "application/x-ndjson"}, {"Cache-Control", "no-store"}};
        const bool may_wait = waits_.fetch_add(1) < most_waits;
        out.body = lines_after(request, wanted, after,
                               deadline_after(may_wait ? wait : std::chrono::milliseconds(0)));
        waits_.fetch_sub(1);
        return out;
    }
    // Who has gone does not keep a place from others for long.
    std::string lines_after(const http_request& request, const event_filter& wanted, std::uint64_t after,
                            time_point deadline) {
        for (;;) {
            const std::uint64_t known = events_->last();
            std::string out;
            if (events_->collect(after, wanted, out) || steady_clock::now() >= deadline) return out;
            const time_point look = deadline_after(peer_look);
            const bool more = events_->await_more(known, look < deadline ? look : deadline);
            if (!more && (events_->ended() || is_abandoned(request))) return out;
        }
    }
    static std::string read_question(std::string_view target, event_filter& wanted, std::uint64_t& after,
                                     std::chrono::milliseconds& wait) {
        std::string_view text;
        static_cast<void>(find_parameter(target, "group", wanted.group));
        static_cast<void>(find_parameter(target, "process", wanted.process_id));
        if (find_parameter(target, "after", text) && !parse_number(text, ~std::uint64_t{0} - 1, after))
            return "after is not the number of an event";
        if (!find_parameter(target, "wait", text)) return "";
        const result<std::chrono::milliseconds> read = parse_duration(text);
        if (!read) return "wait is not a duration (write 500ms, 10s, or whole seconds)";
        wait = *read < longest_wait ? *read : longest_wait;
        return "";
    }

    const process_groups groups_;
    const function<result<group_options>(const std::string&)> reload_;
    const lifecycle& life_;
    const ref<launcher_events> events_;
    const http_guard guard_;
    rpc_service service_;
    replacement_threads replacements_;
    std::atomic<int> waits_{0};
};

// ---- the server ----

// Who may ask: whoever may open the socket, who is on this machine, or who has the token.
inline result<http_guard> admin_guard(const launcher_options& options) {
    const auto fault = [&](std::string_view why) {
        return error{errc::invalid_argument, 0,
                     cat({"admin_address '", printable(options.admin_address, 120), "': ", why})};
    };
    for (const char c : options.admin_token) {
        if (c <= ' ' || c > '~')
            return error{errc::invalid_argument, 0, "admin_token may hold visible ASCII characters only"};
    }
    const result<endpoint> where = parse_listen_address(options.admin_address);
    if (!where) return fault(where.error().text);
    if (options.admin_token.empty() && !is_local(*where))
        return fault("is open to other machines, so set admin_token, or give unix:/PATH or 127.0.0.1:PORT");
    if (!where->unix_path.empty()) {
        const result<void> safe = check_folder(where->unix_path);
        if (!safe) return fault(safe.error().text);
    }
    http_guard out;
    out.on_loopback = where->unix_path.empty() && is_local(*where);
    out.token = options.admin_token;
    return out;
}

class launcher_admin {
  public:
    ~launcher_admin() { stop(); }

    // Does nothing without an address.
    result<void> start(const process_groups& groups, const launcher_options& options, const lifecycle& life,
                       const group_surroundings& around) {
        if (options.admin_address.empty()) return {};
        const result<http_guard> guard = admin_guard(options);
        if (!guard) return guard.error();
        answers_ = make_ref<admin_answers>(groups, options, life, around.events, *guard);
        http_server_options limits;
        limits.limits.head = 8 * 1024;
        limits.limits.body = rpc_body_limit + 1;  // the service refuses what is larger
        limits.max_connections = 16;
        limits.idle_timeout = std::chrono::seconds(10);
        limits.request_timeout = std::chrono::seconds(5);
        result<http_server> server = http_server::start(
            options.admin_address,
            [answers = answers_](const http_request& request) { return answers->answer(request); }, limits);
        if (!server) {
            return error{
                server.error().code, server.error().sys_errno,
                cat({"admin_address '", printable(options.admin_address, 120), "': ", server.error().text})};
        }
        server_ = make_ref<present<http_server>>(std::move(*server));
        around.log.write(log_level::info, "launcher admin listening",
                         {field("address", server_->value.address())});
        return {};
    }
    // Empty: it does not serve, or does so no more.
    std::string address() const { return server_ ? server_->value.address() : std::string(); }
    // After the groups' stop_starting().
    void stop() {
        if (answers_) answers_->end();
        if (server_) server_->value.stop(deadline_after(std::chrono::seconds(1)));
    }

  private:
    ref<admin_answers> answers_;
    ref<present<http_server>> server_;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs

// admin_answers: what a launcher answers an operator: states, shutdowns, replacements and their progress, metrics. [RFC-041
// "Admin Delegated Shutdown"]
//
// POST /prism.interfaces.ProcessManagerInterface/METHOD is the service of admin.proto; every method answers at once. GET
// /events follows what comes of it, /metrics and /healthz are for machines. Nothing here takes a command line: who may
// administrate a launcher may not make it run programs. New configurations come from launcher_options::reload.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../coordinator/coordinator.ipp"
#include "../../coordinator/detail/rpc.ipp"
#include "../../core/lifecycle.hpp"
#include "../../server/detail/http_routes.ipp"
#include "../../server/detail/listener.ipp"
#include "../../server/http_server.hpp"
#include "capacity.ipp"
#include "launcher_metrics_page.ipp"
#include "rolling_replace.ipp"

namespace ojs::detail {

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

// ---- the answers ----

// From several threads at once. Everything it touches outlives the server: groups by references, the lifecycle because the
// launcher stops the server first.
class admin_answers : public ref_counted {
  public:
    admin_answers(const process_groups& groups, const launcher_options& options, const lifecycle& life,
                  ref<launcher_events> events, const http_guard& guard)
        : groups_(groups),
          page_(options.status_page),
          reload_(options.reload),
          life_(life),
          events_(std::move(events)),
          guard_(guard),
          service_(manager_service, guard) {
        service_.add("ShutdownProcess", *this, &admin_answers::shut_down_process);
        service_.add("GetProcessStatus", *this, &admin_answers::get_process);
        service_.add("ShutdownGroup", *this, &admin_answers::shut_down_group);
        service_.add("GetGroupStatus", *this, &admin_answers::get_group);
        service_.add("RollingReplace", *this, &admin_answers::replace);
        service_.add("CancelReplace", *this, &admin_answers::cancel);
        service_.add("ListGroups", *this, &admin_answers::list);
    }

    http_response answer(const http_request& request) {
        if (service_.is_for(request.target)) return service_.answer(request);
        static constexpr http_route routes[] = {{"/healthz", {"GET", "HEAD"}, false},
                                                {"/metrics", {"GET", "HEAD"}, false},
                                                {"/events", {"GET", nullptr}, true},
                                                {"/", {"GET", "HEAD"}, false}};
        static constexpr http_response (admin_answers::*answers[])(const http_request&) = {
            &admin_answers::health, &admin_answers::metrics, &admin_answers::follow, &admin_answers::page};
        http_response refused;
        const int chosen = choose_route(routes, page_.empty() ? 3 : 4, guard_, request, refused);
        return chosen < 0 ? refused : (this->*answers[chosen])(request);
    }
    // After the groups' stop_starting().
    void end() { events_->end(deadline_after(last_words)); }

  private:
    static constexpr std::chrono::milliseconds longest_wait{30000};
    static constexpr std::chrono::milliseconds last_words{500};  // for followers, when the launcher has ended
    static constexpr std::chrono::milliseconds peer_look{1000};
    static constexpr std::chrono::milliseconds preview_time{2000};
    // At a time: well below the connections, so that others always get one.
    static constexpr int most_waits = 8;

    bool is_stopping() const noexcept { return life_.state().phase >= phase::draining; }

    // ---- the methods ----

    result<list_groups_response> list(const list_groups_request&) {
        list_groups_response out;
        for (const ref<process_group>& each : groups_) out.groups.push_back(each->options().name);
        return out;
    }
    result<process_status> get_process(const process_status_request& asked) {
        const found_process found = find_process(groups_, asked.process_id);
        if (!found.group) return no_such("process", asked.process_id);
        return status_of(found.info);
    }
    result<group_status> get_group(const group_status_request& asked) {
        const ref<process_group> found = find_group(groups_, asked.group);
        if (!found) return no_such("group", asked.group);
        const group_info info = newest_info(*found);
        group_status out;
        out.group = info.options.name;
        out.desired = info.options.desired;
        out.min_healthy = info.options.min_healthy;
        out.ready = info.ready;
        out.replacing = info.replacing;
        out.degraded = info.degraded;
        out.quiet = info.quiet;
        out.message = info.message;
        out.replacement = info.replacement;
        for (const process_info& each : info.processes) out.processes.push_back(status_of(each));
        return out;
    }

    result<shutdown_process_response> shut_down_process(const shutdown_process_request& asked) {
        if (asked.grace_period_seconds < 0 || asked.max_shutdown_seconds < 0)
            return error{errc::invalid_argument, 0, "a time is negative"};
        if (asked.force && (asked.grace_period_seconds > 0 || asked.max_shutdown_seconds > 0))
            return error{errc::invalid_argument, 0, "force waits for nothing, so a time has no meaning"};
        const found_process found = find_process(groups_, asked.process_id);
        if (!found.group) return no_such("process", asked.process_id);
        const process_info& now = found.info;
        shutdown_process_response out;
        out.status = now.shutdown;
        if (!found.running) {
            out.message = cat({"has ended already: ", to_string(now.state)});
            return out;
        }
        if (asked.dry_run) return preview_of(*found.group, *found.running, asked.force);
        if (asked.force) {
            found.group->leave({found.running}, {reason_of(asked.reason), {}, {}});
            found.group->force({found.running});
            out.acknowledged = true;
            out.message = "is sent SIGTERM, and SIGKILL if that does not end it";
            return out;
        }
        found.group->drain({found.running},
                           {reason_of(asked.reason), std::chrono::seconds(asked.grace_period_seconds),
                            std::chrono::seconds(asked.max_shutdown_seconds)});
        out.acknowledged = true;
        out.message = "is asked to shut down";
        return out;
    }
    static std::string reason_of(const std::string& asked) { return asked.empty() ? "operator" : asked; }
    static result<shutdown_process_response> preview_of(const process_group& group, const member& target,
                                                        bool force) {
        const ref<instance> asked = group.process_of(target);
        if (!asked) return error{errc::unavailable, 0, "is being started"};
        const result<shutdown_status> status = asked->ask_status(deadline_after(preview_time));
        if (!status) return status.error();
        shutdown_process_response out;
        out.message =
            force ? "would be sent SIGTERM, and lose what it has in hand" : "would be asked to shut down";
        out.status = *status;
        return out;
    }

    result<shutdown_group_response> shut_down_group(const shutdown_group_request& asked) {
        const ref<process_group> group = find_group(groups_, asked.group);
        if (!group) return no_such("group", asked.group);
        shutdown_group_response out;
        if (asked.dry_run) {
            const result<void> seen = preview(*group, group->options(), out.processes);
            if (!seen) return seen.error();
            out.message = cat({"would shut down ", out.processes.size(), " of group ", asked.group});
            return out;
        }
        const result<void> begun = group->shut_down({reason_of(asked.reason), {}, {}});
        if (!begun) return begun.error();
        out.acknowledged = true;
        if (asked.force) {
            group->force(group->running());
            out.message = "is sent SIGTERM, and stays empty until it is replaced";
            return out;
        }
        out.message = "is asked to shut down, and stays empty until it is replaced";
        return out;
    }

    result<rolling_replace_response> replace(const rolling_replace_request& asked) {
        const ref<process_group> group = find_group(groups_, asked.group);
        if (!group) return no_such("group", asked.group);
        const result<group_options> wanted = wanted_for(*group);
        if (!wanted) return wanted.error();
        const result<rolling_options> how = how_of(asked, wanted->retry);
        if (!how) return how.error();
        rolling_replace_response out;
        if (asked.dry_run) {
            const result<void> seen = preview(*group, *wanted, out.processes);
            if (!seen) return seen.error();
            out.message = cat({"would replace ", out.processes.size(), " by ", wanted->desired});
            return out;
        }
        if (is_stopping()) return error{errc::busy, 0, "the launcher is stopping"};
        const result<void> sound = check_rollout(*group, *wanted, *how);
        if (!sound) return sound.error();
        const result<ref<rollout>> begun = group->begin_rollout(*wanted, *how);
        if (!begun) return begun.error();
        out.acknowledged = true;
        out.message = "has begun";
        return out;
    }
    static result<rolling_options> how_of(const rolling_replace_request& asked,
                                          const retry_options& configured) {
        const auto fault = [](const char* text) { return error{errc::invalid_argument, 0, text}; };
        if (asked.canary < 0 || asked.canary_seconds < 0)
            return fault("canary or canary_seconds is negative");
        if (asked.retries < 0) return fault("retries is negative");
        const retry_policy policy =
            asked.retry == retry_policy::as_configured ? policy_of(configured) : asked.retry;
        if (policy == retry_policy::manual && asked.retries > 0)
            return fault("retries: retry is MANUAL, here or in the configuration, so there are none");
        rolling_options out;
        out.reason = asked.reason;
        out.canary = asked.canary;
        out.canary_wait = std::chrono::seconds(asked.canary_seconds);
        const retry_options found = retry_of(policy, configured);
        out.retries = asked.retries > 0 ? asked.retries : found.limit;
        out.retry_first = found.first;
        out.retry_last = found.last;
        return out;
    }
    result<cancel_replace_response> cancel(const cancel_replace_request& asked) {
        const ref<process_group> group = find_group(groups_, asked.group);
        if (!group) return no_such("group", asked.group);
        const result<void> cancelled = group->cancel_rollout();
        if (!cancelled) return cancelled.error();
        const std::string reason = reason_of(asked.reason);
        group->log().write(log_level::warn, "rolling replace is cancelled",
                           {field("group", asked.group), field("reason", reason)});
        group->events().tell(asked.group, "rolling replace is cancelled",
                             cat({",\"reason\":", json_quote(reason)}));
        cancel_replace_response out;
        out.acknowledged = true;
        out.message = "goes no further; what was replaced stays";
        out.replacement = group->info().replacement;
        return out;
    }
    // The configuration it is to have: the one it has, where nobody gives another.
    result<group_options> wanted_for(const process_group& group) const {
        const group_options now = group.options();
        if (!reload_) return now;
        result<group_options> read = reload_(now.name);
        if (!read) return error{errc::invalid_argument, 0, cat({"reload: ", read.error().text})};
        if (read->name != now.name) return error{errc::invalid_argument, 0, "reload: a group keeps its name"};
        result<void> sound = check_group(*read);
        if (sound) sound = check_capacity(groups_, *read);
        if (!sound) return error{errc::invalid_argument, 0, cat({"reload: ", sound.error().text})};
        return read;
    }
    static result<void> preview(const process_group& group, const group_options& wanted,
                                std::vector<process_status>& out) {
        const result<void> sound = check_rollout(group, wanted, {});
        if (!sound) return sound;
        const rolling_report seen = preview_rollout(group);
        for (const drain_preview& each : seen.would_drain) {
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

    // Nothing from elsewhere, no frame around it, and no text that becomes markup.
    http_response page(const http_request&) {
        http_response out;
        out.headers = {{"Content-Type", "text/html; charset=utf-8"},
                       {"Content-Security-Policy",
                        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                        "frame-ancestors 'none'; "
                        "require-trusted-types-for 'script'"},
                       {"Cache-Control", "no-store"},
                       {"Referrer-Policy", "no-referrer"},
                       {"X-Content-Type-Options", "nosniff"}};
        out.body = page_;
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
        if (!wanted.group.empty() && !find_group(groups_, std::string(wanted.group)))
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
    // A name that is mistyped would pick everything.
    static std::string odd_parameter(std::string_view target) {
        static constexpr const char* names[] = {"after", "wait", "group", "process"};
        bool seen[4] = {};
        for (std::size_t at = target.find('?'); at != std::string_view::npos; at = target.find('&', at + 1)) {
            const std::string_view rest = target.substr(at + 1);
            const std::string_view name = rest.substr(0, rest.find_first_of("=&"));
            std::size_t which = 0;
            while (which < 4 && name != names[which]) ++which;
            if (which == 4) return cat({"no such parameter: ", printable(name, 40)});
            if (seen[which]) return cat({names[which], " is there twice"});
            seen[which] = true;
        }
        return "";
    }
    static std::string read_question(std::string_view target, event_filter& wanted, std::uint64_t& after,
                                     std::chrono::milliseconds& wait) {
        std::string_view text;
        const std::string odd = odd_parameter(target);
        if (!odd.empty()) return odd;
        static_cast<void>(find_parameter(target, "group", wanted.group));
        static_cast<void>(find_parameter(target, "process", wanted.process_id));
        if (find_parameter(target, "after", text) && !parse_number(text, ~std::uint64_t{0} - 1, after))
            return "after is not the number of an event";
        if (!find_parameter(target, "wait", text)) return "";
        const result<std::chrono::milliseconds> read = parse_duration(text);
        if (!read) return cat({"wait: ", read.error().text});
        wait = *read < longest_wait ? *read : longest_wait;
        return "";
    }

    const process_groups groups_;
    const std::string page_;  // empty: none
    const function<result<group_options>(const std::string&)> reload_;
    const lifecycle& life_;
    const ref<launcher_events> events_;
    const http_guard guard_;
    rpc_service service_;
    atomic<int> waits_{0};
};

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
        const result<void> safe = check_folder_of(where->unix_path);
        if (!safe) return fault(safe.error().text);
    }
    http_guard out;
    out.on_loopback = where->unix_path.empty() && is_local(*where);
    out.token = options.admin_token;
    out.own_page = !options.status_page.empty();
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
        limits.max_connections = 32;
        limits.crowded_timeout =
            std::chrono::milliseconds(100);  // so that an operator is answered beside slow clients
        limits.idle_timeout = std::chrono::seconds(10);
        limits.request_timeout = std::chrono::seconds(5);
        server_ = http_server::start(
            options.admin_address,
            [answers = answers_](const http_request& request) { return answers->answer(request); }, limits);
        if (!server_) {
            return error{
                server_.error().code, server_.error().sys_errno,
                cat({"admin_address '", printable(options.admin_address, 120), "': ", server_.error().text})};
        }
        around.log.write(log_level::info, "launcher admin listening", {field("address", server_->address())});
        return {};
    }
    // Empty: it does not serve, or does so no more.
    std::string address() const { return server_ ? server_->address() : std::string(); }
    // After the groups' stop_starting().
    void stop() {
        if (answers_) answers_->end();
        if (server_) server_->stop(deadline_after(std::chrono::seconds(1)));
    }

  private:
    ref<admin_answers> answers_;
    result<http_server> server_ = error{};  // none: it does not serve
};

}  // namespace ojs::detail

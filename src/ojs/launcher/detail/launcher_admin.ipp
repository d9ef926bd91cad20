// launcher_admin: the admin server of a launcher. [RFC-041 "Admin Delegated Shutdown"]
// POST /prism.interfaces.ProcessManagerInterface/METHOD and AdminService/METHOD are the services of admin.proto; every
// method returns at once. GET /events reports the progress. No request takes a command line, so that operators cannot make a
// launcher run other programs: new configurations come from launcher_options::reload.
#pragma once

#include "../../coordinator/coordinator.ipp"
#include "process_group.ipp"

namespace ojs::detail {
using process_groups = array<ref<process_group>>;

inline error no_such(const char* what, const std::string& name) {
    return error{errc::rejected, 0, cat({"no such ", what, ": ", printable(name, 60)})};
}

inline result<ref<process_group>> find_group(const process_groups& groups, const std::string& name) {
    for (const ref<process_group>& group : groups) {
        if (group->options().name == name) return group;
    }
    return no_such("group", name);
}

struct found_process {
    ref<process_group> group;
    ref<group_member> member;  // null: it has exited
    process_info info;
};
inline result<found_process> find_process(const process_groups& groups, const std::string& id) {
    for (const ref<process_group>& group : groups) {
        found_process out{group, {}, {}};
        if (group->find(id, out.info, &out.member)) return out;
    }
    return no_such("process", id);
}

// Checks all groups, one of them with its new configuration.
inline result<void> check_capacity(const process_groups& groups, const group_options& changed) {
    std::vector<group_options> all;
    for (const ref<process_group>& group : groups) {
        all.push_back(group->options());
        if (all.back().name == changed.name) all.back() = changed;
    }
    const std::string fault = fault_in_capacity(all, read_machine_limits());
    return fault.empty() ? result<void>() : error{errc::invalid_argument, 0, fault};
}

inline process_status status_of(const process_info& info) {
    process_status out{info.id, info.group, info.state, info.pid, info.message, info.readiness, info.shutdown, 0, {}};
    const time_point end = is_final(info.state) ? info.changed_at : steady_clock::now();
    if (info.started_at != time_point())
        out.uptime_ms = std::chrono::duration_cast<std::chrono::milliseconds>(end - info.started_at).count();
    if (is_final(info.state) && info.pid != 0) out.exit = info.exit.describe();
    return out;
}

// Access is limited by the socket's permissions, by a loopback address, or by the token.
inline result<http_guard> admin_guard(const launcher_options& options) {
    const auto fault = [&](std::string_view why) {
        return error{errc::invalid_argument, 0,
                     cat({"admin_address '", printable(options.admin_address, 120), "': ", why})};
    };
    for (const char c : options.admin_token) {
        if (c <= ' ' || c > '~')
            return error{errc::invalid_argument, 0, "admin_token: must consist of visible ASCII characters"};
    }
    const result<endpoint> where = parse_listen_address(options.admin_address);
    if (!where) return fault(where.error().text);
    if (options.admin_token.empty() && !is_local(*where))
        return fault("is open to other machines, so set admin_token, or give unix:/PATH or 127.0.0.1:PORT");
    const result<void> safe = check_folder_of(where->unix_path);
    if (!safe) return fault(safe.error().text);
    http_guard out;
    out.on_loopback = where->unix_path.empty() && is_local(*where);
    out.token = options.admin_token;
    out.has_web_page = !options.status_page.empty();
    return out;
}

// The result of launcher_options::reload, which may come too late.
struct reload_call : ref_counted {
    result<group_options> read = error{errc::system, 0, "not called"};
    atomic<bool> returned{false};
};

// Several server threads call its handlers. Must not outlive the objects it refers to.
class launcher_admin {
  public:
    launcher_admin(const launcher_options& options, const lifecycle& life) : options_(options), life_(life) {}
    ~launcher_admin() { stop(); }

    // Does nothing without an address.
    result<void> start(const process_groups& groups, const launcher_context& context) {
        if (options_.admin_address.empty()) return {};
        if (result<void> prepared = prepare(groups, context); !prepared) return prepared;
        http_server_options limits;
        limits.limits.head = 8 * 1024;
        limits.limits.body = rpc_body_limit + 1;  // the service rejects larger ones
        limits.max_connections = 32;
        limits.overload_timeout = std::chrono::milliseconds(100);  // slow clients must not block operators
        limits.idle_timeout = std::chrono::seconds(10);
        limits.request_timeout = std::chrono::seconds(5);
        server_ = http_server::start(
            options_.admin_address, [this](const http_request& request) { return answer(request); }, limits);
        if (!server_) {
            return error{server_.error().code, server_.error().sys_errno,
                         cat({"admin_address '", printable(options_.admin_address, 120), "': ", server_.error().text})};
        }
        context.log.write(log_level::info, "launcher admin listening", {field("address", server_->address())});
        return {};
    }
    // start() without its server, for tests of answer().
    result<void> prepare(const process_groups& groups, const launcher_context& context) {
        const result<http_guard> guard = admin_guard(options_);
        if (!guard) return guard.error();
        groups_ = groups;
        events_ = context.events;
        guard_ = *guard;
        service_ = rpc_service(manager_service, guard_);
        service_.add("ShutdownProcess", *this, &launcher_admin::shut_down_process);
        service_.add("GetProcessStatus", *this, &launcher_admin::get_process);
        service_.add("ShutdownGroup", *this, &launcher_admin::shut_down_group);
        service_.add("GetGroupStatus", *this, &launcher_admin::get_group);
        service_.add("RollingReplace", *this, &launcher_admin::replace);
        service_.add("CancelReplace", *this, &launcher_admin::cancel);
        service_.add("ListGroups", *this, &launcher_admin::list);
        rfc_service_ = rpc_service(admin_service, guard_);
        rfc_service_.add("StopProcess", *this, &launcher_admin::shut_down_process);
        rfc_service_.add("GetProcessStatus", *this, &launcher_admin::get_process);
        return {};
    }
    http_response answer(const http_request& request) {
        for (const rpc_service* each : {&service_, &rfc_service_})
            if (each->is_for(request.target)) return each->answer(request);
        static constexpr http_route routes[] = {{"/healthz", {"GET", "HEAD"}, false},
                                                {"/metrics", {"GET", "HEAD"}, false},
                                                {"/events", {"GET", nullptr}, true},
                                                {"/", {"GET", "HEAD"}, false}};
        static constexpr http_response (launcher_admin::*answers[])(const http_request&) = {
            &launcher_admin::health, &launcher_admin::metrics, &launcher_admin::follow, &launcher_admin::page};
        http_response refused;
        const int chosen = choose_route(routes, guard_.has_web_page ? 4 : 3, guard_, request, refused);
        return chosen < 0 ? refused : (this->*answers[chosen])(request);
    }
    // Empty: it does not serve.
    std::string address() const { return server_ ? server_->address() : std::string(); }
    // Call after stop_starting() of all groups.
    void stop() {
        if (events_) events_->end(deadline_after(final_events_timeout));
        if (server_) server_->stop(deadline_after(std::chrono::milliseconds(400)));
    }

  private:
    static constexpr std::chrono::milliseconds reload_timeout{2000};
    static constexpr std::chrono::milliseconds max_wait{30000};
    static constexpr std::chrono::milliseconds final_events_timeout{500};  // followers get the last changes
    static constexpr std::chrono::milliseconds peer_interval{1000};
    static constexpr std::chrono::milliseconds preview_timeout{2000};
    // Well below max_connections, so that other requests always get one.
    static constexpr int max_waiting = 8;

    result<list_groups_response> list(const list_groups_request&) {
        list_groups_response out;
        for (const ref<process_group>& group : groups_) out.groups.push_back(group->options().name);
        return out;
    }
    result<process_status> get_process(const process_status_request& request) {
        const result<found_process> found = find_process(groups_, request.process_id);
        if (!found) return found.error();
        return status_of(found->info);
    }
    result<group_status> get_group(const group_status_request& request) {
        const result<ref<process_group>> found = find_group(groups_, request.group);
        if (!found) return found.error();
        const group_info info = (*found)->info();
        const group_options& options = info.options;
        group_status out{options.name,   options.desired, options.min_healthy, info.ready,
                         info.replacing, info.degraded,   info.message,        {},
                         info.rollout,   info.quiet};
        for (const process_info& listed : info.processes) out.processes.push_back(status_of(listed));
        return out;
    }

    result<shutdown_process_response> shut_down_process(const shutdown_process_request& request) {
        const result<shutdown_options> options = options_from(request);
        if (!options) return options.error();
        const result<found_process> found = find_process(groups_, request.process_id);
        if (!found) return found.error();
        process_group& group = *found->group;
        shutdown_process_response out{false, {}, found->info.shutdown};
        if (!found->member) {
            out.message = cat({"has already exited: ", to_string(found->info.state)});
            return out;
        }
        if (request.dry_run) {
            const result<shutdown_status> status =
                group.request_status(*found->member, deadline_after(preview_timeout));
            if (!status) return status.error();
            out.status = *status;
            out.message = request.force ? "would be sent SIGTERM, and lose its work in flight" : "would be shut down";
            return out;
        }
        out.acknowledged = true;
        if (request.force) {
            out.message = "is sent SIGTERM, then SIGKILL after kill_delay";
            group.begin_drain({found->member}, *options);
            group.force_shutdown({found->member});
        } else {
            group.drain({found->member}, *options);
            out.message = cat({"is shutting down", described(group.granted(*found->member), *options)});
        }
        return out;
    }
    template <class Request>
    static result<shutdown_options> options_from(const Request& request) {
        if (request.grace_period_seconds < 0 || request.max_shutdown_seconds < 0)
            return error{errc::invalid_argument, 0,
                         "grace_period_seconds and max_shutdown_seconds: must not be negative"};
        if (request.force && (request.grace_period_seconds > 0 || request.max_shutdown_seconds > 0))
            return error{errc::invalid_argument, 0,
                         "grace_period_seconds and max_shutdown_seconds: not allowed with force"};
        return shutdown_options{reason_or_default(request.reason), std::chrono::seconds(request.grace_period_seconds),
                                std::chrono::seconds(request.max_shutdown_seconds)};
    }
    static std::string described(const shutdown_timeouts& granted, const shutdown_options& asked) {
        const bool cut = asked.grace_period > granted.grace_period || asked.max_duration > granted.max_duration;
        return cat({", grace period ", format_duration(granted.grace_period), ", at most ",
                    format_duration(granted.max_duration),
                    !cut                                         ? ""
                    : asked.max_duration == granted.max_duration ? " (the requested maximum)"
                                                                 : " (the group's max_duration)"});
    }
    static std::string reason_or_default(const std::string& request) { return request.empty() ? "operator" : request; }

    result<shutdown_group_response> shut_down_group(const shutdown_group_request& request) {
        const result<shutdown_options> options = options_from(request);
        if (!options) return options.error();
        const result<ref<process_group>> found = find_group(groups_, request.group);
        if (!found) return found.error();
        process_group& group = **found;
        shutdown_group_response out;
        if (request.dry_run) {
            out.processes = preview(group);
            out.message = cat({"would shut down ", out.processes.size(), " of group ", request.group});
            return out;
        }
        const result<void> begun = group.shut_down(*options);
        if (!begun) return begun.error();
        out.acknowledged = true;
        if (request.force) group.force_shutdown(group.members());
        out.message =
            cat({request.force ? "is sent SIGTERM" : "is shutting down",
                 request.force ? "" : described(granted_times(*options, group.options().process.shutdown), *options),
                 ", and stays empty until a rollout"});
        return out;
    }

    result<rollout_response> replace(const rollout_request& request) {
        const result<ref<process_group>> found = find_group(groups_, request.group);
        if (!found) return found.error();
        process_group& group = **found;
        const result<group_options> target = reload_options(group);
        if (!target) return target.error();
        const result<rollout_options> options = options_from(request, target->retry);
        if (!options) return options.error();
        if (request.dry_run) {
            const result<void> runnable = check_programs(*target);
            if (!runnable) return runnable.error();
            rollout_response out;
            out.processes = preview(group);
            out.message = cat({"would replace ", out.processes.size(), " by ", target->desired});
            return out;
        }
        if (life_.phase() >= phase::draining) return error{errc::busy, 0, "the launcher is stopping"};
        const result<ref<rollout>> begun = group.begin_rollout(*target, *options);
        if (!begun) return begun.error();
        return rollout_response{true, "rollout begun", {}};
    }
    static result<rollout_options> options_from(const rollout_request& request, const retry_options& configured) {
        const auto fault = [](const char* text) { return error{errc::invalid_argument, 0, text}; };
        if (request.canary < 0 || request.canary_seconds < 0)
            return fault("canary and canary_seconds: must not be negative");
        if (request.retries < 0) return fault("retries: must not be negative");
        const retry_policy policy =
            request.retry == retry_policy::as_configured ? policy_of(configured) : request.retry;
        if (policy == retry_policy::manual && request.retries > 0)
            return fault("retries: not allowed with retry MANUAL (in the request or the configuration)");
        rollout_options out;
        out.reason = request.reason;
        out.canary = request.canary;
        out.canary_time = std::chrono::seconds(request.canary_seconds);
        const retry_options found = retry_of(policy, configured);
        out.max_retries = request.retries > 0 ? request.retries : found.max_retries;
        out.initial_backoff = found.initial_backoff;
        out.max_backoff = found.max_backoff;
        return out;
    }
    result<cancel_rollout_response> cancel(const cancel_rollout_request& request) {
        const result<ref<process_group>> group = find_group(groups_, request.group);
        if (!group) return group.error();
        const result<void> cancelled = (*group)->cancel_rollout(reason_or_default(request.reason));
        if (!cancelled) return cancelled.error();
        return cancel_rollout_response{true, "rollout cancelled; ready processes are kept, up to the group's size",
                                       (*group)->info().rollout};
    }
    // On a thread of its own: a disk that does not answer holds up this rollout only.
    result<group_options> call_reload(const std::string& name) {
        const unique_lock held(reload_mutex_);
        if (late_reload_ && !late_reload_->returned)
            return error{errc::unavailable, 0, "an earlier call has not returned"};
        const auto made = make_ref<reload_call>();
        const auto call = [made, read = options_.reload, name] {
            made->read = read(name);
            made->returned.store(true);
        };
        shutdown_sequence once;
        once.add("reload", call, reload_timeout);
        const step_result ended = once.run().front();
        if (ended.status == step_status::threw) return error{errc::system, 0, cat({"threw: ", ended.error})};
        if (ended.status != step_status::timed_out) return made->read;
        late_reload_ = made;
        return error{errc::unavailable, 0, cat({"no result within ", format_duration(reload_timeout)})};
    }
    // The new configuration of a group; without options_.reload, its current one.
    result<group_options> reload_options(const process_group& group) {
        group_options now = group.options();
        if (!options_.reload) return now;
        result<group_options> read = call_reload(now.name);
        const bool late = !read && read.error().code == errc::unavailable;
        if (!read)
            return error{late ? errc::unavailable : errc::invalid_argument, 0, cat({"reload: ", read.error().text})};
        if (read->name != now.name)
            return error{errc::invalid_argument, 0,
                         cat({"reload: group ", now.name, " was renamed to ", printable(read->name, 60)})};
        result<void> valid = check_group(*read);
        if (valid) valid = check_capacity(groups_, *read);
        if (!valid) return error{errc::invalid_argument, 0, cat({"reload: ", valid.error().text})};
        return read;
    }
    static std::vector<process_status> preview(const process_group& group) {
        std::vector<process_status> out;
        for (const drain_preview& found : group.preview_rollout().would_drain) {
            process_info known;
            static_cast<void>(group.find(found.id, known));
            out.push_back(status_of(known));
            out.back().shutdown.metrics = found.in_flight;
            if (!found.error.empty()) out.back().message = found.error;
        }
        return out;
    }

    http_response health(const http_request&) {
        const phase now = life_.state().phase;
        std::string body = cat({"{\"phase\":\"", to_string(now), "\",\"groups\":["});
        for (std::size_t i = 0; i < groups_.size(); ++i) {
            const group_info info = groups_[i]->info();
            append(body, {i == 0 ? "" : ",", "{\"group\":", json_quote(info.options.name),
                          ",\"desired\":", info.options.desired, ",\"ready\":", info.ready, ",\"degraded\":",
                          info.degraded ? "true" : "false", ",\"replacing\":", info.replacing ? "true}" : "false}"});
        }
        return json_response(now == phase::running ? 200 : 503, body + "]}");
    }
    http_response metrics(const http_request&) {
        http_response out;
        out.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}};
        launcher_metrics_page page;
        for (const ref<process_group>& group : groups_) page.add(group->info(), group->metrics());
        out.body = page.text();
        return out;
    }

    // The page loads nothing from elsewhere, is not framed, and never parses text as markup.
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
        out.body = options_.status_page;
        return out;
    }

    struct events_query {
        event_filter filter;
        std::uint64_t after = 0;
        std::chrono::milliseconds wait{0};
    };
    // Returns the changes after number `after`, one JSON object per line; waits up to `wait` for the first. The last
    // line has the number for the next request. Without `after`: only that line.
    http_response follow(const http_request& request) {
        events_query query;
        query.after = events_->last();
        const std::string fault = read_query(request.target, query);
        if (!fault.empty()) return json_error(400, fault);
        if (!query.filter.group.empty()) {
            const result<ref<process_group>> known = find_group(groups_, std::string(query.filter.group));
            if (!known) return json_error(404, known.error().text);
        }
        http_response out;
        out.headers = {{"Content-Type", "application/x-ndjson"}, {"Cache-Control", "no-store"}};
        const bool may_wait = waiting_.fetch_add(1) < max_waiting;
        out.body = await_events(request, query, deadline_after(may_wait ? query.wait : std::chrono::milliseconds(0)));
        waiting_.fetch_sub(1);
        return out;
    }
    // Checks regularly that the client is still connected, so that it does not keep others from waiting.
    std::string await_events(const http_request& request, const events_query& query, time_point deadline) {
        for (;;) {
            const std::uint64_t known = events_->last();
            std::string out;
            if (events_->collect(query.after, query.filter, out) || steady_clock::now() >= deadline) return out;
            const bool more = events_->await_more(known, std::min(deadline_after(peer_interval), deadline));
            if (!more && (events_->ended() || is_abandoned(request))) return out;
        }
    }
    // Returns an error text, or empty. A mistyped name is an error, as it would select everything.
    static std::string read_query(std::string_view target, events_query& out) {
        static constexpr const char* names[] = {"group", "process", "after", "wait"};
        bool seen[4] = {};
        std::string_view values[4];
        for (std::size_t at = target.find('?'); at != std::string_view::npos; at = target.find('&', at + 1)) {
            const std::string_view rest = target.substr(at + 1);
            const std::string_view name = rest.substr(0, rest.find_first_of("=&"));
            std::size_t which = 0;
            while (which < 4 && name != names[which]) ++which;
            if (which == 4) return cat({"no such parameter: ", printable(name, 40)});
            if (exchange(seen[which], true)) return cat({"duplicate parameter ", names[which]});
            static_cast<void>(find_parameter(target, name, values[which]));
        }
        out.filter = {values[0], values[1]};
        if (seen[2] && !parse_number(values[2], ~std::uint64_t{0} - 1, out.after)) return "after: not an event number";
        if (!seen[3]) return "";
        const result<std::chrono::milliseconds> read = parse_duration(values[3]);
        if (!read) return cat({"wait: ", read.error().text});
        out.wait = std::min(*read, max_wait);
        return "";
    }

    const launcher_options& options_;
    const lifecycle& life_;
    process_groups groups_;
    ref<launcher_events> events_;
    http_guard guard_;
    rpc_service service_{manager_service, {}};
    rpc_service rfc_service_{admin_service, {}};
    mutex reload_mutex_;
    ref<reload_call> late_reload_;
    atomic<int> waiting_{0};
    result<http_server> server_ = error{};
};
}  // namespace ojs::detail

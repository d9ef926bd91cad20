#pragma once

#include "launcher.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>

#include "../server/service_notifier.ipp"
#include "detail/launcher_admin.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
// The pid of the peer of a Unix socket; 0: unknown.
inline pid_t peer_process(int socket) noexcept {
#if defined(__linux__)
    ucred who{};
    socklen_t size = sizeof who;
    return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 ? who.pid : 0;
#elif defined(__APPLE__)
    pid_t who = 0;
    socklen_t size = sizeof who;
    return ::getsockopt(socket, SOL_LOCAL, LOCAL_PEERPID, &who, &size) == 0 ? who : 0;
#else
    static_cast<void>(socket);
    return 0;
#endif
}

// The notifying methods of ProcessLifecycleInterface; children serve the others. A notification makes us poll the
// process. Only its own process group may send it, where the system reveals the peer.
template <class Ack>
result<Ack> notify_group(const process_groups& groups, pid_t from, const std::string& id) {
    for (const ref<process_group>& group : groups) {
        if (group->on_notification(from, id)) return Ack{true};
    }
    return error{errc::rejected, 0,
                 cat({"process ", printable(id, 60), ": unknown, or the caller is not in its process group"})};
}
inline http_response handle_child_request(const process_groups& groups, const logger& log,
                                          const http_request& request) {
    const pid_t peer = peer_process(static_cast<const served_request&>(request).socket);
    const pid_t from = peer > 0 ? ::getpgid(peer) : 0;
    rpc_service service(lifecycle_service, http_guard());
    service.add<ready_notification, ready_ack>("NotifyReady", [&](const ready_notification& notification) {
        return notify_group<ready_ack>(groups, from, notification.process_id);
    });
    service.add<shutdown_complete, shutdown_complete_ack>(
        "NotifyShutdownComplete", [&](const shutdown_complete& notification) {
            auto ack = notify_group<shutdown_complete_ack>(groups, from, notification.process_id);
            if (ack)
                log.write(
                    log_level::info, "shutdown complete",
                    {field("process_id", notification.process_id), field("reason", printable(notification.message)),
                     field("took_ms", notification.shutdown_duration_ms)});
            return ack;
        });
    return service.answer(request);
}

// Shared, as processes may notify it after the launcher has ended.
struct shared_wake : ref_counted {
    detail::wake notifier;
};

class launcher_body : public ref_counted {
  public:
    launcher_body(launcher_options options, lifecycle* shared, instance_starter starter)
        : options_(std::move(options)),
          life_(shared != nullptr ? *shared : own_life_),
          context_(make_ref<launcher_context>()),
          wake_(make_ref<shared_wake>()),
          admin_(options_, life_),
          service_(context_->log) {
        context_->log = logger(options_.log, "launcher");
        context_->starter = std::move(starter);
        context_->life = &life_;
        context_->wake = [woken = wake_] { woken->notifier.notify(); };
    }

    int run() {
        result<void> begun;
        signals taken;  // before prepare(), which may take long to stop orphans
        if (!drives_signals(life_)) {
            signal_options options;
            options.stop_signals.push_back(SIGHUP);
            result<signals> installed = signals::install(life_, std::move(options));
            if (installed) taken = std::move(*installed);
            if (!installed) begun = installed.error();
        }
        atomic<bool> prepared{false};
        result<thread> guard = error{};
        if (begun && !options_.state_file.empty())
            guard = thread::start([&] { exit_if_start_hangs(prepared); }, {64 * 1024, false, "ojs-exit"});
        if (begun) begun = prepare();
        prepared.store(true);
        if (begun) return supervise(true);
        context_->log.write(log_level::error, "cannot start the launcher", {field("error", begun.error().text)});
        return start_status(begun.error());
    }
    result<thread> start() {
        const result<void> begun = prepare();
        if (!begun) return begun.error();
        const ref<launcher_body> self(this);
        result<thread> started =
            thread::start([self] { static_cast<void>(self->supervise(false)); }, {0, false, "ojs-launcher"});
        if (!started) finish(exit_status::usage);
        return started;
    }
    bool wait(time_point deadline) {
        unique_lock held(mutex_);
        while (state_ == state::running && ended_.wait_until(held, deadline)) continue;
        return state_ != state::running;
    }
    bool is_running() const noexcept {
        const unique_lock held(mutex_);
        return state_ == state::running;
    }

    // Including those that exited after the launcher gave up on them.
    void release_exited() const {
        for (const ref<process_group>& group : groups()) group->release_exited();
    }

    // Made at the start, and then only read.
    array<ref<process_group>> groups() const {
        const unique_lock held(mutex_);
        return groups_;
    }

  private:
    friend class ojs::launcher;
    enum class state { fresh, running, ended };

    result<void> prepare() {
        const unique_lock held(mutex_);
        if (state_ != state::fresh) return error{errc::busy, 0, "the launcher has already been started"};
        for (const group_options& group : options_.groups) {
            result<void> valid = check_group(group);
            if (!valid) return valid;
        }
        const std::string clash = find_name_conflict(options_.groups);
        std::string fault =
            clash.empty() ? fault_in_capacity(options_.groups, read_machine_limits()) : "groups" + clash;
        if (fault.empty() && !context_->starter) fault = "no process starter";
        if (!fault.empty()) return error{errc::invalid_argument, 0, fault};
        process_groups made;
        for (const group_options& group : options_.groups) made.push_back(make_ref<process_group>(group, context_));
        result<void> done = open(made);
        if (!done) return done;
        groups_ = std::move(made);
        state_ = state::running;
        return {};
    }
    result<void> open(const process_groups& groups) {
        result<detail::wake> made = detail::wake::create();
        if (!made) return made.error();
        wake_->notifier = std::move(*made);
        context_->routing = make_ref<routing_hooks>(options_.on_routable, options_.on_unroutable, options_.on_change,
                                                    context_->log, context_->wake);
        context_->events = make_ref<launcher_events>();
        result<void> opened = open_all(groups);
        if (opened) return opened;
        admin_.stop();  // so that start() can be called again
        close();
        context_->routing->stop();
        return opened;
    }
    result<void> open_all(const process_groups& groups) {
        result<void> opened = open_state_and_stop_orphans();
        if (opened) opened = folder_.open(absolute_path(options_.socket_folder));
        if (opened && context_->state && folder_.is_private()) opened = context_->state->add_folder(folder_.path());
        if (!opened) return opened;
        constexpr std::size_t number_and_end = 20;
        for (const group_options& group : options_.groups) {
            if (folder_.fits_socket(prefix_of(group).size() + number_and_end)) continue;
            return error{errc::invalid_argument, 0,
                         cat({"socket_folder ", folder_.path(), ": too long for a socket of group ", group.name,
                              ": a path has at most ", sizeof(sockaddr_un::sun_path) - 1, " bytes"})};
        }
        context_->socket_folder = folder_.path();
        opened = context_->routing->start();
        if (opened) opened = admin_.start(groups, *context_);
        if (opened) opened = serve_children(groups);
        if (opened && !life_.subscribe(wake_->notifier.notify_fd()))
            opened = error{errc::busy, 0, "more than 16 descriptors subscribe to this lifecycle"};
        return opened;
    }
    result<void> serve_children(const process_groups& groups) {
        http_server_options limits;
        limits.limits.head = 8 * 1024;
        limits.limits.body = rpc_body_limit;
        limits.idle_timeout = std::chrono::seconds(5);
        limits.request_timeout = std::chrono::seconds(2);
        child_server_ = http_server::start(
            cat({"unix:", folder_.path(), "/launcher.sock"}),
            [groups, log = context_->log](const http_request& request) {
                return handle_child_request(groups, log, request);
            },
            limits);
        if (!child_server_) return child_server_.error();
        context_->launcher_address = child_server_->address();
        return {};
    }
    // Before the sockets are created, because orphans may listen on them.
    result<void> open_state_and_stop_orphans() {
        if (options_.state_file.empty()) return {};
        const result<ref<state_file>> opened = state_file::open(absolute_path(options_.state_file), context_->log);
        if (!opened) return opened.error();
        context_->state = *opened;
        if (options_.reap_orphans) context_->state->reap_orphans(options_.orphan_grace_period, kill_timeout, life_);
        return context_->state->begin();
    }

    // Until every process has ended; returns the exit status. `may_exit`: for run(), it also serves the service manager,
    // and may call _exit().
    int supervise(bool may_exit) {
        attempt([&] { context_->log.write(log_level::info, "launcher started", {field("groups", groups_.size())}); });
        if (may_exit) service_.start(steady_clock::now());
        for (;;) {
            time_point next = deadline_after(std::chrono::milliseconds(memory_retry_ms));
            attempt([&] { next = run_due(may_exit); });
            if (draining_ && (all_empty() || steady_clock::now() >= give_up_at_)) break;
            if (wake_->notifier.await(std::min(next, give_up_at_))) wake_->notifier.clear();
        }
        int status = exit_status::unreported;
        retry_allocation([&] { status = log_remaining_and_choose_status(); });
        attempt([&] { context_->log.write(log_level::info, "launcher stopped", {field("exit_status", status)}); });
        result<thread> exit = error{};
        if (may_exit)
            exit = thread::start([this, status] { exit_if_unfinished(status); }, {64 * 1024, false, "ojs-exit"});
        finish(status);
        return status;
    }
    // A stop during the start waits for orphans, and no longer: the state file's disk may hang.
    void exit_if_start_hangs(const atomic<bool>& prepared) {
        time_point stopped_at = time_point::max();
        while (!prepared.load()) {
            ::poll(nullptr, 0, orphan_poll_ms * 10);
            const phase now = life_.phase();
            if (now >= phase::draining) stopped_at = std::min(stopped_at, steady_clock::now());
            const auto grace = now >= phase::stopping ? std::chrono::milliseconds(0) : options_.orphan_grace_period;
            if (milliseconds_since(stopped_at) <= (clamp_for_sum(grace) + kill_timeout).count() + 1000) continue;
            attempt([&] {
                context_->log.write(log_level::error, "cannot start the launcher: the state file's disk hangs");
            });
            _exit(exit_status::unreported);
        }
    }
    // run() has a second to return: a thread that is joined may hang on a dead disk, or in a hook.
    void exit_if_unfinished(int status) {
        unique_lock held(mutex_);
        const time_point deadline = deadline_after(std::chrono::seconds(1));
        while (state_ != state::ended)
            if (!ended_.wait_until(held, deadline) && state_ != state::ended) _exit(status);
    }
    // Does what is due in each group. A stop waits at most for the starts of one group.
    time_point run_due(bool may_exit) {
        time_point next = time_point::max();
        follow_lifecycle(may_exit);
        for (const ref<process_group>& group : groups_) {
            next = std::min(next, group->reconcile(steady_clock::now()));
            follow_lifecycle(may_exit);
        }
        report_service();
        return std::min(next, service_.next_due());
    }
    bool all_empty() const noexcept {
        const auto is_empty = [](const ref<process_group>& group) { return group->empty(); };
        return std::all_of(groups_.begin(), groups_.end(), is_empty);
    }

    // Ready once every group has min_healthy; reloading during a rollout. [sd_notify]
    void report_service() {
        if (!service_.active()) return;
        int ready = 0;
        bool healthy = true;
        bool is_rolling = false;
        for (const ref<process_group>& group : groups_) healthy = group->count_ready_into(ready, is_rolling) && healthy;
        const std::string text = cat({to_string(life_.state().phase), ", ", ready, " processes ready"});
        if (draining_ && !exchange(stopping_reported_, true)) service_.stopping(text);
        const bool extended = service_.tick(steady_clock::now(), give_up_at_);
        if (extended || !draining_) service_.report(healthy && !draining_, text, is_rolling);
    }

    // Quiets, drains or forces the groups as the lifecycle's current phase requires.
    void follow_lifecycle(bool may_exit) {
        const lifecycle_state now = life_.state();
        const bool quiet = now.phase == phase::quiet;
        if (quiet != quiet_) {
            for (const ref<process_group>& group : groups_) group->set_quiet(quiet);
            quiet_ = quiet;
            context_->log.write(log_level::info, quiet ? "launcher quiet" : "launcher resumed");
        }
        if (now.phase >= phase::draining && !draining_) drain(now);
        if ((now.phase >= phase::stopping || now.cancel_requested) && !forced_) force_all();
        if (now.stop_signals < 3) return;
        attempt([&] {
            context_->log.write(log_level::error, "third stop signal: exiting immediately",
                                {field("signal", signal_name(now.cause.signal))});
        });
        if (may_exit) _exit(exit_status::signal_base + now.cause.signal);
        give_up_at_ = steady_clock::now();
    }

    // All groups together, so that none waits for the hooks or processes of another.
    void drain(const lifecycle_state& now) {
        limit_log_wait(std::chrono::milliseconds(50));  // a blocked log reader must not delay the stop
        context_->log.write(log_level::info, "launcher draining",
                            {field("event", to_string(now.last_event)), field("cause", to_string(now.cause.kind)),
                             field("signal", now.cause.signal == 0 ? "" : signal_name(now.cause.signal))});
        give_up_at_ = deadline_after(std::chrono::seconds(1));
        const shutdown_options options{"the launcher stops", {}, {}};
        for (const ref<process_group>& group : groups_) {
            give_up_at_ = std::max(give_up_at_, deadline_after(group->max_stop_time() + std::chrono::seconds(1)));
            group->stop_starting();
            group->begin_drain(group->members(), options);
        }
        context_->routing->await_calls(deadline_after(std::chrono::seconds(1)));
        for (const ref<process_group>& group : groups_) group->request_shutdown(group->members());
        draining_ = true;
    }
    void force_all() {
        context_->log.write(log_level::warn, "second stop signal: force-stopping all processes");
        for (const ref<process_group>& group : groups_) group->force_shutdown(group->members());
        forced_ = true;
    }

    int log_remaining_and_choose_status() const {
        int remaining = 0;
        for (const ref<process_group>& group : groups_) {
            for (const ref<group_member>& member : group->members()) {
                ++remaining;
                context_->log.write(log_level::error, "SIGKILL did not end the process; exiting without it",
                                    {field("process_id", member->id)});
            }
        }
        return remaining == 0 ? exit_status::settled : exit_status::unreported;
    }
    void finish(int status) {
        life_.unsubscribe(wake_->notifier.notify_fd());
        for (const ref<process_group>& group : groups_) group->stop_starting();
        retry_allocation([this] {
            close();
            release_exited();
            admin_.stop();
            context_->routing->stop();  // last, as a hook may hang
        });
        if (&life_ == &own_life_) {
            life_.apply(event::drained, {});
            life_.apply(event::finished, {});
        }
        const unique_lock held(mutex_);
        status_ = status;
        state_ = state::ended;
        ended_.notify_all();
    }

    void close() {
        child_server_ = error{};
        folder_.remove();
        if (context_->state) context_->state->close();
    }

    const launcher_options options_;
    lifecycle own_life_;
    lifecycle& life_;
    const ref<launcher_context> context_;
    const ref<shared_wake> wake_;
    socket_folder folder_;
    result<http_server> child_server_ = error{};  // ended before its folder
    launcher_admin admin_;
    mutable mutex mutex_;
    condition ended_;
    state state_ = state::fresh;
    int status_ = exit_status::settled;
    array<ref<process_group>> groups_;
    // Only the supervisor uses the rest.
    time_point give_up_at_ = time_point::max();
    bool quiet_ = false;
    service_report service_;
    bool draining_ = false;
    bool stopping_reported_ = false;
    bool forced_ = false;
};

inline instance_starter real_process_starter(const log_options& log) {
    return [sink = logger(log, "launcher")](const instance_spec& spec, instance_callback changed) {
        return start_instance(spec, std::move(changed), sink);
    };
}
}  // namespace detail

OJS_SHUTDOWN_INLINE launcher::launcher(launcher_options options)
    : launcher(options, nullptr, detail::real_process_starter(options.log)) {}
OJS_SHUTDOWN_INLINE launcher::launcher(launcher_options options, lifecycle& shared)
    : launcher(options, &shared, detail::real_process_starter(options.log)) {}
OJS_SHUTDOWN_INLINE launcher::launcher(launcher_options options, lifecycle* shared, detail::instance_starter starter)
    : body_(detail::make_ref<detail::launcher_body>(std::move(options), shared, std::move(starter))) {}

OJS_SHUTDOWN_INLINE launcher::~launcher() {
    body_->retain();  // for good in a child made by fork(), which has none of its threads
    if (process_ != ::getpid()) return;
    if (body_->is_running()) request_stop();
    body_->wait(time_point::max());
    body_->release_exited();
    body_->release();
}

OJS_SHUTDOWN_INLINE int launcher::run() { return body_->run(); }
OJS_SHUTDOWN_INLINE result<void> launcher::start() {
    result<detail::thread> started = body_->start();
    if (!started) return started.error();
    background_ = std::move(*started);
    return {};
}
OJS_SHUTDOWN_INLINE bool launcher::wait(time_point deadline) { return body_->wait(deadline); }
OJS_SHUTDOWN_INLINE int launcher::exit_code() const noexcept {
    const detail::unique_lock held(body_->mutex_);
    return body_->status_;
}
OJS_SHUTDOWN_INLINE bool launcher::request_stop() {
    return body_->life_.apply(event::stop_request, {cause_kind::api, 0});
}
OJS_SHUTDOWN_INLINE bool launcher::quiet() { return body_->life_.apply(event::quiet_request, {cause_kind::api, 0}); }
OJS_SHUTDOWN_INLINE bool launcher::resume() { return body_->life_.apply(event::resume_request, {cause_kind::api, 0}); }

OJS_SHUTDOWN_INLINE std::string launcher::admin_address() const { return body_->admin_.address(); }
OJS_SHUTDOWN_INLINE std::vector<std::string> launcher::groups() const {
    std::vector<std::string> out;
    for (const detail::ref<detail::process_group>& group : body_->groups()) out.push_back(group->options().name);
    return out;
}
OJS_SHUTDOWN_INLINE result<group_info> launcher::group(const std::string& name) const {
    const result<detail::ref<detail::process_group>> found = detail::find_group(body_->groups(), name);
    if (!found) return found.error();
    return (*found)->info();
}
OJS_SHUTDOWN_INLINE result<process_info> launcher::process(const std::string& id) const {
    const result<detail::found_process> found = detail::find_process(body_->groups(), id);
    if (!found) return found.error();
    return found->info;
}

OJS_SHUTDOWN_INLINE result<void> launcher::shut_down_process(const std::string& id, const shutdown_options& options) {
    const result<detail::found_process> found = detail::find_process(body_->groups(), id);
    if (!found) return found.error();
    if (found->member) found->group->drain({found->member}, options);
    return {};
}
OJS_SHUTDOWN_INLINE result<void> launcher::shut_down_group(const std::string& name, const shutdown_options& options) {
    const result<detail::ref<detail::process_group>> found = detail::find_group(body_->groups(), name);
    if (!found) return found.error();
    return (*found)->shut_down(options);
}
OJS_SHUTDOWN_INLINE result<void> launcher::force_process(const std::string& id) {
    const result<detail::found_process> found = detail::find_process(body_->groups(), id);
    if (!found) return found.error();
    if (found->member) found->group->force_shutdown({found->member});
    return {};
}
OJS_SHUTDOWN_INLINE result<rollout_report> launcher::rollout(const std::string& name, const group_options& target,
                                                             const rollout_options& options,
                                                             const cancel_token& cancel) {
    const result<detail::ref<detail::process_group>> found = detail::find_group(body_->groups(), name);
    if (!found) return found.error();
    if (!body_->is_running()) return error{errc::busy, 0, "the launcher is not running"};
    const result<void> fits = detail::check_capacity(body_->groups(), target);
    if (!fits) return fits.error();
    return (*found)->roll(target, options, cancel);
}
}  // namespace v0_1_0
}  // namespace ojs

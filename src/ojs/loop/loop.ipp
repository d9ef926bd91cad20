#pragma once

#include "../base/detail/light.hpp"
#include "../base/detail/sync.hpp"
#include "detail/stop_machine.ipp"
#include "loop.hpp"
#include "loop_options.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

struct loop_item : ref_counted {
    loop_item(std::string id, const ref<cancel_group>& group) : cancel(group->member()) {
        shown.id = std::move(id);
        shown.queue = "default";
    }

    cancel_source cancel;
    job shown;  // to parts
    const time_point since = steady_clock::now();
    drain_barrier::ticket ticket;
    // Guarded by the loop's mutex.
    std::size_t place = 0;  // in the loop's list
    bool is_over = false;   // in the account
    bool is_stuck = false;
    time_point cancelled_at = never;  // alone
};

// A thread of consumers().
struct loop_slot : ref_counted {
    std::size_t index = 0;
    function<void(slot&)> body;
    loop_state* loop = nullptr;
    drain_barrier::ticket ticket;  // held but while it waits in next()
    thread handle;
};

// While items may be taken: it ends with the next quiet.
struct taking_period : ref_counted {
    cancel_source source;
};

// Shared by the loop, its threads and its items.
class loop_state : public held_options<loop_options>, public loop_context {
  public:
    loop_state(loop_options given, lifecycle* shared)
        : held_options{std::move(given)}, loop_context(options, "loop", shared) {}

    std::size_t active() const noexcept override {
        const unique_lock held(guard_);
        return items_.size();
    }
    void visit_active(const function<void(const job&, time_point)>& visit) const override {
        for (const ref<loop_item>& each : items()) visit(each->shown, each->since);
    }
    worker_report report() const override {
        const unique_lock held(guard_);
        worker_report out = counts_;
        for (const ref<loop_item>& each : items_) {
            if (each->is_stuck) out.stuck.push_back(each->shown.id);
        }
        return out;
    }
    std::uint64_t unreported() const noexcept override {
        const unique_lock held(guard_);
        return unreported_;
    }

    // ---- items ----

    array<ref<loop_item>> items() const {
        const unique_lock held(guard_);
        return items_;
    }
    item begin(std::string id) {
        const ref<loop_item> added = make_ref<loop_item>(std::move(id), group_);
        added->ticket = claims.enter();
        {
            const unique_lock held(guard_);
            added->place = items_.size();
            items_.push_back(added);
            stuck_check_at_ = detail::min(stuck_check_at_, cancelled_at_);
            ++counts_.claimed;
        }
        return item(ref<loop_state>(this), added);
    }
    void end(loop_item& ended) noexcept {
        if (is_forked()) return;  // it is the parent's
        const cancel_token token = ended.cancel.token();
        const bool is_cut_short = token.seen();
        {
            const unique_lock held(guard_);
            items_.back()->place = ended.place;
            swap(items_[ended.place], items_.back());
            items_.pop_back();
            if (!exchange(ended.is_over, true)) count(is_cut_short, token.reason());
        }
        const job_settlement settled{ended.shown.queue,
                                     {},
                                     is_cut_short ? settled_state::available : settled_state::completed,
                                     steady_clock::now() - ended.since};
        if (has_parts) user.notify_parts([&](worker_part& part) { part.on_job_settled(settled); });
        leave(ended.ticket);
    }
    // Cancels the tokens of those of `asked` that renew() has lost.
    void lose(const array<ref<loop_item>>& asked, const std::vector<std::string>& ids) {
        bool any = false;
        for (const ref<loop_item>& each : asked) {
            if (!contains(ids, each->shown.id) || !lose(*each)) continue;
            any = true;
            log_item(log_level::warn, "item lost: another consumer may have it", *each);
        }
        if (!any) return;
        call_cancel_callbacks();
        supervisor.notify();
    }
    // One store; the waits and callbacks follow.
    void cancel_all(cancel_reason reason) {
        group_->request(reason);
        const unique_lock held(guard_);
        stuck_check_at_ = cancelled_at_ = detail::min(cancelled_at_, steady_clock::now());
    }
    // Of cancelled items.
    void call_cancel_callbacks() {
        retry_allocation([this] {
            const array<ref<loop_item>> all = items();
            for (const ref<loop_item>& each : all) {
                if (each->cancel.requested()) each->cancel.wake_waiters();
            }
            run_aside([all] {
                for (const ref<loop_item>& each : all) {
                    if (each->cancel.requested()) each->cancel.run_callbacks();
                }
            });
        });
    }
    // Items that were cancelled and still run are logged once. Returns when to look again.
    time_point check_stuck(time_point now) {
        array<ref<loop_item>> stuck;
        unique_lock held(guard_);
        if (now < stuck_check_at_) return stuck_check_at_;
        time_point next = never;
        for (const ref<loop_item>& each : items_) {
            const time_point cancelled = detail::min(each->cancelled_at, cancelled_at_);
            if (each->is_stuck || each->is_over || cancelled == never) continue;
            const time_point due = cancelled + options.stuck_after;
            if (now < due) {
                next = detail::min(next, due);
                continue;
            }
            stuck.push_back(each);
            each->is_stuck = true;
        }
        stuck_check_at_ = next;
        held.unlock();
        for (const ref<loop_item>& each : stuck)
            log_item(log_level::warn, "item is stuck: cancelled, but still in flight", *each);
        return next;
    }
    void mark_all_unreported() {
        {
            const unique_lock held(guard_);
            unreported_ = items_.size();
            for (const ref<loop_item>& each : items_) {
                each->is_over = true;
                attempt([&] { counts_.unreported.push_back(each->shown.id); });
            }
        }
        for (const ref<loop_item>& each : items())
            log_item(log_level::error, "item has not ended in time", *each);
    }
    void log_items() const {
        const array<ref<loop_item>> all = items();
        log.write_requested("items in flight", {field("phase", to_string(stage.effective_phase())),
                                                field("active_items", all.size())});
        for (const ref<loop_item>& each : all) log.write_requested("item in flight", fields_of(*each));
    }
    void set_steps(std::vector<step_result> steps) {
        const unique_lock held(guard_);
        counts_.steps = std::move(steps);
    }

    // ---- taking ----

    cancel_token taking() const {
        const unique_lock held(guard_);
        return taking_->source.token();
    }
    // Called after each change of phase.
    void update_taking() {
        ref<taking_period> next;
        const bool may_take = stage.may_fetch();
        if (may_take) retry_allocation([&] { next = make_ref<taking_period>(); });
        unique_lock held(guard_);
        if (next && taking_->source.requested()) swap(taking_, next);
        const ref<taking_period> current = taking_;
        if (!may_take) current->source.request(cancel_reason::cancelled);
        changed_.notify_all();
        held.unlock();
        if (!may_take && current->source.has_pending_callbacks())
            run_aside([current] { current->source.run_callbacks(); });
    }
    // Between two calls of advance() an item may come although it is quiet.
    bool is_drained() const noexcept override {
        const unique_lock held(guard_);
        return taking_->source.requested() && loop_context::is_drained();
    }
    slot::turn await_turn(loop_slot& self, time_point deadline) {
        exit_if_child();
        leave(self.ticket);
        unique_lock held(guard_);
        for (;;) {
            if (stage.has_stop_begun()) return slot::turn::end;
            self.ticket = claims.enter();  // before the look: see drain_barrier::enter()
            if (stage.may_fetch() && !taking_->source.requested()) return slot::turn::take;
            leave(self.ticket);
            if (!changed_.wait_until(held, deadline)) return slot::turn::wait;
        }
    }

    // ---- threads ----

    void add_consumers(std::size_t count, const function<void(slot&)>& body) {
        if (count == 0 && options.concurrency > 0) count = static_cast<std::size_t>(options.concurrency);
        for (; count > 0; --count) {
            const ref<loop_slot> added = make_ref<loop_slot>();
            added->index = slots_.size();
            added->body = body;
            added->loop = this;
            slots_.push_back(added);
        }
    }
    void set_renewal(std::chrono::milliseconds interval,
                     function<std::vector<std::string>(const std::vector<std::string>&)> call) {
        renew_interval_ = detail::max(interval, std::chrono::milliseconds(1));
        renew_ = std::move(call);
    }
    // An error: not all could be started. Those that were end as the loop stops.
    result<void> start_threads() {
        thread_options consumer;
        consumer.stack_size = options.thread_stack_size;
        consumer.takes_signals = true;  // it may start programs, and those inherit the mask
        consumer.name = "ojs-consumer";
        const ref<loop_state> self(this);
        result<void> started;
        if (renew_) {
            renews_ = true;
            started = start(renewer_, service_thread("ojs-renew"), [self] { self->renew_until_ended(); });
            if (!started) renews_ = false;
        }
        for (const ref<loop_slot>& each : slots_) {
            if (!started) break;
            live_threads_.fetch_add(1);
            started = start(each->handle, consumer, [self, each] { self->consume(*each); });
            if (!started) live_threads_.fetch_sub(1);
        }
        return started;
    }
    std::size_t consumers() const noexcept { return slots_.size(); }
    bool has_live_threads() const noexcept { return live_threads_.load() != 0; }
    bool has_thrown() const noexcept { return has_thrown_; }
    // True: renew is not being called, and will not be.
    bool end_renewal() {
        const unique_lock held(guard_);
        renewal_ends_ = true;
        changed_.notify_all();
        return !renews_;
    }
    // Returns how many are left behind.
    std::size_t end_threads(time_point deadline) {
        const std::size_t live = live_threads_ + (end_renewal() ? 0 : 1);
        std::size_t left = live;
        const auto end = [&](thread& each) {
            if (live == 0 && !each.join_until(deadline)) ++left;
            each.detach();
        };
        end(renewer_);
        for (const ref<loop_slot>& each : slots_) end(each->handle);
        return left;
    }
    // This process is a child of the one that has claimed the signals, or runs.
    bool is_forked() const noexcept { return owner_ != fork_generation(); }
    void exit_if_child() const noexcept { exit_if_forked(owner_); }
    void own() noexcept { owner_ = fork_generation(); }

    cancel_source stopped;
    atomic<bool> has_parts{false};  // an item may end before they start

  private:
    // With the mutex held.
    void count(bool is_cut_short, cancel_reason reason) noexcept {
        const bool is_lost = is_cut_short && reason == cancel_reason::revoked;
        ++(is_lost ? counts_.gone : is_cut_short ? counts_.requeued : counts_.completed);
        if (is_cut_short) ++counts_.interrupted;
    }
    void leave(drain_barrier::ticket& ticket) noexcept {
        ticket.leave();
        if (stage.has_stop_begun() || (has_parts && loop_context::is_drained())) supervisor.notify();
    }

    template <class Body>
    static result<void> start(thread& handle, const thread_options& options, Body body) {
        result<thread> started = unless_out_of_memory([&] { return thread::start(body, options); });
        if (!started) return started.error();
        handle = std::move(*started);
        return {};
    }
    // On another thread, as callbacks may block; on this one if there is none.
    template <class Body>
    void run_aside(Body body) {
        const ref<loop_state> self(this);
        thread aside;
        const auto kept = [self, body] { body(); };
        if (!start(aside, service_thread("ojs-cancel"), kept)) return body();
        aside.detach();
    }
    void consume(loop_slot& self) {
        slot shown(self);
        try {
            self.body(shown);
        } catch (...) {
            exit_if_child();
            has_thrown_ = true;
            attempt([&] {
                log.write(log_level::error, "a consumer threw; the loop stops",
                          {field("error", thrown_text())});
            });
        }
        exit_if_child();
        leave(self.ticket);
        if (live_threads_.fetch_sub(1) == 1 || has_thrown_)
            stage.own.apply(event::stop_request, {cause_kind::api, 0});
        supervisor.notify();
    }
    void renew_until_ended() {
        unique_lock held(guard_);
        for (time_point due = deadline_after(renew_interval_); !renewal_ends_;) {
            if (steady_clock::now() < due) {
                changed_.wait_until(held, due);
                continue;
            }
            held.unlock();
            due = deadline_after(renew_interval_);  // from the begin of the call
            user.guard("renew threw", [this] {
                const array<ref<loop_item>> asked = items();
                std::vector<std::string> ids;
                for (const ref<loop_item>& each : asked) ids.push_back(each->shown.id);
                if (!ids.empty()) lose(asked, renew_(ids));
            });
            exit_if_child();
            held.lock();
        }
        renews_ = false;
        supervisor.notify();
    }
    // False: it has ended.
    bool lose(loop_item& lost) {
        const unique_lock held(guard_);
        if (lost.is_over || !lost.cancel.request(cancel_reason::revoked)) return false;
        lost.cancelled_at = steady_clock::now();
        stuck_check_at_ = time_point::min();
        return true;
    }

    std::vector<log_field> fields_of(const loop_item& one) const {
        return {field("item", one.shown.id), field("elapsed_ms", milliseconds_since(one.since)),
                field("cancelled", one.cancel.requested() ? "yes" : "no")};
    }
    void log_item(log_level level, const char* message, const loop_item& one) const {
        attempt([&] { log.write({level, message, fields_of(one), {}}); });
    }

    const ref<cancel_group> group_ = make_ref<cancel_group>();
    array<ref<loop_slot>> slots_;  // not changed after the start, like the next two
    std::chrono::milliseconds renew_interval_{0};
    function<std::vector<std::string>(const std::vector<std::string>&)> renew_;
    thread renewer_;
    atomic<std::size_t> live_threads_{0};
    atomic<bool> has_thrown_{false};
    std::uint32_t owner_ = fork_generation();

    mutable mutex guard_;  // guards the rest
    condition changed_;    // the phase, or the renewal ends
    array<ref<loop_item>> items_;
    worker_report counts_;
    time_point cancelled_at_ = never;  // all items
    time_point stuck_check_at_ = never;
    ref<taking_period> taking_ = make_ref<taking_period>();
    std::uint64_t unreported_ = 0;
    bool renewal_ends_ = false;
    bool renews_ = false;  // its thread runs
};

// The stages of a loop, one turn at a time.
class loop_machine final : public stop_machine {
  public:
    loop_machine(loop_options options, lifecycle* shared)
        : loop_machine(make_ref<loop_state>(std::move(options), shared)) {}
    ~loop_machine() override {
        if (state->is_forked()) return;
        if (has_begun_) {
            state->stage.own.apply(event::cancel_request, {cause_kind::api, 0});
            run();
        }
        state->user.callbacks.close();  // an item that outlives the loop calls nothing
        state->user.callbacks.wait_until(deadline_after(std::chrono::seconds(1)));
    }

    // Claims the signals.
    void prepare() {
        if (status) status = check_loop_options(state->options);
        if (status) status = check_extensions(state->options);
        if (status) status = unless_out_of_memory([this] { return claim(); });
    }
    void run() {
        while (advance()) state->supervisor.wait_until(due_);
        if (!must_exit()) return;
        for (;;) ::pause();  // another run() ends the process
    }
    // False: it has ended.
    bool advance() {
        if (has_begun_) state->exit_if_child();
        if (stage_ == stage::over || !(has_begun_ || start())) return false;
        state->supervisor.clear();
        for (;;) {
            const time_point parts_due = notice_all();
            const time_point now = steady_clock::now();
            if (begin_next_stage(now)) {
                if (stage_ == stage::over) return false;
                continue;
            }
            due_ = detail::min(detail::min(stage_deadline(), parts_due), run_due_tasks(now));
            return true;
        }
    }
    time_point due() const noexcept { return due_; }
    bool has_begun() const noexcept { return has_begun_; }

    const ref<loop_state> state;
    result<void> status;  // why it cannot run
    shutdown_sequence steps;
    atomic<int> exit_code{exit_status::usage};

  private:
    enum class stage { working, draining, stopping, closing, over };

    explicit loop_machine(const ref<loop_state>& made) : stop_machine(*made, steps), state(made) {}

    result<void> claim() {
        result<wake> waker = wake::create();
        if (!waker) return waker.error();
        state->supervisor = std::move(*waker);
        state->identify("loop", {});
        state->identity.queues = {"default"};
        state->owns_process = true;
        state->own();
        return install_signals(*state, signals_);
    }
    bool start() {
        if (status) status = unless_out_of_memory([this] { return try_start(); });
        if (status) return true;
        report_usage(status.error());
        if (has_begun_) return true;  // some threads run: it stops
        tear_down();
        stage_ = stage::over;
        return false;
    }
    result<void> try_start() {
        const result<void> claimed = state->is_forked() ? claim() : result<void>();  // by daemon()
        if (!claimed) return claimed;
        state->steps_timeout = steps.timeout();
        if (state->consumers() > 0)
            state->identity.concurrency = static_cast<std::int64_t>(state->consumers());
        const result<void> parts = start_worker_parts(ref<loop_context>(state.get()));
        const int notify_fd = state->supervisor.notify_fd();
        state->stage.own.subscribe(notify_fd);  // its first subscriber, so this cannot fail
        const bool follows = state->stage.shared == nullptr || state->stage.shared->subscribe(notify_fd);
        if (!parts) return parts;
        state->has_parts = !state->user.parts.empty();
        if (!follows) return error{errc::busy, 0, "too many follow one lifecycle (at most 16)"};
        begin_run();
        has_begun_ = true;
        begin("loop started", loop_variables);
        const result<void> started = state->start_threads();
        if (!started) state->stage.own.apply(event::stop_request, {cause_kind::api, 0});
        return started;
    }

    // Taking ends first, and then the items: one may come between the two.
    bool idle() const noexcept override { return !state->has_live_threads() && stop_machine::idle(); }
    time_point run_due_work(time_point now) override { return state->check_stuck(now); }
    void shorten_stop() override { stop_deadline_ = steady_clock::now(); }
    void wake_takers() override { state->update_taking(); }
    void cancel_all() override { state->cancel_all(stop_reason()); }
    void call_cancel_callbacks() override { state->call_cancel_callbacks(); }
    void log_in_flight() override { state->log_items(); }

    time_point stage_deadline() const noexcept {
        if (stage_ == stage::draining) return state->stage.drain_deadline();
        return stage_ == stage::stopping ? stop_deadline_ : never;
    }
    bool begin_next_stage(time_point now) {
        const bool is_late = now >= stage_deadline();
        switch (stage_) {
            case stage::working:
                if (phase() < phase::draining) return false;
                break;
            case stage::draining:
                if (!idle() && !is_late && phase() < phase::stopping) return false;
                end_drain(idle());
                break;
            case stage::stopping:
                if (!idle() && !is_late) return false;
                if (!state->end_renewal() && !is_late) return false;
                attempt([this] { state->mark_all_unreported(); });
                break;
            case stage::closing:
                if (!run_shutdown_steps()) return false;
                finish();
                break;
            case stage::over: return false;
        }
        stage_ = static_cast<stage>(static_cast<int>(stage_) + 1);
        return true;
    }
    void finish() {
        state->set_steps(take_steps());
        end_stop();
        const time_point join_deadline = detail::max(stop_deadline_, deadline_after(min_join_timeout));
        const std::size_t left = state->end_threads(join_deadline);
        if (left > 0) attempt([&] { log_.write_abandoned_threads(left); });
        const bool all_ended = left == 0;
        tear_down();
        int ended = choose_exit_status(all_ended);
        if (ended == exit_status::settled && !all_ended) ended = exit_status::unreported;
        if (ended == exit_status::settled && state->has_thrown()) ended = exit_status::stuck;
        if (ended == exit_status::settled && !status) ended = exit_status::usage;
        exit_code = ended;
        has_begun_ = false;
        end("loop stopped", ended, all_ended);
        state->stopped.cancel(cancel_reason::cancelled);
    }
    void tear_down() {
        stop_worker_parts(*state, deadline_after(std::chrono::milliseconds(100)));
        if (state->stage.shared != nullptr) state->stage.shared->unsubscribe(state->supervisor.notify_fd());
        state->stage.own.unsubscribe(state->supervisor.notify_fd());
    }

    run_signals signals_;
    stage stage_ = stage::working;
    time_point due_ = never;
    bool has_begun_ = false;
};

}  // namespace detail

OJS_SHUTDOWN_INLINE item::item(detail::ref<detail::loop_state> loop,
                               detail::ref<detail::loop_item> entry) noexcept
    : loop_(std::move(loop)), entry_(std::move(entry)) {}
OJS_SHUTDOWN_INLINE item::item(item&& other) noexcept = default;
OJS_SHUTDOWN_INLINE item& item::operator=(item&& other) noexcept {
    end();
    loop_ = std::move(other.loop_);
    entry_ = std::move(other.entry_);
    return *this;
}
OJS_SHUTDOWN_INLINE item::~item() {
    end();
}
OJS_SHUTDOWN_INLINE cancel_token item::token() const noexcept {
    return entry_ ? entry_->cancel.token() : cancel_token();
}
OJS_SHUTDOWN_INLINE void item::end() noexcept {
    if (entry_) loop_->end(*entry_);
    entry_ = {};
    loop_ = {};
}

OJS_SHUTDOWN_INLINE cancel_token slot::taking() const {
    self_.loop->exit_if_child();
    return self_.loop->taking();
}
OJS_SHUTDOWN_INLINE item slot::begin(std::string id) {
    self_.loop->exit_if_child();
    return self_.loop->begin(std::move(id));
}
OJS_SHUTDOWN_INLINE std::size_t slot::index() const noexcept {
    return self_.index;
}
OJS_SHUTDOWN_INLINE slot::turn slot::await_turn(time_point deadline) {
    return self_.loop->await_turn(self_, deadline);
}

OJS_SHUTDOWN_INLINE loop::loop() : loop(loop_options::from_environment(), nullptr) {}
OJS_SHUTDOWN_INLINE loop::loop(loop_options options)
    : loop(result<loop_options>(std::move(options)), nullptr) {}
OJS_SHUTDOWN_INLINE loop::loop(loop_options options, lifecycle& shared)
    : loop(result<loop_options>(std::move(options)), &shared) {}
OJS_SHUTDOWN_INLINE loop::loop(result<loop_options> options, lifecycle* shared)
    : machine_(detail::make_ref<detail::loop_machine>(options ? *options : loop_options(), shared)) {
    if (!options) machine_->status = options.error();
    machine_->prepare();
}
OJS_SHUTDOWN_INLINE loop::~loop() = default;

OJS_SHUTDOWN_INLINE void loop::consumers(std::size_t count, function<void(slot&)> body) {
    machine_->state->add_consumers(count, body);
}
OJS_SHUTDOWN_INLINE void loop::renew(
    std::chrono::milliseconds interval,
    function<std::vector<std::string>(const std::vector<std::string>&)> renew) {
    machine_->state->set_renewal(interval, std::move(renew));
}
OJS_SHUTDOWN_INLINE bool loop::add_step(std::string name, function<void()> step,
                                        std::chrono::milliseconds timeout) {
    return !machine_->has_begun() && machine_->steps.add(std::move(name), std::move(step), timeout);
}

OJS_SHUTDOWN_INLINE int loop::run() {
    machine_->run();
    return exit_code();
}
OJS_SHUTDOWN_INLINE int loop::fd() const noexcept {
    return machine_->state->supervisor.fd();
}
OJS_SHUTDOWN_INLINE time_point loop::deadline() const noexcept {
    return machine_->due();
}
OJS_SHUTDOWN_INLINE bool loop::advance() {
    return machine_->advance();
}
OJS_SHUTDOWN_INLINE int loop::exit_code() const noexcept {
    return machine_->exit_code;
}

OJS_SHUTDOWN_INLINE bool loop::may_take() const noexcept {
    return machine_->state->stage.may_fetch();
}
OJS_SHUTDOWN_INLINE cancel_token loop::taking() const {
    return machine_->state->taking();
}
OJS_SHUTDOWN_INLINE item loop::begin(std::string id) {
    return machine_->state->begin(std::move(id));
}
OJS_SHUTDOWN_INLINE bool loop::quiet() {
    return machine_->state->stage.own.apply(event::quiet_request, {cause_kind::api, 0});
}
OJS_SHUTDOWN_INLINE bool loop::resume() {
    return machine_->state->stage.own.apply(event::resume_request, {cause_kind::api, 0});
}
OJS_SHUTDOWN_INLINE bool loop::request_stop() {
    return machine_->state->stage.own.apply(event::stop_request, {cause_kind::api, 0});
}
OJS_SHUTDOWN_INLINE bool loop::request_stop_and_cancel() {
    return machine_->state->stage.own.apply(event::cancel_request, {cause_kind::api, 0});
}
OJS_SHUTDOWN_INLINE cancel_token loop::stopped_token() const {
    return machine_->state->stopped.token();
}
OJS_SHUTDOWN_INLINE phase loop::phase() const noexcept {
    return machine_->state->stage.effective_phase();
}
OJS_SHUTDOWN_INLINE std::size_t loop::active_items() const {
    return machine_->state->active();
}
OJS_SHUTDOWN_INLINE worker_report loop::report() const {
    return machine_->state->report();
}

}  // namespace v0_1_0
}  // namespace ojs

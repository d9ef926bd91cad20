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

    ref<loop_state> loop;  // of the taking period: none
    cancel_source cancel;
    job shown;  // to extensions
    const time_point since = steady_clock::now();
    drain_barrier::ticket ticket;
    // Guarded by the loop's mutex.
    std::size_t place = 0;  // in the loop's list
    bool is_over = false;   // in the account
    bool is_stuck = false;
    time_point cancelled_at = never;  // alone
};

// A thread of consumers().
struct loop_consumer {
    function<void(slot&)> body;
    thread handle;
};

// Shared by the loop, its threads and its items.
class loop_state : public held_options<loop_options>, public loop_context {
  public:
    loop_state(loop_options given, lifecycle* shared)
        : held_options{std::move(given)}, loop_context(options, "loop", shared) {}

    std::size_t active() const noexcept override {
        if (is_forked()) return 0;  // they are the parent's, a thread of which may have held the mutex
        const unique_lock held(guard_);
        return items_.size();
    }
    void visit_active(const function<void(const job&, time_point)>& visit) const override {
        for (const ref<loop_item>& each : items()) visit(each->shown, each->since);
    }
    worker_report report() const override {
        if (is_forked()) return {};
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
        added->loop = ref<loop_state>(this);
        return item(added);
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
            if (!exchange(ended.is_over, true)) {
                const bool is_lost = is_cut_short && token.reason() == cancel_reason::revoked;
                ++(is_lost ? counts_.gone : is_cut_short ? counts_.requeued : counts_.completed);
                if (is_cut_short) ++counts_.interrupted;
            }
        }
        const job_settlement settled{ended.shown.queue,
                                     {},
                                     is_cut_short ? settled_state::available : settled_state::completed,
                                     steady_clock::now() - ended.since};
        if (has_extensions)
            user.notify_extensions([&](worker_extension& extension) { extension.on_job_settled(settled); });
        leave(ended.ticket);
    }
    // Cancels the tokens of those of `asked` that renew() has lost.
    void lose(const array<ref<loop_item>>& asked, const std::vector<std::string>& ids) {
        bool any = false;
        for (const ref<loop_item>& each : asked) {
            if (!contains(ids, each->shown.id)) continue;
            unique_lock held(guard_);
            if (each->is_over || !each->cancel.request(cancel_reason::revoked)) continue;
            each->cancelled_at = steady_clock::now();
            stuck_check_at_ = time_point::min();
            held.unlock();
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
    void call_cancel_callbacks() {
        retry_allocation([this] { call_back(items()); });
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
        if (is_forked()) {  // nothing is taken, and a thread of the parent may have held the mutex
            cancel_source ended;
            ended.request(cancel_reason::cancelled);
            return ended.token();
        }
        const unique_lock held(guard_);
        return taking_->cancel.token();
    }
    // Called after each change of phase.
    void update_taking() {
        ref<loop_item> next;
        const bool may_take = stage.may_fetch();
        if (may_take) retry_allocation([&] { next = make_ref<loop_item>("", group_); });
        unique_lock held(guard_);
        if (next && taking_->cancel.requested()) swap(taking_, next);
        const ref<loop_item> current = taking_;
        if (!may_take) current->cancel.request(cancel_reason::cancelled);
        changed_.notify_all();
        held.unlock();
        if (!may_take) retry_allocation([&] { call_back({current}); });
    }
    // Between two calls of advance() an item may come although it is quiet.
    bool is_drained() const noexcept override {
        const unique_lock held(guard_);
        return taking_->cancel.requested() && loop_context::is_drained();
    }
    slot::turn await_turn(slot& self, time_point deadline) {
        exit_if_child();
        leave(self.ticket_);
        unique_lock held(guard_);
        for (;;) {
            if (stage.has_stop_begun()) return slot::turn::end;
            self.ticket_ = claims.enter();  // before the look: see drain_barrier::enter()
            if (stage.may_fetch() && !taking_->cancel.requested()) return slot::turn::take;
            leave(self.ticket_);
            if (!changed_.wait_until(held, deadline)) return slot::turn::wait;
        }
    }

    // ---- threads ----

    // An error: not all could be started. Those that were end as the loop stops.
    result<void> start_threads() {
        thread_options consumer;
        consumer.stack_size = options.thread_stack_size;
        consumer.takes_signals = true;  // it may start programs, and those inherit the mask
        consumer.name = "ojs-consumer";
        const ref<loop_state> self(this);
        result<void> started;
        if (renew) {
            renews_ = true;
            started = start(renewer_, service_thread("ojs-renew"), [self] { self->renew_until_ended(); });
            if (!started) renews_ = false;
        }
        for (std::size_t i = 0; i < consumers.size() && started; ++i) {
            live_threads.fetch_add(1);
            started = start(consumers[i].handle, consumer, [self, i] { self->consume(i); });
            if (!started) live_threads.fetch_sub(1);
        }
        return started;
    }
    // True: renew is not being called, and will not be.
    bool end_renewal() {
        const unique_lock held(guard_);
        renewal_ends_ = true;
        changed_.notify_all();
        return !renews_;
    }
    // Returns how many are left behind.
    std::size_t end_threads(time_point deadline) {
        const std::size_t live = live_threads + (end_renewal() ? 0 : 1);
        std::size_t left = live;
        const auto end = [&](thread& each) {
            if (live == 0 && !each.join_until(deadline)) ++left;
            each.detach();
        };
        end(renewer_);
        for (loop_consumer& each : consumers) end(each.handle);
        return left;
    }
    // This process is a child of the one that has claimed the signals, or runs.
    bool is_forked() const noexcept { return owner_ != fork_generation(); }
    void exit_if_child() const noexcept { exit_if_forked(owner_); }
    void set_owner_process() noexcept { owner_ = fork_generation(); }

    // Not changed after the start.
    array<loop_consumer> consumers;
    std::chrono::milliseconds renew_interval{0};
    function<std::vector<std::string>(const std::vector<std::string>&)> renew;

    cancel_source stopped;
    atomic<bool> has_extensions{false};   // an item may end before they start
    atomic<std::size_t> live_threads{0};  // of consumers()
    atomic<bool> has_thrown{false};

  private:
    void leave(drain_barrier::ticket& ticket) noexcept {
        ticket.leave();
        if (stage.has_stop_begun() || (has_extensions && loop_context::is_drained())) supervisor.notify();
    }

    template <class Body>
    static result<void> start(thread& handle, const thread_options& options, Body body) {
        result<thread> started = unless_out_of_memory([&] { return thread::start(body, options); });
        if (!started) return started.error();
        handle = std::move(*started);
        return {};
    }
    // Ends the waits and calls the callbacks of those that are cancelled. The callbacks may block: on another thread,
    // or on this one if there is none.
    void call_back(const array<ref<loop_item>>& all) {
        array<ref<loop_item>> called;
        for (const ref<loop_item>& each : all) {
            if (!each->cancel.requested()) continue;
            each->cancel.wake_waiters();
            if (each->cancel.has_pending_callbacks()) called.push_back(each);
        }
        const auto call = [called] {
            for (const ref<loop_item>& each : called) each->cancel.run_callbacks();
        };
        thread aside;
        if (called.empty()) return;
        if (!start(aside, service_thread("ojs-cancel"), call)) call();
        aside.detach();
    }
    void consume(std::size_t index) {
        slot self(*this, index);
        try {
            consumers[index].body(self);
        } catch (...) {
            exit_if_child();
            has_thrown = true;
            attempt([&] {
                log.write(log_level::error, "a consumer threw; the loop stops",
                          {field("error", thrown_text())});
            });
        }
        exit_if_child();
        leave(self.ticket_);
        if (live_threads.fetch_sub(1) == 1 || has_thrown)
            stage.own.apply(event::stop_request, {cause_kind::api, 0});
        supervisor.notify();
    }
    void renew_until_ended() {
        unique_lock held(guard_);
        for (time_point due = deadline_after(renew_interval); !renewal_ends_;) {
            if (steady_clock::now() < due) {
                changed_.wait_until(held, due);
                continue;
            }
            held.unlock();
            due = deadline_after(renew_interval);  // from the begin of the call
            user.guard("renew threw", [this] {
                const array<ref<loop_item>> asked = items();
                std::vector<std::string> ids;
                for (const ref<loop_item>& each : asked) ids.push_back(each->shown.id);
                if (!ids.empty()) lose(asked, renew(ids));
            });
            exit_if_child();
            held.lock();
        }
        renews_ = false;
        supervisor.notify();
    }

    std::vector<log_field> fields_of(const loop_item& one) const {
        return {field("item", one.shown.id), field("elapsed_ms", milliseconds_since(one.since)),
                field("cancelled", one.cancel.requested() ? "yes" : "no")};
    }
    void log_item(log_level level, const char* message, const loop_item& one) const {
        attempt([&] { log.write({level, message, fields_of(one), {}}); });
    }

    const ref<cancel_group> group_ = make_ref<cancel_group>();
    thread renewer_;
    std::uint32_t owner_ = fork_generation();

    mutable mutex guard_;  // guards the rest
    condition changed_;    // the phase, or the renewal ends
    array<ref<loop_item>> items_;
    worker_report counts_;
    time_point cancelled_at_ = never;  // all items
    time_point stuck_check_at_ = never;
    ref<loop_item> taking_ = make_ref<loop_item>("", group_);  // ends with the next quiet
    std::uint64_t unreported_ = 0;
    bool renewal_ends_ = false;
    bool renews_ = false;  // its thread runs
};

// The stages of a loop, one turn at a time.
class loop_machine final : public stop_machine {
  public:
    explicit loop_machine(const ref<loop_state>& made) : stop_machine(*made, steps), state(made) {}
    ~loop_machine() override {
        if (state->is_forked()) return;
        if (stage_ != stage::ready && stage_ != stage::over) {
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
        if (status) status = unless_out_of_memory([this] { return claim_process(); });
    }
    void run() {
        while (advance()) state->supervisor.wait_until(due);
        if (!must_exit()) return;
        for (;;) ::pause();  // another run() ends the process
    }
    // False: it has ended.
    bool advance() {
        if (stage_ == stage::over || (stage_ == stage::ready && !start())) return false;
        state->exit_if_child();
        state->supervisor.clear();
        for (;;) {
            const time_point extensions_due = act_and_tick();
            const time_point now = steady_clock::now();
            if (begin_next_stage_if_due(now)) {
                if (stage_ == stage::over) return false;
                continue;
            }
            due = detail::min(detail::min(stage_deadline(), extensions_due), run_due_tasks(now));
            return true;
        }
    }
    // What is added after the start is not used.
    bool accepts(const char* addition) const {
        if (stage_ == stage::ready) return true;
        attempt([&] {
            state->log.write(log_level::error, "added to a loop after its start, and not used",
                             {field("addition", addition)});
        });
        return false;
    }

    const ref<loop_state> state;
    result<void> status;  // why it cannot run
    shutdown_sequence steps;
    atomic<int> exit_code{exit_status::usage};
    time_point due = never;  // of the next advance()

  private:
    enum class stage { ready, working, draining, stopping, closing, over };

    result<void> claim_process() {
        result<wake> waker = wake::create();
        if (!waker) return waker.error();
        state->supervisor = std::move(*waker);
        state->identify("loop", {});
        state->identity.queues = {"default"};
        state->owns_process = true;
        state->set_owner_process();
        return install_signals(*state, signals_);
    }
    bool start() {
        if (status) status = unless_out_of_memory([this] { return try_start(); });
        if (status) return true;
        report_usage(status.error());
        if (stage_ == stage::working) return true;  // some threads run: it stops
        tear_down();
        stage_ = stage::over;
        return false;
    }
    result<void> try_start() {
        result<void> claimed = state->is_forked() ? claim_process() : result<void>();  // by daemon()
        if (!claimed) return claimed;
        state->steps_timeout = steps.timeout();
        if (!state->consumers.empty())
            state->identity.concurrency = static_cast<std::int64_t>(state->consumers.size());
        result<void> extended = start_worker_extensions(ref<loop_context>(state.get()));
        if (!extended) return extended;
        state->has_extensions = !state->user.extensions.empty();
        if (!state->stage.subscribe(state->supervisor.notify_fd()))
            return error{errc::busy, 0, "too many follow one lifecycle (at most 16)"};
        begin_run();
        stage_ = stage::working;
        begin("loop started", loop_variables);
        result<void> started = state->start_threads();
        if (!started) state->stage.own.apply(event::stop_request, {cause_kind::api, 0});
        return started;
    }

    // Taking ends first, and then the items: one may come between the two.
    bool idle() const noexcept override { return state->live_threads == 0 && stop_machine::idle(); }
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
    bool begin_next_stage_if_due(time_point now) {
        const bool is_late = now >= stage_deadline();
        const stage current = stage_;
        switch (current) {
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
                attempt([&] { state->check_stuck(now); });  // else not seen after a freeze
                attempt([this] { state->mark_all_unreported(); });
                break;
            case stage::closing:
                if (!run_shutdown_steps()) return false;
                finish();
                break;
            case stage::ready:
            case stage::over: return false;
        }
        stage_ = static_cast<stage>(static_cast<int>(current) + 1);
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
        if (ended == exit_status::settled && state->has_thrown) ended = exit_status::stuck;
        if (ended == exit_status::settled && !status) ended = exit_status::usage;
        exit_code = ended;
        end("loop stopped", ended, all_ended);
        state->stopped.cancel(cancel_reason::cancelled);
    }
    void tear_down() {
        stop_worker_extensions(*state, deadline_after(std::chrono::milliseconds(100)));
        state->stage.unsubscribe(state->supervisor.notify_fd());
    }

    run_signals signals_;
    atomic<stage> stage_{stage::ready};
};

}  // namespace detail

OJS_SHUTDOWN_INLINE cancel_token item::token() const noexcept {
    return entry_ ? entry_->cancel.token() : cancel_token();
}
OJS_SHUTDOWN_INLINE void item::end() noexcept {
    if (entry_) entry_->loop->end(*entry_);
    entry_ = {};
}

OJS_SHUTDOWN_INLINE cancel_token slot::taking() const {
    loop_.exit_if_child();
    return loop_.taking();
}
OJS_SHUTDOWN_INLINE item slot::begin(std::string id) {
    loop_.exit_if_child();
    return loop_.begin(std::move(id));
}
OJS_SHUTDOWN_INLINE slot::turn slot::await_turn(time_point deadline) {
    return loop_.await_turn(*this, deadline);
}

OJS_SHUTDOWN_INLINE loop::loop() : loop(loop_options::from_environment(), nullptr) {}
OJS_SHUTDOWN_INLINE loop::loop(loop_options options)
    : loop(result<loop_options>(std::move(options)), nullptr) {}
OJS_SHUTDOWN_INLINE loop::loop(loop_options options, lifecycle& shared)
    : loop(result<loop_options>(std::move(options)), &shared) {}
OJS_SHUTDOWN_INLINE loop::loop(result<loop_options> options, lifecycle* shared)
    : machine_(detail::make_ref<detail::loop_machine>(
          detail::make_ref<detail::loop_state>(options ? *options : loop_options(), shared))) {
    if (!options) machine_->status = options.error();
    machine_->prepare();
}
OJS_SHUTDOWN_INLINE loop::~loop() = default;

OJS_SHUTDOWN_INLINE bool loop::consumers(std::size_t count, function<void(slot&)> body) {
    if (!machine_->accepts("consumers")) return false;
    detail::loop_state& self = *machine_->state;
    if (count == 0 && self.options.concurrency > 0)
        count = static_cast<std::size_t>(self.options.concurrency);
    for (; count > 0; --count) self.consumers.push_back({body, {}});
    return true;
}
OJS_SHUTDOWN_INLINE bool loop::renew(
    std::chrono::milliseconds interval,
    function<std::vector<std::string>(const std::vector<std::string>&)> renew) {
    if (!machine_->accepts("renew")) return false;
    machine_->state->renew_interval = detail::max(interval, std::chrono::milliseconds(1));
    machine_->state->renew = std::move(renew);
    return true;
}
OJS_SHUTDOWN_INLINE bool loop::add_step(std::string name, function<void()> step,
                                        std::chrono::milliseconds timeout) {
    return machine_->accepts("shutdown step") &&
           machine_->steps.add(std::move(name), std::move(step), timeout);
}

OJS_SHUTDOWN_INLINE int loop::run() {
    machine_->run();
    return exit_code();
}
OJS_SHUTDOWN_INLINE int loop::fd() const noexcept {
    return machine_->state->supervisor.fd();
}
OJS_SHUTDOWN_INLINE time_point loop::deadline() const noexcept {
    return machine_->due;
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
OJS_SHUTDOWN_INLINE bool loop::apply(event request) {
    return machine_->state->stage.own.apply(request, {cause_kind::api, 0});
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

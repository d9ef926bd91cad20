// loop_core: the machine of a loop: its consumers, the items in flight, and their renewal.
#pragma once

#include "../../stop/detail/machine.ipp"
#include "../../stop/loop_options.ipp"
#include "../loop.hpp"

namespace ojs::detail {
struct loop_item : work {
    loop_item(ojs::job&& shown, split_source source, const ref<loop_core>& of, const consumer* by)
        : work(std::move(shown), std::move(source)), loop(of), begun_by(by) {}
    const ref<loop_core> loop;
    const consumer* const begun_by;       // only compared; null: none
    std::uint64_t* counted_as = nullptr;  // guarded: in the account
};

class loop_core final : public held_options<loop_options>, public machine {
  public:
    loop_core(loop_options given, lifecycle* followed)
        : held_options{std::move(given)},
          machine(options, "loop", followed, "item", "item has not ended in time; its queue will deliver it again") {}

    // Claims the signals.
    void prepare() {
        if (status) status = check_loop_options(options);
        if (status) status = claim_all();
    }
    void run() {
        while (advance()) waker.await(due);
    }
    // False: it has ended.
    bool advance() { return start() && turn(); }
    void close() {
        if (is_forked()) return;
        if (stage_ != stage::ready && stage_ != stage::over) {
            phases.apply(event::cancel_request);
            run();
        }
        claim_.release();
        callbacks.close();  // an item that outlives the loop calls nothing
        callbacks.wait_until(deadline_after(std::chrono::seconds(1)));
    }

    // ---- items ----

    item begin_item(std::string id, const consumer* by = nullptr) {
        job shown;
        shown.id = std::move(id);
        shown.queue = "default";
        const ref<loop_item> added = make_ref<loop_item>(std::move(shown), new_member(), ref<loop_core>(this), by);
        const unique_lock held(guard);
        add(ref<work>(added.get()));
        if (all_cancelled_at != never) check_soon(all_cancelled_at + options.stuck_after);
        return item(added);
    }
    void end_item(loop_item& ended) noexcept {
        if (is_forked()) return;  // it is the parent's
        const bool is_cut_short = ended.cancel.token().seen();
        {
            const unique_lock held(guard);
            remove_work(in_flight, ended);
            if (!exchange(ended.is_over, true)) {
                ended.counted_as = is_cut_short ? &counts.requeued : &counts.completed;
                ++*ended.counted_as;
                if (is_cut_short) ++counts.interrupted;
                if (ended.begun_by != nullptr && std::uncaught_exceptions() > 0)
                    unwound_.push_back(ref<loop_item>(&ended));
            }
            notify_if_idle();
            if (!is_started) return;  // nor have the extensions
        }
        notify_settled(ended, {}, is_cut_short ? settled_state::available : settled_state::completed);
    }
    consumer::turn await_turn(consumer& self, time_point deadline) {
        if (is_forked()) _exit(70);
        unique_lock held(guard);
        leave(self, false);
        for (;;) {
            if (phases.has_stop_begun()) return consumer::turn::end;
            if (phases.may_take() && !takings_[0]->cancel.requested()) {
                self.takes_ = true;
                ++takers_;
                return consumer::turn::take;
            }
            if (!changed.wait_until(held, deadline)) return consumer::turn::wait;
        }
    }

    result<void> status;  // why it cannot run
    // Not changed after the start.
    array<function<void(consumer&)>> consumers;
    milliseconds renew_interval{0};
    function<std::vector<std::string>(const std::vector<std::string>&)> renew;

  private:
    result<void> claim_all() {
        result<void> claimed = claim_process();
        if (!claimed) return claimed;
        identity.queues = {"default"};
        owns_process = true;
        return claim_.claim(options, phases.signalled(), log);
    }
    // False: it cannot run. True: it runs, or it stops because some of its threads do not.
    bool start() {
        if (stage_ != stage::ready) return true;
        if (status && is_forked()) status = claim_all();  // by daemon()
        if (!consumers.empty()) identity.concurrency = static_cast<std::int64_t>(consumers.size());
        if (status) status = prepare_turns();
        const bool begins = status.has_value();
        if (begins) begin_all();
        if (!status) exit_code = report_start(status.error());
        if (begins) return true;
        tear_down();
        set_stage(stage::over);
        return false;
    }
    // If not all threads can be started, the others end as the loop stops.
    void begin_all() {
        unique_lock held(guard);
        is_started = true;
        while (takings_.size() <= consumers.size()) takings_.push_back(make_taking());
        held.unlock();
        begin();
        held.lock();
        if (renew) status = threads.start(held, renewals_, "ojs-renew", false, [this] { renew_until_ended(); });
        for (std::size_t i = 0; i < consumers.size() && status; ++i)
            status = threads.start(held, consuming_, "ojs-consumer", true, [this, i] { consume(i); });
        if (!status) phases.apply(event::stop_request);
    }
    void consume(std::size_t index) {
        consumer self(*this, index);
        bool has_returned = false;
        call_user("a consumer threw; the loop stops", [&] {
            consumers[index](self);
            has_returned = true;
        });
        const unique_lock held(guard);
        leave(self, !has_returned);
        has_thrown_ = has_thrown_ || !has_returned;
        if (--consuming_ == 0 || has_thrown_) phases.apply(event::stop_request);
        waker.notify();
    }
    void renew_until_ended() {
        unique_lock held(guard);
        for (time_point next = deadline_after(renew_interval); !renewal_ends_;) {
            if (steady_clock::now() < next) {
                changed.wait_until(held, next);
                continue;
            }
            work_list asked;
            for (const ref<work>& each : in_flight)
                if (!each->is_over) asked.push_back(each);
            held.unlock();
            next = deadline_after(renew_interval);  // from the begin of the call
            if (!asked.empty()) call_user("on_renew threw", [&] { lose(asked, renew(ids_of(asked))); });
            held.lock();
        }
        --renewals_;
        waker.notify();
    }
    // Items that `renew` has lost are not settled or renewed again.
    void lose(const work_list& asked, const std::vector<std::string>& ids) {
        for (const ref<work>& each : asked) {
            if (!contains(ids, each->job.id)) continue;
            {
                const unique_lock held(guard);
                if (exchange(each->is_over, true)) continue;
                ++counts.gone;
                if (each->cancel_alone(cancel_reason::revoked)) check_soon(each->cancelled_at + options.stuck_after);
            }
            log.write({log_level::warn, "item lost: another consumer may have it", fields_of(*each), {}});
            deliver_cancellation(*each);
        }
    }

    // ---- with the guard held ----

    // If it threw, what this has ended is not settled, as far as is known.
    void leave(consumer& self, bool has_thrown) noexcept {
        for (std::size_t i = unwound_.size(); i-- > 0;) {
            if (unwound_[i]->begun_by != &self) continue;
            if (has_thrown) --*unwound_[i]->counted_as;
            if (has_thrown) count_unreported(unwound_[i]->job.id);
            unwound_.remove(i);
        }
        if (!exchange(self.takes_, false)) return;
        --takers_;
        notify_if_idle();
    }
    // Between two turns an item may come although it is quiet.
    bool may_come() const noexcept override { return takers_ > 0 || !takings_[0]->cancel.requested(); }
    bool is_idle() const noexcept override { return in_flight.empty() && consuming_ == 0; }
    bool has_parted() const noexcept override { return renewals_ == 0; }

    // ---- of the turning thread ----

    void on_change(bool /*moved*/) override { update_taking(); }
    milliseconds parting_time() const noexcept override { return milliseconds(0); }
    void begin_parting(time_point /*deadline*/) override {
        const unique_lock held(guard);
        renewal_ends_ = true;
        changed.notify_all();
    }
    time_point do_due_work(time_point now) override {
        check_signal_handlers();  // at least each 5 s, see max_sleep_ms
        work_list stuck;
        unique_lock held(guard);
        if (now < next_check) return next_check;
        next_check = never;
        for (const ref<work>& each : in_flight) {
            if (gets_stuck(*each, now)) stuck.push_back(each);
        }
        const time_point next = next_check;
        held.unlock();
        for (const ref<work>& each : stuck)
            log.write({log_level::warn, "item is stuck: cancelled, but still in flight", fields_of(*each), {}});
        return next;
    }
    int choose_status(bool all_ended) const override {
        const unique_lock held(guard);
        const bool is_stuck = !in_flight.empty() || !all_ended;
        if (is_stuck || (not_reported > 0 && !has_thrown_)) return exit_status::unreported;
        return has_thrown_ ? exit_status::stuck : status ? exit_status::settled : start_status(status.error());
    }
    std::vector<log_field> fields_of(const work& one) const override {
        return {field("item", one.job.id), field("elapsed_ms", milliseconds_since(one.since)),
                field("cancelled", one.cancel.requested() ? "yes" : "no")};
    }

    run_claim claim_;
    // Guarded.
    bool has_thrown_ = false;
    array<ref<loop_item>> unwound_;  // ended by an exception, which may yet leave their consumers
    std::size_t takers_ = 0;         // consumers that may take an item
    std::size_t consuming_ = 0;      // threads of consumers
    std::size_t renewals_ = 0;       // 1: its thread runs
    bool renewal_ends_ = false;
};
}  // namespace ojs::detail

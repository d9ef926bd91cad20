// A group of a launcher with fake processes. The group, its rollouts and its routing hooks are the real ones.
#include "atomic.hpp"

#include <algorithm>
#include <map>

#include "ojs_launcher.hpp"
#include "system.hpp"

namespace sim {
namespace {
using namespace std::chrono_literals;
using namespace ojs::detail;
using ojs::detail::group_member;  // unistd.h has another
using state = ojs::instance_state;
using ns = std::chrono::nanoseconds;
enum fate { obeys, no_thread, no_memory, crashes_early, crashes, not_ready, recovers, ignores_stop, overdue };

class group_system final : public system {
  public:
    group_system(std::uint64_t seed, const limits& most) : seed_(seed) {
        random from(seed ^ 0x6709);
        max_desired_ = static_cast<int>(std::clamp<std::uint64_t>(most.items, 1, 5));
        faults_ = from.one_in(3) ? 0 : std::min(from.below(7), most.faults);
        calls_ = std::min(from.below(9), most.calls);
        has_rest_ = from.one_in(2);
        quick_hooks_ = from.one_in(2);
    }
    std::string describe() const override {
        return cat({"group, seed ", seed_, ": ", faults_, " faults, ", calls_, " calls", has_rest_ ? ", rest" : ""});
    }
    void run() override {
        renew_process();
        const ref<launcher_context> context = make_context();
        const ref<process_group> group = make_ref<process_group>(configuration(), context);
        group_ = group.get();
        life_.subscribe(wake_.notify_fd());
        for (std::uint64_t i = 0; i < calls_; ++i) call_at(some_time(28s), [this] { call(below(9)); });
        call_at(some_time(24s), [this] { stop(); });
        supervise(*context->routing);
        users_.close();
        users_.wait_until(ojs::time_point::max());
        group->release_exited();
        check_account(group->info(), group->metrics());
    }
    void check_end(const ending& how) override {
        require(how.how == ending::kind::returned, "it does not return:\n" + how.waiting);
        require(how.how != ending::kind::returned || objects_ == 0, cat({objects_, " processes are not destroyed"}));
    }

  private:
    struct process_record {
        int ends = 0, min_ends = 0;  // reported by on_change
        bool routable = false;       // from on_routable to the end of on_unroutable
        bool leaving = false;        // as seen after a reconciliation
    };
    // Its thread reports each change, as that of a managed_instance does.
    struct process final : instance {
        process(group_system& owner, const instance_spec& spec, instance_callback changed, fate chosen)
            : all(owner), on_changed(std::move(changed)), kind(chosen) {
            now.id = spec.id;
            ++all.objects_;
        }
        ~process() override {
            body.join();
            --all.objects_;
        }
        ojs::process_info info() const override { return now; }
        void shut_down(const ojs::shutdown_options&) override {
            all.require(!all.quick_hooks_ || !all.records_[now.id].routable, now.id + " is shut down while routable");
            asked.cancel(ojs::cancel_reason::cancelled);
        }
        void force() override {
            forced.cancel(ojs::cancel_reason::forced);
            asked.cancel(ojs::cancel_reason::forced);
        }
        void poll() override { point("poll"); }
        ojs::result<ojs::shutdown_status> request_status(ojs::time_point) override { return ojs::shutdown_status(); }
        void becomes(state next) {
            note("%s is %s", now.id.c_str(), to_string(next));
            process_record& record = all.records_[now.id];
            const bool is_loss = exchange(now.routable, next == state::ready) && !record.leaving;
            const state before = exchange(now.state, next);
            now.exit.code = next == state::crashed ? 3 : 0;
            all.losses_ += is_loss;
            all.live_ -= is_final(next) && kind != overdue;
            on_changed(now, before);
            all.known_losses_ += is_loss;
            if (!is_final(next)) return;
            record.min_ends = all.finishing_ ? 0 : 1;
            all.last_end_ = sim::now();
            user.leave();
        }
        void live() {
            static_cast<void>(asked.token().sleep_for(some_time(200ms)));
            now.pid = 1;
            becomes(state::starting);
            if (kind == crashes_early) return becomes(state::crashed);
            if (asked.token().sleep_for(some_time(1600ms)))
                becomes(kind == not_ready ? state::unhealthy : state::ready);
            if ((kind == crashes || kind == recovers) && asked.token().sleep_for(some_time(12s))) {
                becomes(kind == crashes ? state::crashed : state::unhealthy);
                if (kind == crashes) return;
                if (asked.token().sleep_for(some_time(4s))) becomes(state::ready);
            }
            static_cast<void>(asked.token().sleep_for(24h));
            becomes(state::shutdown_requested);
            const bool stops = kind != ignores_stop && kind != overdue;
            if (forced.token().sleep_for(stops ? some_time(2s) : 500ms) && stops) return becomes(state::complete);
            all.live_ -= kind == overdue;  // no rollout waits for it much longer
            sleep_for((kind == overdue ? 10s : 200ms) / 1ns);
            becomes(state::forced);
        }
        group_system& all;
        const instance_callback on_changed;
        const fate kind;
        thread body;
        ojs::cancel_source asked, forced;
        ojs::process_info now;
        ojs::drain_barrier::ticket user = all.users_.enter();
    };

    static int below(int limit) { return static_cast<int>(dice().below(static_cast<std::uint64_t>(limit))); }
    // Up to a quarter of the limit, and mostly far less.
    static ns some_time(std::chrono::milliseconds limit) {
        return std::chrono::microseconds(below(static_cast<int>(limit.count())) * (below(4) == 0 ? 250 : 12));
    }
    bool fault() { return faults_ > 0 && below(3) == 0 && faults_-- > 0; }
    ref<launcher_context> make_context() {
        const auto out = make_ref<launcher_context>();
        wake_ = std::move(*wake::create());
        out->life = &life_;
        out->log =
            logger({ojs::log_level::info, {}, [](const auto& record) { note("%s", record.message.c_str()); }}, "");
        out->wake = [this] { wake_.notify(); };
        out->starter = [this](const auto& spec, auto changed) { return start(spec, std::move(changed)); };
        out->routing = make_ref<routing_hooks>([this](const auto& now) { route(records_[now.id], true); },
                                               [this](const auto& now) { route(records_[now.id], false); },
                                               [this](const auto& now) { on_change(now); }, out->log, out->wake);
        static_cast<void>(out->routing->start());
        return out;
    }
    ojs::group_options configuration() const {
        ojs::group_options out;
        out.name = "kv";
        out.desired = 1 + below(max_desired_);
        out.min_healthy = below(out.desired + 1);
        out.max_surge = below(4);
        out.health_check_timeout = 1s;
        out.min_ready_time = std::chrono::milliseconds(below(2) * below(200));
        out.restart = {ojs::restart_policy::on_failure, 100ms, 1s, 2s, 0};
        out.process.shutdown = {200ms, 500ms, 0ms, 100ms, 200ms, false};
        return out;
    }

    // ---- as launcher_body ----

    void supervise(routing_hooks& routing) {
        ojs::time_point give_up_at = ojs::time_point::max();
        for (bool forced = false;;) {
            const ojs::lifecycle_state life = life_.state();
            const bool is_quiet = life.phase == ojs::phase::quiet;
            if (exchange(quiet_, is_quiet) != is_quiet) group_->set_quiet(is_quiet);
            if (life.phase >= ojs::phase::draining && !draining_) give_up_at = drain(routing);
            if (life.phase >= ojs::phase::stopping && !exchange(forced, true))
                group_->force_shutdown(group_->members());
            const ojs::time_point next = reconcile();
            if (draining_ && (group_->empty() || ojs::steady_clock::now() >= give_up_at)) break;
            if (wake_.await(std::min(next, give_up_at))) wake_.clear();
        }
        check_stop_time();
        finishing_ = true;
        life_.unsubscribe(wake_.notify_fd());
        group_->stop_starting();
        group_->release_exited();
        routing.stop();
        finished_ = true;
    }
    ojs::time_point drain(routing_hooks& routing) {
        const ojs::time_point out = ojs::deadline_after(group_->max_stop_time() + 1s);
        group_->stop_starting();
        draining_ = true;
        group_->begin_drain(group_->members(), {"stop", {}, {}});
        routing.await_calls(ojs::deadline_after(1s));
        group_->request_shutdown(group_->members());
        return out;
    }
    ojs::result<ref<instance>> start(const instance_spec& spec, instance_callback changed) {
        require(!draining_ && !quiet_, spec.id + " is started in a stop, or while quiet");
        const fate kind = fault() ? static_cast<fate>(1 + below(overdue)) : obeys;
        note("%s is started, fate %d", spec.id.c_str(), kind);
        sleep_for(some_time(80ms).count());
        if (kind == no_memory) throw std::bad_alloc();
        if (kind == no_thread) fail_thread(0);
        const ref<process> made = make_ref<process>(*this, spec, std::move(changed), kind);
        ++live_;
        require(live_ <= max_live() || !group_->info().replacing, cat({spec.id, " is process number ", live_}));
        ojs::result<thread> started = thread::start([body = made.get()] { body->live(); });
        live_ -= !started;
        items += bool(started);
        if (!started) return started.error();
        made->body = std::move(*started);
        return ref<instance>(made.get());
    }
    void route(process_record& record, bool routable) {
        require(!finished_ && record.routable != routable, "a routing hook is called twice, or after the end");
        record.routable = true;
        sleep_for(some_time(quick_hooks_ ? 4ms : 6s).count());
        record.routable = routable;
        if (fault()) throw 1;
    }
    void on_change(const ojs::process_info& now) {
        require(!finished_, "on_change is called after the end");
        records_[now.id].ends += is_final(now.state);
    }

    // ---- what must hold ----

    static group_members ready(const group_members& members) {
        group_members out;
        for (const ref<group_member>& member : members)
            if (member->info.routable && !member->leaving) out.push_back(member);
        return out;
    }
    // A rollout stops no ready process while fewer than min_healthy others are ready.
    ojs::time_point reconcile() {
        const int known_losses = known_losses_;
        const int floor = min_ready();
        const group_members before = ready(group_->staying());
        const ojs::time_point next = group_->reconcile(ojs::steady_clock::now());
        const int later_floor = min_ready();
        const group_members staying = group_->staying();
        const int left = static_cast<int>(ready(staying).size()) + losses_ - known_losses;
        for (const ref<group_member>& member : before) {
            const std::string& reason = member->shutdown.reason;
            if (!member->leaving || reason == "operator" || reason == "stop") continue;
            records_[member->id].leaving = true;
            // A rollback does not want the slots back that were empty before.
            const auto restored = std::count_if(staying.begin(), staying.end(), [&](const auto& other) {
                return reason != "rolled back" || other->generation != member->generation;
            });
            require(left >= std::min({floor, later_floor, static_cast<int>(restored)}),
                    cat({member->id, " is stopped by the rollout, and ", left, " are ready"}));
        }
        return next;
    }
    // Over the current configuration, and those of rollouts that may be in progress.
    template <class Value>
    int extreme(Value value, bool highest) const {
        int out = value(group_->options());
        for (const ojs::group_options* each : targets_)
            out = highest ? std::max(out, value(*each)) : std::min(out, value(*each));
        return out;
    }
    int min_ready() const {
        return extreme([&](const auto& each) { return std::min(each.min_healthy, each.desired - empty_slots_); },
                       false);
    }
    int max_live() const {
        return extreme([](const auto& each) { return each.desired; }, true) +
               extreme([](const auto& each) { return std::max(each.max_surge, 1); }, true);
    }
    void check_stop_time() {
        const ns took = ns(now()) - stopped_at_;
        const ns idle(now() - last_end_);
        const ns max_delay = quick_hooks_ ? 21ms : 1021ms;  // of a start, and the hooks
        require(took <= stop_time(group_->options().process) + 1s + max_delay,
                cat({"the stop took ", took / 1ms, " ms"}));
        require(!group_->empty() || std::min(idle, took - max_delay) <= 1ms, cat({"it ends ", idle / 1ms, " ms late"}));
    }
    void check_account(const ojs::group_info& info, const group_metrics& metrics) {
        for (const auto& [id, record] : records_) {
            require(record.ends >= record.min_ends && record.ends <= 1, cat({id, ": ", record.ends, " ends reported"}));
            require(!record.routable, id + " is still routable");
        }
        std::map<std::string, int> ended;
        for (const ojs::process_info& process : info.processes)
            require(is_final(process.state) && ++ended[process.id] == 1, process.id + " has not ended once");
        std::uint64_t rollouts = 0;
        for (const counter& result : metrics.rollouts) rollouts += read_counter(result);
        require(rollouts == begun_, cat({begun_, " rollouts have ", rollouts, " results"}));
        std::uint64_t ends = read_counter(metrics.crashes);
        for (const histogram& outcome : metrics.shutdown) ends += outcome.count();
        require(ends == items, cat({items, " processes have ", ends, " ends in the metrics"}));
    }

    // ---- other threads ----

    void call_at(ns when, std::function<void()> body) {
        const auto user = std::make_shared<ojs::drain_barrier::ticket>(users_.enter());
        sim::start("caller", [when, body = std::move(body), user] {
            sleep_until(when.count());
            body();
            user->leave();
        });
    }
    void call(int kind) {
        note("call %d", kind);
        const group_members all = group_->staying();
        const ref<group_member> one = all.empty() ? ref<group_member>() : all[dice().below(all.size())];
        if (kind < 3) roll();
        if (kind == 3) static_cast<void>(group_->cancel_rollout("operator"));
        if (kind == 4) quiet();
        if (kind == 5 && one) drain_one(one);
        if (kind == 6 && one) group_->force_shutdown(group_members{one});
        if (kind == 7) group_->on_notification(0, one ? one->id : "kv-0");
        if (kind == 8 && below(2) == 0) shut_down_all();
    }
    void quiet() {
        life_.apply(ojs::event::quiet_request, {ojs::cause_kind::api, 0});
        sleep_for(some_time(8s).count());
        life_.apply(ojs::event::resume_request, {ojs::cause_kind::api, 0});
    }
    void drain_one(const ref<group_member>& member) {
        ++empty_slots_;
        ++losses_;
        group_->drain(group_members{member}, {"operator", {}, {}});
        ++known_losses_;
    }
    void shut_down_all() {
        empty_slots_ += 1000;  // from here on the group may be empty
        static_cast<void>(group_->shut_down({"operator", {}, {}}));
        static_cast<void>(group_->preview_rollout());
    }
    void roll() {
        const ojs::group_options target = configuration();
        ojs::rollout_options options;
        options.canary = below(3);
        options.canary_time = std::chrono::milliseconds(below(500));
        options.max_retries = below(3) - 1;
        options.initial_backoff = options.max_backoff = 200ms;
        options.canary_check = [this](const auto&) {
            sleep_for(some_time(800ms).count());
            return fault() ? throw 1 : ojs::result<void>();
        };
        targets_.push_back(&target);
        const auto begun = group_->begin_rollout(target, options);
        if (begun) await(*begun);
        targets_.erase(std::find(targets_.begin(), targets_.end(), &target));
    }
    void await(const ref<rollout>& begun) {
        ++begun_;
        const auto source = std::make_shared<ojs::cancel_source>();
        const ns when = ns(now()) + some_time(12s);
        if (below(3) == 0) call_at(when, [source] { source->cancel(ojs::cancel_reason::cancelled); });
        const ojs::rollout_report report = group_->await_rollout(begun, source->token());
        require(!report.rolled_back || !report.cancelled, "a rollout has two results");
        const bool is_done = !report.rolled_back && !report.cancelled;
        require(!is_done || (!report.mixed && report.replaced == report.total),
                "a rollout that is done is not complete");
    }
    void stop() {
        if (has_rest_) rest();
        stopped_at_ = ns(now());
        life_.apply(below(2) == 0 ? ojs::event::stop_request : ojs::event::cancel_request, {ojs::cause_kind::api, 0});
        sleep_for(some_time(8s).count());
        if (below(2) == 0) life_.apply(ojs::event::stop_signal, {ojs::cause_kind::signal, 15});
    }
    // Without faults and calls, the group returns to its size.
    void rest() {
        faults_ = 0;
        sleep_for(10 * second);
        for (int i = 0; i < 300 && !targets_.empty(); ++i) sleep_for(second);
        require(targets_.empty(), "a rollout does not end");
        sleep_for(60 * second);
        const ojs::group_info info = group_->info();
        const int desired = info.options.desired;
        require(info.ready == live_ && info.ready <= desired && info.ready >= desired - empty_slots_,
                cat({"at rest, ", info.ready, " of ", live_, " processes are ready; desired ", desired}));
    }

    const std::uint64_t seed_;
    int max_desired_ = 1;
    std::uint64_t faults_ = 0, calls_ = 0, begun_ = 0;
    bool has_rest_ = false, quick_hooks_ = false;
    std::map<std::string, process_record> records_;
    int live_ = 0, objects_ = 0, empty_slots_ = 0;
    int losses_ = 0, known_losses_ = 0;  // of readiness, but not for the rollout; known: by the group
    nanoseconds last_end_ = 0;
    ns stopped_at_{};
    std::vector<const ojs::group_options*> targets_;
    ojs::drain_barrier users_;  // processes, and callers
    ojs::lifecycle life_;
    wake wake_;
    process_group* group_ = nullptr;
    bool quiet_ = false, draining_ = false, finishing_ = false, finished_ = false;
};
}  // namespace

std::unique_ptr<system> make_group(std::uint64_t seed, const limits& most) {
    return std::make_unique<group_system>(seed, most);
}
}  // namespace sim

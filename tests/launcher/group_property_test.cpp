// Whatever happens to a group, in any order, it returns to its size: random acts against a model, by a clock of their own.
#include <random>

#include "fake_fleet.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

using namespace ojs;
using namespace std::chrono_literals;
using detail::group_goal;
using detail::group_plan;
using detail::plan_group;
using namespace test;

namespace {

// Times are so short that no random part is cut from a pause: a seed gives the same sequence again.
class group_model {
  public:
    explicit group_model(unsigned seed)
        : random_(seed), options_(configuration()), kv_(fleet_, options_), now_(steady_clock::now()) {
        fleet_.drains_at_once = false;
        fleet_.dies = false;
        fleet_.decide = [](const detail::instance_spec&) { return fate::late; };
        reconcile();
    }

    void act() {
        const int what = below(12);
        if (what < 3) pass_time();
        if (what == 3) crash_one();
        if (what == 4) stop_one();
        if (what == 5 && below(4) == 0) stop_all();
        if (what == 6 && below(3) == 0) set_quiet();
        if (what == 7) lose_readiness();
        if (what == 8 || what == 9) roll();
        if (what == 10) static_cast<void>(kv_.group->cancel_rollout("test"));
        if (what == 11) settle_some();
        reconcile();
    }
    // From here on every process does as it should.
    void calm_down() {
        kv_.group->set_quiet(false);
        good_ = true;
        for (int i = 0; i < 5000 && !is_at_rest(); ++i) {
            now_ += 1ms;
            reconcile();
        }
        REQUIRE(is_at_rest());
    }
    int done = 0;
    int not_done = 0;

  private:
    struct life {
        time_point ready_at;
        time_point ends_at;  // once it was asked
        int fails = 0;       // 1: before it is ready, 2: soon after, 3: it never is
    };

    int below(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
    template <class List>
    auto one_of(const List& of) {
        return of[static_cast<std::size_t>(below(static_cast<int>(of.size())))];
    }
    fake_fleet::process one_running() {
        const texts running = fleet_.running();
        return running.empty() ? fake_fleet::process() : fleet_.get(one_of(running));
    }
    std::chrono::microseconds within(std::chrono::milliseconds most) {
        return std::chrono::microseconds(below(static_cast<int>(most.count()) * 1000));
    }
    group_options configuration() {
        const int desired = 1 + below(5);
        group_options out = kv_group(desired, below(desired + 1), 1 + below(3));
        out.min_ready_time = std::chrono::milliseconds(below(3));
        out.health_check_timeout = 8ms;
        out.restart.initial_backoff = 1ms;
        out.restart.max_backoff = 2ms;
        out.restart.max_restarts = 0;
        return out;
    }

    void pass_time() { now_ += within(4ms); }
    void crash_one() {
        if (const fake_fleet::process process = one_running()) process->becomes(instance_state::crashed, 3);
    }
    void lose_readiness() {
        const fake_fleet::process process = one_running();
        if (process && process->info().routable)
            process->becomes(below(2) == 0 ? instance_state::unhealthy : instance_state::ready);
    }
    // One that was there before a rollout: what becomes of a new one's place is a matter of its own.
    void stop_one() {
        const detail::group_members all = kv_.group->staying();
        if (all.empty()) return;
        const auto chosen = one_of(all);
        if (rollout_ && number_of(chosen->id) > last_before_) return;
        kv_.group->drain({chosen}, {"operator", {}, {}});
        ++stopped_;
    }
    void stop_all() {
        if (!kv_.group->shut_down({"operator", {}, {}})) return;
        is_stopped_ = true;
        stopped_ = 0;
    }
    void set_quiet() { kv_.group->set_quiet(below(2) == 0); }
    void roll() {
        group_options to = configuration();
        rolling_options options;
        options.canary = below(3);
        options.canary_wait = std::chrono::milliseconds(below(3));
        options.retries = below(2);
        options.initial_backoff = options.max_backoff = 1ms;
        const int bad = below(2) == 0 ? 1 + below(3) : 0;
        const auto begun = kv_.group->begin_rollout(to, options);
        if (!begun) return;
        rollout_ = *begun;
        last_before_ = last_number();
        bad_ = bad;
    }
    void settle_some() {
        for (const std::string& id : fleet_.running()) {
            if (below(2) == 0) advance(id, true);
        }
    }

    // What processes do by themselves.
    void advance(const std::string& id, bool at_once) {
        const fake_fleet::process process = fleet_.get(id);
        const process_info info = process->info();
        if (lives_.count(id) == 0) {
            const bool is_bad = !good_ && rollout_ && info.generation == rollout_->generation && bad_ != 0;
            lives_[id] = {now_ + within(3ms), time_point(), is_bad && below(3) == 0 ? bad_ : 0};
        }
        life& of = lives_[id];
        if (good_) of.fails = 0;
        if (process->was_asked()) {
            if (of.ends_at == time_point()) of.ends_at = now_ + within(5ms);
            if (now_ >= of.ends_at || at_once) process->becomes(instance_state::complete);
            return;
        }
        if (now_ < of.ready_at && !at_once) return;
        if (of.fails == 1) return process->becomes(instance_state::crashed, 1);
        if (of.fails == 3) return;
        if (!info.routable) process->becomes(instance_state::ready);
        if (of.fails == 2 && info.routable) process->becomes(instance_state::crashed, 3);
    }
    void reconcile() {
        for (int i = 0; i < 200; ++i) {
            for (const std::string& id : fleet_.running()) advance(id, false);
            const time_point due = kv_.group->reconcile(now_);
            see_rollout();
            if (due > now_) break;
        }
    }
    void see_rollout() {
        if (!rollout_ || kv_.group->info().replacing) return;
        const rolling_report& report = rollout_->report;
        const bool succeeded = !report.rolled_back && !report.cancelled;
        (succeeded ? done : not_done) += 1;
        if (succeeded) {
            options_ = rollout_->target;
            is_stopped_ = false;
            CHECK(kv_.group->info().ready >= target_count());
        }
        for (const auto& each : kv_.group->staying()) {
            const bool is_new = each->generation == rollout_->generation;
            if (succeeded) CHECK(is_new);
            if (report.rolled_back && !report.mixed) CHECK_FALSE(is_new);
        }
        rollout_ = {};
    }

    static int number_of(const std::string& id) { return std::stoi(id.substr(id.rfind('-') + 1)); }
    int last_number() const {
        int out = 0;
        for (const process_info& each : kv_.group->info().processes) out = std::max(out, number_of(each.id));
        return out;
    }
    int target_count() const { return is_stopped_ ? 0 : std::max(options_.desired - stopped_, 0); }
    bool is_at_rest() const {
        const group_info info = kv_.group->info();
        return !info.replacing && info.ready == target_count() &&
               static_cast<int>(fleet_.running().size()) == target_count();
    }

    std::mt19937 random_;
    fake_fleet fleet_;
    group_options options_;
    fake_group kv_;
    time_point now_;
    std::map<std::string, life> lives_;
    detail::ref<detail::rollout> rollout_;
    int last_before_ = 0;
    int bad_ = 0;
    bool good_ = false;
    int stopped_ = 0;
    bool is_stopped_ = false;
};

}  // namespace

TEST_CASE("group_plan: starts fill what is missing, by what may be started now") {
    group_goal goal;
    goal.target = 3;
    goal.max_starts = 1;
    CHECK(plan_group({}, goal).starts == 1);
    goal.max_starts = 9;
    CHECK(plan_group({{true, true, true}}, goal).starts == 2);
    CHECK(plan_group({{false, true, true}}, goal).starts == 2);  // it counts, whatever its configuration
    goal.replacing = true;
    CHECK(plan_group({{false, true, true}}, goal).starts == 3);
}

TEST_CASE("group_plan: new processes replace old ones one by one, never below min_healthy") {
    group_goal goal;
    goal.target = goal.max_old = goal.min_healthy = 2;
    goal.replacing = true;
    using ends = std::vector<std::size_t>;
    const auto ending = [&](const detail::array<detail::plan_member>& all) {
        const group_plan plan = plan_group(all, goal);
        return ends(plan.stops.begin(), plan.stops.end());
    };
    CHECK(ending({{false, true, true}, {false, true, true}, {true, true, false}}) == ends{});
    CHECK(ending({{false, true, true}, {false, true, true}, {true, true, true}}) == ends{0});
    CHECK(ending({{false, true, true}, {false, false, false}, {true, true, true}}) == ends{1});
    CHECK(ending({{false, true, false}, {false, true, false}, {true, true, true}}) == ends{});
    CHECK(ending({{false, true, true}, {true, true, true}, {true, true, true}}) == ends{0});
    CHECK(ending({{false, false, false}, {false, true, true}, {true, true, true}, {true, true, true}}) ==
          ends{0, 1});  // the first one was not healthy
    goal.may_stop = false;
    CHECK(ending({{false, true, true}, {true, true, true}, {true, true, true}}) == ends{});
}

TEST_CASE("process_group: after a thousand random sequences it has its size") {
    int done = 0;
    int not_done = 0;
    for (unsigned seed = 1; seed <= 1000; ++seed) {
        CAPTURE(seed);
        group_model of(seed);
        for (int i = 0; i < 60; ++i) of.act();
        of.calm_down();
        done += of.done;
        not_done += of.not_done;
    }
    CHECK(done > 500);  // or there was nothing to see
    CHECK(not_done > 500);
}

#endif

// Fake processes, which do not fork, and the checks at every change of one.
#pragma once
#include "test.hpp"

struct ojs::detail::launcher_access {
    static launcher make(launcher_options options, lifecycle* shared, instance_starter starter) {
        return launcher(std::move(options), shared, std::move(starter));
    }
};

namespace test {
using texts = std::vector<std::string>;

// The behaviour of a started process.
enum class fate { ready, late, unhealthy, crashes, not_started, hangs };

class fake_fleet {
  public:
    class fake_process final : public detail::instance {
      public:
        fake_process(fake_fleet& fleet, const detail::instance_spec& spec, detail::instance_callback changed)
            : fleet_(fleet), changed_(std::move(changed)) {
            info_.id = spec.id;
            info_.group = spec.group;
            info_.generation = spec.generation;
            info_.pid = 1;
            launcher_address = spec.launcher_address;
        }
        const std::string& pushes_to() const { return launcher_address; }
        void has_pid(pid_t pid) {
            change([pid](process_info& info) { info.pid = pid; });
        }
        process_info info() const override {
            const std::lock_guard<std::mutex> held(mutex_);
            return info_;
        }
        void shut_down(const shutdown_options&) override {
            const process_info now = info();
            fleet_.note("stop " + now.id);
            becomes(instance_state::shutdown_requested);
            if (now.routable) fleet_.check_ready(now.id);
            if (!fleet_.drains_at_once) return;
            becomes(instance_state::draining);
            becomes(instance_state::complete);
        }
        void force() override {
            const process_info now = info();
            fleet_.note("force " + now.id);
            becomes(instance_state::forced, 1);
            if (now.routable) fleet_.check_ready(now.id);
        }
        void poll() override {
            fleet_.note("poll " + info().id);
            if (fleet_.ready_if_asked) becomes(instance_state::ready);
        }
        result<shutdown_status> request_status(time_point) override {
            shutdown_status out;
            out.metrics.in_flight_requests = 7;
            return out;
        }

        // Reports of the process, from any thread.
        void becomes(instance_state state, int exit_code = 0) {
            change([=](process_info& info) {
                info.state = state;
                info.routable = state == instance_state::ready;
                info.exit.code = exit_code;
            });
        }
        // A response that causes no report.
        void answers(std::string phase) {
            const std::lock_guard<std::mutex> held(mutex_);
            info_.readiness.message = phase;
            info_.shutdown.message = std::move(phase);
        }

      private:
        template <class Change>
        void change(Change apply) {
            process_info before;
            process_info now;
            {
                const std::lock_guard<std::mutex> held(mutex_);
                if (is_final(info_.state)) return;
                before = info_;
                apply(info_);
                now = info_;
            }
            changed_(now, before.state);
        }

        fake_fleet& fleet_;
        const detail::instance_callback changed_;
        mutable std::mutex mutex_;
        process_info info_;
        std::string launcher_address;
    };
    using process = detail::ref<fake_process>;

    detail::instance_starter starter() {
        return [this](const detail::instance_spec& spec, detail::instance_callback changed) {
            return start(spec, std::move(changed));
        };
    }
    // A launcher with fake processes.
    launcher launch(launcher_options options, lifecycle* shared = nullptr) {
        return detail::launcher_access::make(std::move(options), shared, starter());
    }
    // Called at every start, with the lock held.
    std::function<fate(const detail::instance_spec&)> decide = [](const auto&) { return fate::ready; };
    // The processes of later generations, counted from 1, have this fate; those of the first are ready.
    void decide_new(std::function<fate(int)> fate_of) {
        decide = [fate_of, made = 0](const detail::instance_spec& spec) mutable {
            return spec.generation == 1 ? fate::ready : fate_of(++made);
        };
    }
    std::atomic<bool> drains_at_once{true};  // else the test completes them
    std::atomic<bool> ready_if_asked{false};
    int max_running = 1000000;  // processes at any moment
    int min_ready = 0;          // after each shutdown of a ready one

    process get(const std::string& id) const {
        const std::lock_guard<std::mutex> held(mutex_);
        const auto found = all_.find(id);
        return found == all_.end() ? process() : found->second;
    }
    texts calls() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return calls_;
    }
    // The ids of running processes.
    texts running() const {
        texts out;
        const std::lock_guard<std::mutex> held(mutex_);
        for (const auto& each : all_) {
            if (!is_final(each.second->info().state)) out.push_back(each.first);
        }
        return out;
    }
    int ready() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return count_ready();
    }
    std::vector<std::uint64_t> generations() const {
        std::vector<std::uint64_t> out;
        for (const std::string& id : running()) out.push_back(get(id)->info().generation);
        return out;
    }
    const texts& broken() const { return broken_; }

    void note(const std::string& what) {
        const std::lock_guard<std::mutex> held(mutex_);
        calls_.push_back(what);
        notes_.add();
    }
    counter& notes() { return notes_; }
    // After the shutdown of a ready process: enough ready ones must remain.
    void check_ready(const std::string& id) {
        const std::lock_guard<std::mutex> held(mutex_);
        if (count_ready() < min_ready) broken_.push_back("too few ready after " + id);
    }

  private:
    result<detail::ref<detail::instance>> start(const detail::instance_spec& spec, detail::instance_callback changed) {
        process made;
        fate fate_of = fate::ready;
        {
            const std::lock_guard<std::mutex> held(mutex_);
            fate_of = decide(spec);
            if (fate_of == fate::not_started) return error{errc::system, 2, "no such program"};
            made = detail::make_ref<fake_process>(*this, spec, std::move(changed));
            all_[spec.id] = made;
            int count = 0;
            for (const auto& each : all_) count += is_final(each.second->info().state) ? 0 : 1;
            if (count > max_running) broken_.push_back("too many with " + spec.id);
        }
        if (fate_of != fate::hangs) made->becomes(instance_state::starting);
        if (fate_of == fate::ready) made->becomes(instance_state::ready);
        if (fate_of == fate::unhealthy) made->becomes(instance_state::unhealthy);
        if (fate_of == fate::crashes) made->becomes(instance_state::crashed, 3);
        note("start " + spec.id);  // from here only the test changes it
        return detail::ref<detail::instance>(made.get());
    }
    int count_ready() const {
        int out = 0;
        for (const auto& each : all_) out += each.second->info().routable ? 1 : 0;
        return out;
    }

    mutable std::mutex mutex_;
    std::map<std::string, process> all_;
    texts calls_;
    texts broken_;
    counter notes_;
};

// A group of fake processes.
struct fake_group {
    explicit fake_group(fake_fleet& fleet, group_options options, log_hook log = nullptr) : fleet_(fleet) {
        log_options options_of_log;
        options_of_log.level = log ? log_level::debug : log_level::off;
        options_of_log.hook = std::move(log);
        context->log = detail::logger(options_of_log, "launcher");
        context->starter = fleet.starter();
        context->routing =
            detail::make_ref<detail::routing_hooks>([&fleet](const process_info& of) { fleet.note("on " + of.id); },
                                                    [&fleet](const process_info& of) { fleet.note("off " + of.id); },
                                                    nullptr, context->log, [this] { context->wake(); });
        context->socket_folder = "/nowhere";
        context->wake = [this] {
            const std::lock_guard<std::mutex> held(mutex_);
            ++woken_;
            wakes_.notify_all();
        };
        group = detail::make_ref<detail::process_group>(std::move(options), context);
    }
    ~fake_group() {
        fleet_.drains_at_once = true;
        group->stop_starting();
        group->drain(group->members(), {"test", {}, {}});
        group->force_shutdown(group->members());
        group->release_exited();
        context->routing->stop();
    }
    void with_hooks() { REQUIRE(context->routing->start()); }
    time_point turn() { return group->reconcile(steady_clock::now()); }
    template <class Predicate>
    void turn_until(Predicate holds) {
        for (int turns = 0; turns < 1000 && !holds(); ++turns) turn();
        REQUIRE(holds());
    }
    result<rollout_report> roll(const group_options& target, const rollout_options& how = {},
                                const cancel_token& until = {}) {
        const supervisor turning(*this);
        return group->roll(target, how, until);
    }
    rollout_report rolled(const group_options& target, const rollout_options& how = {},
                          const cancel_token& until = {}) {
        const result<rollout_report> done = roll(target, how, until);
        REQUIRE(done);
        return *done;
    }
    // Reconciles as a launcher does, while it exists.
    class supervisor {
      public:
        explicit supervisor(fake_group& of) : of_(of), thread_([this] { work(); }) {}
        supervisor(const supervisor&) = delete;
        supervisor& operator=(const supervisor&) = delete;
        ~supervisor() {
            ends_ = true;
            of_.context->wake();
            thread_.join();
        }

      private:
        void work() {
            for (int seen = 0; !ends_;) {
                const time_point due = of_.turn();
                std::unique_lock<std::mutex> held(of_.mutex_);
                const auto woken = [&] { return of_.woken_ != seen; };
                if (due == time_point::max()) {
                    of_.wakes_.wait(held, woken);
                } else {
                    of_.wakes_.wait_until(held, due, woken);
                }
                seen = of_.woken_;
            }
        }
        fake_group& of_;
        std::atomic<bool> ends_{false};
        std::thread thread_;
    };

    detail::ref<detail::launcher_context> context = detail::make_ref<detail::launcher_context>();
    detail::ref<detail::process_group> group;

  private:
    fake_fleet& fleet_;
    std::mutex mutex_;
    std::condition_variable wakes_;
    int woken_ = 0;
};

// One whose first processes are started.
struct running_group : fake_group {
    running_group(fake_fleet& fleet, group_options options) : fake_group(fleet, std::move(options)) { turn(); }
};

inline group_options kv_group(int desired, int min_healthy, int max_surge) {
    group_options out;
    out.name = "kv";
    out.process.child.command = {"kv"};
    out.desired = desired;
    out.min_healthy = min_healthy;
    out.max_surge = max_surge;
    out.min_ready_time = std::chrono::milliseconds(0);
    out.process.rpc_timeout = std::chrono::milliseconds(10);
    return out;
}

// A launcher of fake processes.
struct launched {
    explicit launched(launcher_options options, lifecycle* shared = nullptr)
        : kept(fleet.launch(std::move(options), shared)) {}
    ~launched() { fleet.drains_at_once = true; }
    // Until the fleet has noted so many.
    void start(int notes) {
        REQUIRE(kept.start());
        REQUIRE(fleet.notes().wait_for(notes));
    }
    void await_end() { REQUIRE(kept.wait(steady_clock::now() + hang_guard)); }
    void stop() {
        kept.request_stop();
        await_end();
    }

    fake_fleet fleet;
    launcher kept;
};
}  // namespace test

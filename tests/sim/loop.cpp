// A loop of consumers over a queue in memory, or under an event loop: signals and calls at any moment, items that return,
// wait for their cancellation or are deaf, lost leases, threads that begin late or not at all.
#include "atomic.hpp"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>

#include "ojs_shutdown.hpp"
#include "system.hpp"

namespace sim {
namespace {
using namespace std::chrono_literals;

// Hands its machine on.
struct watching final : ojs::detail::worker_extension {
    explicit watching(ojs::detail::machine_ref& into) : machine(into) {}
    ojs::result<void> start(const ojs::detail::machine_ref& of) override { return machine = of, ojs::result<void>(); }
    void stop(ojs::time_point) override { machine = ojs::detail::machine_ref(); }
    ojs::detail::machine_ref& machine;
};

class loop_system final : public system {
  public:
    loop_system(std::uint64_t seed, const limits& most) : seed_(seed) {
        random from(seed ^ 0x100b);
        items = std::min(from.below(9), most.items);
        calls_ = std::min(from.below(8), most.calls);
        consumers_ = 1 + from.below(3);
        has_deaf_ = from.one_in(4) && most.faults > 0;
        renews_ = from.one_in(2);
        throws_ = from.one_in(4) && most.faults > 0;
        advances_ = from.one_in(3);
        if (from.one_in(4) && most.faults > 0) late_threads_ = 1 + static_cast<int>(from.below(3));
        if (from.one_in(8) && most.faults > 0) threads_start_ = static_cast<int>(from.below(4));
        states_.resize(items);
    }
    std::string describe() const override {
        return ojs::detail::cat({"loop, seed ", seed_, ": ", consumers_, " consumers, ", items, " items, ", calls_,
                                 " calls", advances_ ? ", advance()" : ""});
    }

    void run() override {
        renew_process();
        fail_thread(threads_start_);
        late_threads(late_threads_);
        ojs::loop_options options;
        options.times.shutdown_grace_period = 1s;
        options.times.stop_timeout = 1s;
        options.signal_debounce = 0ms;
        options.stuck_after = 200ms;
        options.log.hook = [this](const ojs::log_record& record) {
            note("log: %s", record.message.c_str());
            if (record.message.find("item lost") == 0) ++gone_;
            for (const ojs::log_field& each : record.fields)
                if (each.name == "unreported") counted_ = each.value;
        };
        options.on_transition = [this](const ojs::lifecycle_state& state) {
            if (state.phase < ojs::phase::draining || stops_) return;
            stops_ = true;
            free_since_ = now();
        };
        options.extensions.add({"watching", [this] { return new watching(machine_); }});
        one_.emplace(options);
        one_->on_shutdown("step", [this] {
            const ojs::worker_report now = one_->report();
            require(now.claimed == now.completed + now.requeued + now.gone + now.unreported.size(),
                    "a step before the last item");
        });
        if (renews_) one_->on_renew(100ms, [this](const auto& ids) { return renew(ids); });
        if (!advances_) one_->add_consumers(consumers_, [this](ojs::consumer& consumer) { consume(consumer); });
        for (std::uint64_t i = 0; i < calls_; ++i) start("caller", [this] { call(); });
        start("stopper", [this] { stop(); });
        const int status = advances_ ? advance() : one_->run();
        has_ended_ = true;
        check_account(status);
        one_.reset();
    }
    void check_end(const ending& how) override {
        require(how.how != ending::kind::deadlock, "deadlock:\n" + how.waiting);
        require(how.how != ending::kind::too_many_steps, "it does not end:\n" + how.waiting);
        require(how.lost_wake_up.empty() || threads_start_ >= 0, "not woken: " + how.lost_wake_up);
        if (how.how != ending::kind::exited) return;
        const bool by_signal = how.status == 128 + SIGTERM;
        require(by_signal ? signals_ >= 3 || has_ended_ : has_deaf_ && how.status == 75,
                "_exit(" + std::to_string(how.status) + ")");
    }

  private:
    enum class state { waiting, taken, done };

    // ---- the queue ----

    std::optional<std::size_t> take(const ojs::cancel_token& until) {
        std::unique_lock<std::mutex> lock(guard_);
        const auto next = [this] { return std::find(states_.begin(), states_.end(), state::waiting); };
        if (!until.wait(changed_, lock, [&] { return next() != states_.end(); })) return std::nullopt;
        const auto found = next();
        *found = state::taken;
        return static_cast<std::size_t>(found - states_.begin());
    }
    void settle(std::size_t which, state what) {
        const std::lock_guard<std::mutex> lock(guard_);
        require(states_[which] == state::taken, "an item is settled twice");
        lost_.erase(std::to_string(which));
        states_[which] = what;
        changed_.notify_one();
    }
    std::vector<std::string> renew(const std::vector<std::string>& ids) {
        require(!ids.empty(), "renewed nothing");
        for (const std::string& id : ids) require(lost_.count(id) == 0, "a lost item is renewed");
        if (!dice().one_in(8)) return {};
        lost_.insert(ids.front());
        return {ids.front()};
    }

    // ---- consumers ----

    void consume(ojs::consumer& consumer) {
        while (consumer.next()) {
            const std::optional<std::size_t> taken = take(consumer.intake_token());
            if (!taken) continue;
            const bool fails = throws_ && dice().one_in(3);
            try {
                ojs::item item = consumer.begin(std::to_string(*taken));
                handle(*taken, item);
                if (fails) throw std::runtime_error("before its end");
                end(item);
            } catch (const std::exception&) {
                free_since_ = std::max(free_since_, now());
                if (dice().one_in(2)) continue;  // it has handled that
                ++thrown_;
                throw;
            }
        }
        require(one_->phase() >= ojs::phase::draining, "next() is false, and nothing stops");
    }
    void handle(std::size_t which, ojs::item& item) {
        ++begun_;
        require(drained_since_ != resumes_, "an item begins though the loop was drained");
        note("item %zu begins", which);
        const std::uint64_t kind = dice().below(3);
        bool done = true;
        if (has_deaf_ && which == 0) {
            sleep_for(8 * second);
        } else if (kind == 0) {
            done = item.token().sleep_for(ojs::steady_clock::duration(some_time(3 * second)));
        } else {
            sleep_for(some_time(400 * millisecond));
        }
        note("item %zu ends: %d", which, done);
        settle(which, done ? state::done : state::waiting);
    }
    void end(ojs::item& item) {
        free_since_ = std::max(free_since_, now());  // its end may wake the loop at once
        item.end();
        free_since_ = std::max(free_since_, now());
    }
    // An event loop that takes where it may; each item ends on a fiber of its own.
    int advance() {
        while (one_->advance()) {
            const ojs::cancel_token taking = one_->intake_token();
            if (one_->accepting() && std::count(states_.begin(), states_.end(), state::waiting) > 0) {
                if (const auto taken = take(taking)) {
                    if (dice().one_in(8)) one_->quiet(), look_if_drained();  // as another thread may, just now
                    start("item", [this, which = *taken,
                                   item = std::make_shared<ojs::item>(one_->begin(std::to_string(*taken)))] {
                        handle(which, *item);
                        end(*item);
                    });
                }
            }
            pollfd ready{one_->fd(), POLLIN, 0};
            ::poll(&ready, 1, ojs::detail::poll_timeout(one_->deadline()));
        }
        return one_->exit_code();
    }

    // ---- what disturbs them ----

    static nanoseconds some_time(nanoseconds limit) {
        return static_cast<nanoseconds>(dice().below(static_cast<std::uint64_t>(limit)));
    }
    void call() {
        sleep_until(some_time(3 * second));
        if (has_ended_) return;
        switch (dice().below(7)) {
            case 0: send_signal(SIGTSTP), look_if_drained(); break;
            case 1: ++resumes_, send_signal(SIGCONT); break;
            case 2: send_signal(SIGTTIN); break;
            case 3: one_->quiet(), look_if_drained(); break;
            case 4: ++resumes_, one_->resume(); break;
            case 5: one_->request_stop_and_cancel(); break;
            default: request_stop(); break;
        }
    }
    // As the server that waits for a quiet worker. Then none begins until the next resume.
    void look_if_drained() {
        const ojs::detail::machine_ref machine = machine_;
        if (machine && machine->is_drained()) drained_since_ = resumes_;
    }
    void stop() {
        sleep_until(2 * second);
        if (!has_ended_) request_stop();
    }
    void request_stop() {
        ++signals_;
        send_signal(SIGTERM);
    }

    // ---- what must hold ----

    void check_account(int status) {
        const ojs::worker_report report = one_->report();
        note("ends with %d", status);
        require(report.claimed == begun_, "an item is not counted");
        require(report.claimed == report.completed + report.requeued + report.gone + report.unreported.size(),
                "the account does not add up");
        const bool all_ended = std::count(states_.begin(), states_.end(), state::taken) == 0;
        require(report.gone == gone_, "a lost item does not count as gone");
        require(counted_ == std::to_string(report.unreported.size()),
                "unreported items are counted and named differently");
        require(renews_ || has_deaf_ || report.unreported.size() == thrown_,
                "an item whose consumer threw is reported");
        require(status == 0    ? all_ended && thrown_ == 0
                : status == 70 ? thrown_ > 0
                : status == 71 ? threads_start_ >= 0
                               : status == 75 && has_deaf_,
                "status " + std::to_string(status));
        require(all_ended || !report.unreported.empty() || gone_ > 0, "an item has not ended, and is not named");
        // At once, when the last item has ended.
        const nanoseconds limit = (status == 0 ? 0 : 2 * second) + 100 * millisecond;
        require(free_since_ == 0 || now() - free_since_ <= limit + late_threads_ * slowness, "the stop takes too long");
    }

    const std::uint64_t seed_;
    std::uint64_t resumes_ = 0, drained_since_ = UINT64_MAX;
    ojs::detail::machine_ref machine_;
    std::uint64_t calls_ = 0, consumers_ = 1, begun_ = 0, gone_ = 0, thrown_ = 0;
    std::set<std::string> lost_;  // while they are in flight
    std::string counted_;         // unreported items, at the end
    bool has_deaf_ = false, throws_ = false, renews_ = false, advances_ = false, has_ended_ = false, stops_ = false;
    int late_threads_ = 0, threads_start_ = -1, signals_ = 0;
    nanoseconds free_since_ = 0;  // nothing was in flight in the stop, at the earliest
    std::mutex guard_;
    std::condition_variable changed_;
    std::vector<state> states_;
    std::optional<ojs::loop> one_;
};
}  // namespace

std::unique_ptr<system> make_loop(std::uint64_t seed, const limits& most) {
    return std::make_unique<loop_system>(seed, most);
}
}  // namespace sim

// Shutdown sequences: steps that return, fail, throw, wait or hang, where threads are late or cannot be made.
#include "atomic.hpp"

#include <algorithm>
#include <deque>
#include <stdexcept>

#include "ojs_shutdown.hpp"
#include "system.hpp"

namespace sim {
namespace {
using namespace std::chrono_literals;
using ojs::step_status;
using ns = std::chrono::nanoseconds;
constexpr ns never = ns::max() / 4;
constexpr ns min_time = 50ms;
constexpr ns slack = 1100us;  // a join polls each 1 ms, and each point of the machine takes 200 ns
enum step_kind { returns, fails, throws, waits, hangs };

struct step_record {
    step_kind kind = returns;
    ns timeout = never, work{};
    ns started_at = never, returned_at = never, ended_at = never;  // it is reported to have started, ended
    ns has_time_until = 0ns;                                       // once its thread has a processor, min_time later
    int begins = 0;
};
struct sequence_record {
    std::deque<step_record> steps;
    ns began_at{};
    ns deadline = never;  // of all steps
    ns caller_free_at{};  // the last step that ran on the caller has returned
    pthread_t caller{};
    bool ended = false;
};

class sequence_system final : public system {
  public:
    sequence_system(std::uint64_t seed, const limits& most) : seed_(seed), most_(most) {
        random from(seed ^ 0x5e9);
        items = std::max<std::uint64_t>(1, std::min(from.below(7), most.items));
        calls_ = std::min(from.below(5), most.calls);
        sequences_ = 1 + from.below(2);
        if (from.one_in(4) && most.faults > 0) late_threads_ = 1 + static_cast<int>(from.below(4));
    }
    std::string describe() const override {
        return ojs::detail::cat(
            {"sequence, seed ", seed_, ": ", sequences_, " of ", items, " steps, ", calls_, " calls"});
    }
    void run() override {
        renew_process();
        late_threads(late_threads_);
        for (std::uint64_t i = 0; i < calls_; ++i) sim::start("caller", [this] { call(); });
        for (std::uint64_t i = 0; i < sequences_; ++i) sim::start("runner", [this] { run_sequence(); });
    }
    void check_end(const ending& how) override {
        require(how.how == ending::kind::returned, "it does not return:\n" + how.waiting);
        require(how.how != ending::kind::returned || step_count_.use_count() == 1, "a step is not destroyed");
    }

  private:
    static std::int64_t below(std::int64_t limit) {
        return static_cast<std::int64_t>(dice().below(std::uint64_t(limit)));
    }
    void call() {
        sleep_until(below(3 * second));
        fail_thread(most_.faults > 0 ? static_cast<int>(below(3)) : -1);
    }
    void add(ojs::shutdown_sequence& to, sequence_record& record) {
        const std::size_t index = record.steps.size();
        step_record& step = record.steps.emplace_back();
        step.kind = static_cast<step_kind>(below(most_.faults > 0 ? 5 : 1));
        if (below(4) != 0) step.timeout = std::chrono::milliseconds(below(2) * below(1000));
        step.work = ns(below(below(2) == 0 ? second : second / 20)) * (step.kind == hangs ? 5 : 1);
        auto call = [this, &record, &step, counted = step_count_](const ojs::step_context& context) {
            return run_step(record, step, context);
        };
        const auto timeout = step.timeout == never ? ojs::no_limit : std::chrono::milliseconds(step.timeout / 1ms);
        to.add(std::to_string(index), call, timeout);
    }
    ojs::result<void> run_step(sequence_record& record, step_record& step, const ojs::step_context& context) {
        require(++step.begins == 1 && (step.ended_at == never || step.timeout == 0ns),
                "a step runs twice, or at a wrong time");
        check_order(record, step);
        step.has_time_until = ns(now()) + std::min(step.timeout, min_time);
        const ojs::time_point deadline = context.deadline;
        require(deadline >=
                    ojs::steady_clock::now() + (step.started_at + std::min(step.timeout, min_time) - slack - ns(now())),
                "a step has no time");
        const auto left = std::min<ns>(deadline - ojs::steady_clock::now(), 3s);
        sleep_for(step.kind == waits ? std::max<ns>(left, 0ns).count() : step.work.count());
        require(context.deadline == deadline, "the context of a step does not last");
        step.returned_at = ns(now());
        if (pthread_self() == record.caller) record.caller_free_at = step.returned_at;
        if (step.kind == throws) throw std::runtime_error("text");
        return step.kind == fails ? ojs::result<void>(ojs::error{ojs::errc::system, 0, "text"}) : ojs::result<void>();
    }
    static ns last_end(const sequence_record& record, const step_record& step) {
        ns out = record.began_at;
        for (const step_record& each : record.steps) {
            if (&each == &step) break;
            out = std::max(out, each.ended_at);
        }
        return out;
    }
    void check_start(const sequence_record& record, const step_record& step) {
        check_order(record, step);
        const ns joins = slack * static_cast<int>(record.steps.size());
        require(step.started_at <= std::max(last_end(record, step), record.caller_free_at) + joins,
                "a step starts later than it could");
    }
    void check_order(const sequence_record& record, const step_record& step) {
        require(last_end(record, step) != never, "a step begins before one before it has ended");
    }
    // It is destroyed while abandoned steps may still run.
    void run_sequence() {
        ojs::shutdown_sequence sequence;
        sequence_record& record = records_.emplace_back();
        sequence_record& later = records_.emplace_back();
        for (std::uint64_t i = 0; i < items; ++i) add(sequence, record);
        sleep_for(below(2 * second));
        run_steps(sequence, record, &later);
        require(sequence.size() == later.steps.size(), "a step that was added during the run is lost");
        run_steps(sequence, later, nullptr);
    }
    void run_steps(ojs::shutdown_sequence& sequence, sequence_record& record, sequence_record* later) {
        ojs::sequence_options options;
        if (below(2) == 0) options.timeout = std::chrono::milliseconds(below(1500));
        options.progress = [&](const ojs::step_result& result) {
            on_progress(record, record.steps[std::stoul(result.name)], result);
            if (later != nullptr && below(8) == 0) add(sequence, *later);
        };
        const ns began = record.began_at = ns(now());
        const ns limit = sequence.timeout() == ojs::no_limit ? never : ns(sequence.timeout());
        record.caller = pthread_self();
        record.deadline = options.timeout == ojs::no_limit ? never : began + options.timeout;
        const std::vector<ojs::step_result> results = sequence.run(options);
        record.ended = true;
        const ns took = ns(now()) - began;
        require(took <= limit + slack * static_cast<int>(1 + results.size()) + late_threads_ * ns(slowness) ||
                    record.caller_free_at > 0ns,
                "the sequence took longer than its steps may");
        require(results.size() == record.steps.size(), "a result is missing");
        for (std::size_t i = 0; i < results.size(); ++i)
            require(results[i].name == std::to_string(i) && results[i].status != step_status::running &&
                        record.steps[i].ended_at != never,
                    "a step has no result");
    }
    void on_progress(sequence_record& record, step_record& step, const ojs::step_result& result) {
        require(!record.ended && pthread_self() == record.caller, "progress is called by another thread, or late");
        note("step %s: %s", result.name.c_str(), to_string(result.status));
        ns& reported_at = result.status == step_status::running ? step.started_at : step.ended_at;
        require(reported_at == never, "a step is reported twice");
        reported_at = ns(now());
        if (result.status == step_status::running) return check_start(record, step);
        const ns difference = step.ended_at - step.started_at - result.took;
        require(difference > -100us && difference < 3ms, "took is wrong");
        check_result(record, step, result);
    }
    void check_result(const sequence_record& record, const step_record& step, const ojs::step_result& result) {
        const ns end = step.ended_at;
        const ns least = std::max(step.started_at + std::min(step.timeout, min_time), step.has_time_until);
        const ns common = record.deadline;
        const ns late = step.begins == 0 && late_threads_ > 0 ? ns(slowness) : 0ns;
        const ns latest = std::max(least + late, std::min(step.started_at + step.timeout, common));
        require(end <= std::max(latest, record.caller_free_at) + slack,
                "step " + result.name + " is awaited for too long");
        if (result.status == step_status::timed_out) {
            const ns limit = std::min(step.started_at + step.timeout, record.deadline);
            require(end >= std::max(least - slack, limit), "step " + result.name + " is abandoned too early");
            require(step.returned_at > end - slack, "step " + result.name + " had returned before it was abandoned");
            return;
        }
        const bool has_text = step.kind == fails || step.kind == throws;
        const step_status expected = step.kind == fails    ? step_status::failed
                                     : step.kind == throws ? step_status::threw
                                                           : step_status::done;
        require(result.status == expected && step.returned_at <= end && result.error == (has_text ? "text" : ""),
                "step " + result.name + " has another result: " + to_string(result.status));
    }

    const std::uint64_t seed_;
    const limits most_;
    std::uint64_t calls_ = 0, sequences_ = 1;
    int late_threads_ = 0;
    std::deque<sequence_record> records_;
    const std::shared_ptr<int> step_count_ = std::make_shared<int>();
};
}  // namespace

std::unique_ptr<system> make_sequence(std::uint64_t seed, const limits& most) {
    return std::make_unique<sequence_system>(seed, most);
}
}  // namespace sim

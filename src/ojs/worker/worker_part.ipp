#pragma once

#include "../base/detail/text.hpp"
#include "detail/worker_context.ipp"
#include "worker_part.hpp"

namespace ojs::detail {

// A worker as its parts see it.
class part_access final : public running_worker {
  public:
    explicit part_access(const ref<worker_context>& context) : worker_(context) {}

    const worker_options& options() const noexcept override { return worker_->options; }
    const worker_identity& identity() const noexcept override { return worker_->identity; }
    const std::vector<std::string>& job_types() const noexcept override { return worker_->job_types; }
    bool owns_process() const noexcept override { return worker_->owns_process; }
    ojs::phase phase() const noexcept override { return worker_->stage.effective(); }
    bool connected() const noexcept override { return worker_->backend.has_answered(); }
    bool drained() const noexcept override { return worker_->drained(); }
    std::size_t active_jobs() const override { return worker_->jobs.size(); }
    void visit_active_jobs(const function<void(const job&)>& visit) const override {
        for (const ref<active_job>& each : worker_->jobs.snapshot()) visit(each->job);
    }
    worker_report report() const override { return worker_->tally.report(); }
    std::uint64_t unreported_jobs() const noexcept override { return worker_->tally.unreported(); }
    time_point drain_deadline() const noexcept override { return worker_->stage.drain_deadline(); }
    time_point stop_deadline() const noexcept override {
        constexpr time_point latest = time_point::max();
        if (worker_->closing == no_limit) return latest;
        const time_point drained = drain_deadline();
        const steady_clock::duration tail = worker_->options.times.stop_timeout + worker_->closing;
        return drained < latest - tail ? drained + tail : latest;
    }
    bool apply(event request, cause why) override { return worker_->stage.own.apply(request, why); }
    void wake() override { worker_->supervisor.notify(); }
    void log(log_record record) const override { worker_->log.write(std::move(record)); }

  private:
    const ref<worker_context> worker_;
};

inline result<void> start_worker_part(worker_context& worker, const worker_part_factory& factory,
                                      const running_worker_ref& access) {
    worker.user.parts.reserve_one();
    worker_part* const made = factory.make ? factory.make() : nullptr;
    if (made == nullptr)
        return error{errc::invalid_argument, 0, cat({"worker part '", factory.name, "' cannot be made"})};
    worker.user.parts.push_back(made);
    ++worker.user.running_parts;
    try {
        return made->start(access);
    } catch (...) {
        pass_on_thread_end();
        return error{errc::invalid_argument, 0, cat({"worker part '", factory.name, "' threw in start()"})};
    }
}
// While no other thread knows of the parts. At the first error stop_worker_parts() is for the caller.
inline result<void> start_worker_parts(const ref<worker_context>& worker) {
    worker->user.delete_parts();  // of a start that failed
    const running_worker_ref access(new part_access(worker));
    result<void> started;
    for (const worker_part_factory& each : worker->options.parts) {
        if (started) started = start_worker_part(*worker, each, access);
    }
    return started;
}
// In reverse. Idempotent.
inline void stop_worker_parts(worker_context& worker, time_point deadline) {
    while (worker.user.running_parts > 0) {
        worker_part* const last = worker.user.parts[--worker.user.running_parts];
        worker.user.guard("a worker part threw in stop()", [&] { last->stop(deadline); });
    }
}

}  // namespace ojs::detail
